"""gRPC's health protocol on an event loop.

The servicer that grpcio-health-checking has for it forgets all who watch a service when one of them
leaves, and waits with a change until the slowest of them has read the one before.
The protocol: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):
    """grpc.health.v1.Health: all services are SERVING, or none is."""

    def __init__(self, services: Iterable[str]) -> None:
        """`services` are full names; the empty one stands for the server as a whole."""
        self._services = frozenset(services)
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Context) -> Any:
        """Tells whether a service is served; NOT_FOUND for one that the server does not have."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service '{request.service}' here")
        return self._answer(request.service)

    async def Watch(self, request: Any, context: Context) -> None:
        """Tells it now, and again whenever it changes, until the server is closed."""
        told = None
        while True:
            changed = self._changed
            answer = self._answer(request.service)
            if answer != told:
                await context.write(answer)
                told = answer
            elif self._closed:
                return
            else:
                await changed.wait()

    def tell(self, *, serving: bool) -> None:
        """Changes what is told, unless it is closed."""
        if not self._closed and serving is not self._serving:
            self._serving = serving
            self._notify()

    def close(self) -> None:
        """Tells that nothing is served any more, and ends the calls of those who watch."""
        self._serving, self._closed = False, True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _answer(self, service: str) -> Any:
        if service not in self._services:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        return _Response(status=_Response.SERVING if self._serving else _Response.NOT_SERVING)
