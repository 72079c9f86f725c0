"""Health and metrics over HTTP, for probes and for Prometheus."""

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from servax_worker.predictor import Predictor
from servax_worker.sockets import listening_socket


def application(predictor: Predictor, metrics: CollectorRegistry) -> Starlette:
    """The application: /livez, /healthz and /metrics."""

    async def livez(_: Request) -> Response:
        """200 while the process can answer at all."""
        return PlainTextResponse("ok\n")

    async def healthz(_: Request) -> Response:
        """200 once every model is READY, 503 before and while shutting down; tells the states."""
        versions = [
            {
                "model": status.model,
                "version": status.version,
                "alias": status.alias,
                "state": status.state.name,
                "detail": status.detail,
            }
            for status in predictor.status()
        ]
        return JSONResponse(
            {"ready": predictor.ready, "versions": versions}, 200 if predictor.ready else 503
        )

    async def exposition(_: Request) -> Response:
        """The metrics in Prometheus's text format."""
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/healthz", healthz),
            Route("/metrics", exposition),
        ]
    )


class HttpServer:
    """Serves an application on the running event loop."""

    def __init__(self, app: Starlette, listen: str):
        """Binds HOST:PORT; raises StartupError where that is not possible."""
        self._socket = listening_socket(listen)
        host, _, _ = listen.rpartition(":")
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
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
