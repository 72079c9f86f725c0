"""Turns exceptions into gRPC statuses: the one place that knows both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError

from servax_registry import errors
from servax_registry.servicer import actor_of

_STATUS: dict[type[errors.RegistryError], grpc.StatusCode] = {
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BlobsNotStored: grpc.StatusCode.FAILED_PRECONDITION,
    errors.VersionInUse: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AliasMoved: grpc.StatusCode.ABORTED,
    errors.UploadConflict: grpc.StatusCode.ABORTED,
    errors.UploadIncomplete: grpc.StatusCode.ABORTED,
    errors.OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.DigestMismatch: grpc.StatusCode.DATA_LOSS,
    errors.BlobDamaged: grpc.StatusCode.DATA_LOSS,
    errors.TooManyTransfers: grpc.StatusCode.UNAVAILABLE,
    errors.StorageUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.StorageFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

# By whether requests and responses are streams.
_MAKERS: dict[tuple[bool, bool], Callable[..., "grpc.RpcMethodHandler[Any, Any]"]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}

# A status travels in the trailers, which may have 8 KiB; every non-ASCII byte takes three.
_MESSAGE_LIMIT = 2000

# How the names of methods begin that change nothing; workers call them over and over.
_READS = ("Find", "Get", "List", "Read")

_log = structlog.get_logger(__name__)


def status_of(error: errors.RegistryError) -> grpc.StatusCode:
    """Give the status code of the nearest class in the table."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


class ErrorInterceptor(grpc.ServerInterceptor):
    """Answers domain errors by the table, and any other exception as INTERNAL, without its text."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Wrap the method's handler, unless it is one of the services that come with gRPC."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/servax."):
            return handler
        answer = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        parse = handler.request_deserializer
        assert answer is not None, "a method has one of four kinds"
        assert parse is not None, "the generated modules tell how a request is read"
        # Parsed here, since gRPC would take a malformed message for a fault of ours.
        read = partial(map, parse) if handler.request_streaming else parse

        def respond(request: Any, context: grpc.ServicerContext) -> Any:
            with _answering(method, context) as asked:
                asked.append(read(request))
                return answer(asked[0], context)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _answering(method, context) as asked:
                asked.append(read(request))
                yield from answer(asked[0], context)

        make = _MAKERS[handler.request_streaming, handler.response_streaming]
        return make(
            stream if handler.response_streaming else respond,
            None,
            handler.response_serializer,
        )


@contextmanager
def _answering(method: str, context: grpc.ServicerContext) -> Iterator[list[Any]]:
    """Answer what the block raises; it puts the request into the list that it is given."""
    asked: list[Any] = []
    try:
        yield asked
    except errors.RegistryError as error:
        _report(method, context, asked, error)
        _abort(context, status_of(error), str(error))
    except DecodeError:
        _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"this is no request to {method}")
    except grpc.RpcError:
        raise  # The caller went away while its messages were being read; gRPC knows.
    except Exception:
        _log.exception("unexpected error", method=method)
        _abort(context, grpc.StatusCode.INTERNAL, "internal error; the registry's log tells more")


def _report(
    method: str, context: grpc.ServicerContext, asked: list[Any], error: errors.RegistryError
) -> None:
    """Log what an operator wants to know: changes that are refused, and damage."""
    name, status = method.rpartition("/")[2], status_of(error)
    if name.startswith(_READS) and status is not grpc.StatusCode.DATA_LOSS:
        return
    try:
        actor = actor_of(context)
    except errors.InvalidName:
        actor = context.peer()
    models = [request.model for request in asked if hasattr(request, "model")]
    facts = {"model": models[0]} if models else {}
    _log.warning("refused", call=name, actor=actor, **facts, status=status.name, reason=str(error))


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    encoded = message.encode()
    if len(encoded) > _MESSAGE_LIMIT:
        message = encoded[:_MESSAGE_LIMIT].decode(errors="ignore") + "…"
    context.abort(code, message)
    raise AssertionError("abort raises")
