"""Health, metrics, and what protocols answer over HTTP."""

import asyncio
import contextlib
import math
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from servax_worker.errors import InvalidInput, TooLarge
from servax_worker.predictor import Predictor

Health = tuple[bool, list[dict[str, Any]]]
"""Whether everything is READY, and the states of what is served."""

# Adding 32 to zlib's window size makes it tell the two apart by what they begin with.
_ENCODINGS = {"gzip": zlib.MAX_WBITS + 32, "deflate": zlib.MAX_WBITS + 32}


def application(
    health: Callable[[], Awaitable[Health]],
    metrics: Callable[[], Awaitable[bytes]],
    routes: Iterable[BaseRoute] = (),
) -> Starlette:
    """The application: /livez, /healthz, /metrics, and the routes of protocols."""

    async def livez(_: Request) -> Response:
        """200 while the process can answer at all."""
        return PlainTextResponse("ok\n")

    async def healthz(_: Request) -> Response:
        """200 once every model is READY, 503 before and while shutting down; tells the states."""
        ready, versions = await health()
        return JSONResponse({"ready": ready, "versions": versions}, 200 if ready else 503)

    async def exposition(_: Request) -> Response:
        """The metrics in Prometheus's text format."""
        return Response(await metrics(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/healthz", healthz),
            Route("/metrics", exposition),
            *routes,
        ]
    )


async def health_of(predictor: Predictor) -> Health:
    """What one process tells."""
    return predictor.ready, [
        {
            "model": status.model,
            "version": status.version,
            "alias": status.alias,
            "state": status.state.name,
            "detail": status.detail,
        }
        for status in predictor.status()
    ]


async def metrics_of(metrics: CollectorRegistry) -> bytes:
    """What one process tells."""
    return generate_latest(metrics)


async def read_body(request: Request, limit: int, setting: str = "--max-message-bytes") -> bytes:
    """A request's body of at most `limit` bytes, which `setting` sets, decompressed.

    Raises TooLarge, before more than that is held, and InvalidInput where the body is not what its
    Content-Encoding says.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", *_ENCODINGS):
        raise InvalidInput(f"Content-Encoding '{encoding}' is none of {', '.join(_ENCODINGS)}")
    inflate = zlib.decompressobj(_ENCODINGS[encoding]) if encoding in _ENCODINGS else None
    body = bytearray()
    async for chunk in request.stream():
        try:
            body += inflate.decompress(chunk, limit + 1 - len(body)) if inflate else chunk
        except zlib.error as error:
            raise InvalidInput(f"the body is not {encoding}: {error}") from error
        if len(body) > limit:
            raise TooLarge(f"the body has more than {limit} bytes ({setting} of the worker)")
    if inflate and not inflate.eof:
        raise InvalidInput(f"the body is not whole: its {encoding} does not end")
    return bytes(body)


class HttpServer:
    """Serves an application on the running event loop."""

    def __init__(self, app: ASGIApp, listening: socket.socket, grace: float):
        """`grace` is how many seconds requests in flight get when it stops."""
        self._socket = listening
        if listening.family != socket.AF_UNIX:
            # Connections inherit it. asyncio sets it itself only on sockets that name their
            # protocol, which `socket.create_server` does not; without it, every other answer waits
            # 40 ms for an acknowledgement.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=math.ceil(grace),
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to answer."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))

    async def stop(self) -> None:
        """Stops answering."""
        self._server.should_exit = True
        if self._task is None:
            self._socket.close()
        else:
            await self._task


class _Server(uvicorn.Server):
    """Leaves the process's signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
