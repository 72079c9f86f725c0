"""gRPC's health protocol on threads.

The servicer that grpcio-health-checking has for them sends while it holds a lock that it also takes
when a watcher has left, on the one thread that gRPC needs to finish sending: who leaves at the
wrong moment stops the server for good. Here nothing is sent under a lock that gRPC's thread takes.
The protocol: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse
Send = Callable[["health_pb2.HealthCheckResponse | None"], None]


class Health(health_pb2_grpc.HealthServicer):
    """grpc.health.v1.Health: what is served is SERVING until it is closed, then NOT_SERVING."""

    def __init__(self, services: Sequence[str]) -> None:
        """`services` are full names; the empty one stands for the server as a whole."""
        self._services = frozenset(services)
        self._closed = False
        self._lock = threading.Lock()
        self._watchers: set[_Watcher] = set()

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Tell whether a service is served; NOT_FOUND for one that the server does not have."""
        if request.service not in self._services:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no service '{request.service}' here")
        return self._answer(request.service)

    def Watch(  # type: ignore[override] # gRPC gives what sends answers
        self, request: Any, context: grpc.ServicerContext, send_response_callback: Send
    ) -> None:
        """Tell it now, and again whenever it changes. It holds no thread meanwhile."""
        watcher = _Watcher(send_response_callback, request.service)
        with self._lock:
            self._watchers.add(watcher)
        if not context.add_callback(lambda: self._forget(watcher)):
            self._forget(watcher)
            return
        watcher.tell(self._answer)

    # Lets gRPC call it so, and take the thread back when it returns.
    Watch.experimental_non_blocking = True  # type: ignore[attr-defined]

    def close(self) -> None:
        """Tell watchers that nothing is served any more, and end their calls."""
        with self._lock:
            self._closed = True
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell(self._answer)
            watcher.end()

    def _answer(self, service: str) -> Any:
        if service not in self._services:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        return _Response(status=_Response.NOT_SERVING if self._closed else _Response.SERVING)

    def _forget(self, watcher: "_Watcher") -> None:
        with self._lock:
            self._watchers.discard(watcher)


class _Watcher:
    def __init__(self, send: Send, service: str) -> None:
        self._send = send
        self._service = service
        self._lock = threading.Lock()
        self._told: Any = None
        self._ended = False

    def tell(self, answer: Callable[[str], Any]) -> None:
        """Send what is true now, unless that was sent last."""
        with self._lock:
            now = answer(self._service)
            if now != self._told and not self._ended:
                self._told = now
                self._send(now)

    def end(self) -> None:
        """End the call."""
        with self._lock:
            self._ended = True
            self._send(None)
