"""What can go wrong, and the one table from gRPC's status codes to it.

Everything that this package raises on purpose is a `ServaxError`; no `grpc.RpcError` leaves it.

    ServaxError
    ├── InvalidArgument           the service refuses what was asked
    │   ├── InvalidReference      not a model reference such as "name@production"
    │   └── InvalidTensor         not an array that can be sent, or not one that came intact
    ├── FileError                 a local file that cannot be read or written
    ├── NotFound                  no such model, version, alias, signature or blob
    ├── AlreadyExists
    ├── FailedPrecondition        right in itself, but not in the present state
    ├── Conflict                  somebody else was faster (gRPC: ABORTED)
    ├── OutOfRange
    ├── ResourceExhausted         too large, or too much at once
    │   └── MessageTooLarge       too large for one message; may be sent in parts
    ├── Unauthenticated
    ├── PermissionDenied
    ├── Unavailable               there, but not ready or shutting down
    │   └── Unreachable           no answer at all, or the connection broke
    ├── DeadlineExceeded          the timeout passed
    ├── Cancelled
    ├── DataLoss                  bytes that do not match their digest
    ├── Unimplemented             the service does not know this call
    └── Internal                  a fault in the service
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import grpc


class ServaxError(Exception):
    """Anything that goes wrong in Servax."""


class InvalidArgument(ServaxError):
    """What was asked for cannot be right in any state of the service."""


class InvalidReference(InvalidArgument):
    """A text that is not a model reference."""


class InvalidTensor(InvalidArgument):
    """An array that cannot be sent, or a message that does not hold the array it claims to."""


class FileError(ServaxError):
    """A local file cannot be read or written, or changed while it was read.

    `errno` is the system's number of the reason (`errno.ENOSPC`: the disk is full), where the
    system refused.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class NotFound(ServaxError):
    """A model, version, alias, signature or blob that does not exist."""


class AlreadyExists(ServaxError):
    """What was to be created is there already."""


class FailedPrecondition(ServaxError):
    """Right in itself, but not in the present state: something else has to happen first."""


class Conflict(ServaxError):
    """Somebody else changed the same thing meanwhile."""


class OutOfRange(ServaxError):
    """A position beyond what there is."""


class ResourceExhausted(ServaxError):
    """Larger than a limit, or more than the service can take now."""

    retry_after: float = 0.0
    """In how many seconds to try again; 0 where that does not help, or is not known."""


class MessageTooLarge(ResourceExhausted):
    """The request or its answer exceeds what the service sends in one message."""


class Unauthenticated(ServaxError):
    """The service wants to know who is calling."""


class PermissionDenied(ServaxError):
    """The caller may not do this."""


class Unavailable(ServaxError):
    """The service is there but cannot answer now; trying again may help."""


class Unreachable(Unavailable):
    """No answer came: nothing listens there, or the connection broke."""


class DeadlineExceeded(ServaxError):
    """No answer within the timeout."""


class Cancelled(ServaxError):
    """The call was cancelled."""


class DataLoss(ServaxError):
    """Bytes do not match their digest or their length."""


class Unimplemented(ServaxError):
    """The service does not know this call; it is probably another, or an older, service."""


class Internal(ServaxError):
    """A fault in the service; its log tells more."""


BY_STATUS: Mapping[grpc.StatusCode, type[ServaxError]] = MappingProxyType(
    {
        grpc.StatusCode.CANCELLED: Cancelled,
        grpc.StatusCode.UNKNOWN: Internal,
        grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
        grpc.StatusCode.NOT_FOUND: NotFound,
        grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
        grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
        grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
        grpc.StatusCode.ABORTED: Conflict,
        grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
        grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
        grpc.StatusCode.INTERNAL: Internal,
        grpc.StatusCode.UNAVAILABLE: Unavailable,
        grpc.StatusCode.DATA_LOSS: DataLoss,
        grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    }
)
"""Every status but OK."""

# The trailer by which a worker tells that the same request may be sent in parts.
_IN_PARTS = "servax-in-parts"

# The trailer by which a service tells when to try again, in milliseconds; of gRPC's proposal A6.
_PUSHBACK = "grpc-retry-pushback-ms"

# What gRPC itself says when a deadline passes; anything else is the service's words.
_GRPC_DEADLINE = "Deadline Exceeded"

# What it says where the other side reset a call without a status. A server that begins to stop does
# so to calls that came in but did not begin yet, and a registry to calls that stand still.
_GRPC_RESET = "CANCELLED"

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}

# gRPC reports a missing connection with the same status as a service that says it is not ready,
# and only its wording tells them apart (grpcio 1.76 to 1.85).
_NO_CONNECTION = re.compile(
    r"failed to connect to all addresses|errors resolving|DNS resolution failed|"
    r"Connection (?:refused|reset)|Socket closed|GOAWAY|Broken pipe|Stream removed|"
    r"No route to host|Network is unreachable|Cannot check peer|tcp handshaker shutdown|"
    r"connection attempt timed out|Endpoint closing|ping timeout",
    re.IGNORECASE,
)
_REASONS = (
    ("Connection refused", "connection refused"),
    ("http1.x server", "something else than gRPC answers there"),
    ("Domain name not found", "unknown host"),
    ("Misformatted domain name", "not an address"),
    ("Socket closed", "the connection broke"),
    ("Connection reset", "the connection broke"),
    ("Broken pipe", "the connection broke"),
)


def from_status(
    code: grpc.StatusCode | int, message: str, peer: str, retry_after: float = 0.0
) -> ServaxError:
    """Give the exception for a status that `peer` ("worker at 127.0.0.1:8500") answered.

    `retry_after` is in how many seconds the service wants to be asked again.
    """
    if isinstance(code, int):
        code = _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
    if code is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(message):
        reason = next((said for sign, said in _REASONS if sign in message), message)
        return Unreachable(f"the {peer} does not answer ({reason}): is it running?")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and message in ("", _GRPC_DEADLINE):
        return DeadlineExceeded(f"the {peer} did not answer in time")
    if code is grpc.StatusCode.CANCELLED and message == _GRPC_RESET:
        return Unavailable(f"the {peer} ended the call without an answer; try again")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unimplemented(f"the {peer} does not know this call: {message}")
    kind = BY_STATUS.get(code, Internal)
    error = kind(message or f"the {peer} answered {code.name} without a message")
    if isinstance(error, ResourceExhausted):
        error.retry_after = retry_after
    return error


@contextlib.contextmanager
def translated(peer: str) -> Iterator[None]:
    """Raise a `ServaxError` in place of any `grpc.RpcError` from a call to `peer`."""
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        pairs: Any = error.trailing_metadata() or ()
        trailers = dict(pairs)
        if _IN_PARTS in trailers:
            raise MessageTooLarge(details or "") from error
        pause = trailers.get(_PUSHBACK, "")
        retry_after = int(pause) / 1000 if pause.isdecimal() else 0.0
        raise from_status(code, details or "", peer, retry_after) from error
