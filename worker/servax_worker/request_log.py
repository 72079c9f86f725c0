"""A line in the log for every request, where the operator asked for that.

Callers name a request in `x-request-id`, metadata or header; who does not is given a name.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc.aio
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"

_LONGEST = 200  # characters of a name that are kept
_OWN_PATHS = ("/livez", "/healthz", "/metrics")

Handler = Callable[[Any, Any], Awaitable[Any]]

log = structlog.get_logger(__name__)


def logged_call(answer: Handler, method: str) -> Handler:
    """Logs the calls of a handler of gRPC when they end."""

    async def logged(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        began = time.monotonic()
        name = _name(context.invocation_metadata() or ())
        about = _about(request)
        try:
            return await answer(request, context)
        finally:
            code: Any = context.code()  # None where all went well, whatever it is typed as
            log.info(
                "request",
                method=method,
                **about,
                code=code.name if code else "OK",
                seconds=round(time.monotonic() - began, 6),
                request_id=name,
            )

    return logged


class LoggedRequests:
    """An application whose requests are logged when they end, but for health and metrics."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http" or scope["path"] in _OWN_PATHS:
            return await self._app(scope, receive, send)
        began, status = time.monotonic(), 0
        name = _name((key.decode("latin-1"), value) for key, value in scope["headers"])

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            log.info(
                "request",
                method=f"{scope['method']} {scope['path']}",
                code=status,
                seconds=round(time.monotonic() - began, 6),
                request_id=name,
            )


def _name(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    given = next((value for key, value in pairs if key == HEADER), "")
    text = given.decode("latin-1") if isinstance(given, bytes) else given
    return text[:_LONGEST] or str(uuid.uuid4())


def _about(request: Any) -> dict[str, str]:
    """The model that a single message of any protocol names."""
    for field in ("model", "model_name"):
        if name := getattr(request, field, ""):
            return {"model": name}
    if (spec := getattr(request, "model_spec", None)) is not None:
        return {"model": spec.name}
    return {}
