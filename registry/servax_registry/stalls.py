"""Ends calls whose callers stand still, so that they give their threads back."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import grpc
import structlog

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class StallInterceptor(grpc.ServerInterceptor):
    """Ends every call that waits for its caller for longer than `patience` seconds.

    It waits for a message to come, or for one that was sent to be taken; what the registry itself
    takes does not count. A caller that still listens is told CANCELLED.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: dict[grpc.ServicerContext, tuple[float, str]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End no more calls."""
        self._closing.set()
        self._thread.join()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Watch the method's calls, unless they take no thread while they wait."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        answer: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        if getattr(answer, "experimental_non_blocking", False):
            return handler
        return _handler(handler, answer, method, self._wait)

    @contextmanager
    def _wait(self, context: grpc.ServicerContext, method: str) -> Iterator[None]:
        """Wait for the caller while the block runs."""
        with self._lock:
            self._waiting[context] = (time.monotonic(), method)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[context]

    def _watch(self) -> None:
        while not self._closing.wait(self._patience / 4):
            with self._lock:
                waiting = list(self._waiting.items())
            for context, (since, method) in waiting:
                if time.monotonic() - since > self._patience and context.is_active():
                    peer = context.peer()
                    context.cancel()
                    _log.warning("ended a call that stood still", method=method, peer=peer)


def _handler(
    handler: "grpc.RpcMethodHandler[Any, Any]",
    answer: Callable[..., Any],
    method: str,
    wait: Callable[..., AbstractContextManager[None]],
) -> "grpc.RpcMethodHandler[Any, Any]":
    """Make a handler that waits for the caller within `wait`.

    gRPC waits for a single request before it calls a handler; on the wire that is a stream of one,
    which the handler can wait for itself.
    """

    def waited(items: Iterable[T], context: grpc.ServicerContext) -> Iterator[T]:
        iterator = iter(items)
        while True:
            with wait(context, method):
                item = next(iterator, _END)
            if item is _END:
                return
            yield item

    def request_of(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        requests = waited(requests, context)
        if handler.request_streaming:
            return requests
        request = next(requests, _END)
        if request is _END:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method} takes a request; none came")
        return request

    def respond(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return answer(request_of(requests, context), context)

    def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for response in answer(request_of(requests, context), context):
            with wait(context, method):
                yield response

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(
            stream, handler.request_deserializer, handler.response_serializer
        )
    return grpc.stream_unary_rpc_method_handler(
        respond, handler.request_deserializer, handler.response_serializer
    )


_END: Any = object()
