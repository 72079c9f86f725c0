"""Turns exceptions into gRPC statuses: the one place that knows both."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from servax_worker import errors
from servax_worker.request_log import logged_call

_STATUS: dict[type[errors.WorkerError], grpc.StatusCode] = {
    errors.NotServed: grpc.StatusCode.NOT_FOUND,
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CannotServe: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ExecutionFailed: grpc.StatusCode.INTERNAL,
    errors.DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
}

# Where the clients of a protocol expect another one: Triton's full queues are UNAVAILABLE, which is
# what those who call it repeat.
_INSTEAD: dict[str, dict[type[errors.WorkerError], grpc.StatusCode]] = {
    "/inference.": {errors.Overloaded: grpc.StatusCode.UNAVAILABLE},
}

# A status travels in the trailers, which may have 8 KiB; every non-ASCII byte takes three.
_MESSAGE_BYTES = 2000

# Tells clients that the same request may be sent in parts.
_IN_PARTS = (("servax-in-parts", "PredictStream"),)

log = structlog.get_logger(__name__)

Handler = Any  # grpc's handlers are typed for the synchronous server only


def _trailers(error: Exception) -> tuple[tuple[str, str], ...]:
    if isinstance(error, errors.TooLarge):
        return _IN_PARTS
    if isinstance(error, errors.Overloaded):
        # What gRPC's own retries wait for (proposal A6, "Pushback"), where a client has told them
        # to repeat this status; in milliseconds.
        return (("grpc-retry-pushback-ms", str(math.ceil(error.retry_after * 1000))),)
    return ()


def status_of(error: Exception, method: str) -> tuple[grpc.StatusCode, str]:
    """The status and message for an error; one that nobody foresaw is logged, not told."""
    while isinstance(error, ExceptionGroup):  # of a stream's tasks; the first ended the others
        error = error.exceptions[0]
    instead = next((each for prefix, each in _INSTEAD.items() if method.startswith(prefix)), {})
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return instead.get(kind, _STATUS[kind]), _shortened(str(error))
    log.error("unexpected error", method=method, exc_info=error)
    return grpc.StatusCode.INTERNAL, "internal error; the worker's log tells more"


class GuardedServer:
    """Stands in for a server where services are added to it.

    Their calls that raise end with the status that the table has for the exception. An interceptor
    would take a tenth of the processor's time of a small call for that.
    """

    def __init__(self, server: grpc.aio.Server, *, log_requests: bool = False) -> None:
        self._server = server
        self._log_requests = log_requests

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service by their names."""
        guarded = {
            name: _guard(handler, f"/{service}/{name}", log_requests=self._log_requests)
            for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, guarded)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing: generated code adds the same methods by their names as well."""


def _guard(handler: Handler, method: str, *, log_requests: bool) -> Handler:
    answer = handler.unary_unary or handler.stream_stream
    parse = handler.request_deserializer
    check = _each_well_formed if handler.request_streaming else _well_formed

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:  # gRPC would log it as a fault of ours
            return error

    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await answer(check(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            status = status_of(error, method)
            trailers = _trailers(error)
        # abort leaves a cycle of the context, its exception and this frame, which would keep
        # what the request holds until Python collects garbage.
        del request
        await context.abort(*status, trailers)

    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    outer = logged_call(guarded, method) if log_requests else guarded
    return make(outer, parsed, handler.response_serializer)


def _well_formed(request: Any) -> Any:
    if isinstance(request, DecodeError):
        raise errors.InvalidInput(f"the request is not a message of the API: {request}")
    return request


async def _each_well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _well_formed(request)


def _shortened(message: str) -> str:
    encoded = message.encode(errors="backslashreplace")  # JSON may bring lone surrogates
    if len(encoded) <= _MESSAGE_BYTES:
        return encoded.decode()
    return encoded[:_MESSAGE_BYTES].decode(errors="ignore") + "…"
