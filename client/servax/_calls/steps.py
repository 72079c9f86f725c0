"""The vocabulary in which both clients' calls are written.

A call is a generator: it yields the steps that need I/O, is given their results, and returns its
own. `Client` performs each step by blocking, `AsyncClient` by awaiting; what a call consists of,
its retries included, is written once, and tested without either.
"""

import enum
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from google.protobuf.message import Message

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Peer(enum.Enum):
    """Whom a call goes to."""

    REGISTRY = "registry"
    WORKER = "worker"


@dataclass(frozen=True)
class Method(Generic[RequestT, ResponseT]):
    """One method of the API, by its name in the stub of its service."""

    peer: Peer
    name: str


@dataclass(frozen=True)
class Call:
    """A remote call; the step's result is the response, or None where a `sink` takes responses.

    `timeout` is in seconds; None means no limit. `request_id` is what the service's log is to call
    it, if anything.
    """

    method: Method[Any, Any]
    request: Message | Iterator[Message]
    timeout: float | None
    sink: Callable[[Any], None] | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Sleep:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """A function that blocks: it reads or writes a file."""

    function: Callable[[], Any]


Step: TypeAlias = Call | Sleep | Work
Steps: TypeAlias = Generator[Step, Any, T]


def call(
    method: Method[RequestT, ResponseT],
    request: RequestT | Iterator[RequestT],
    timeout: float | None,
    request_id: str = "",
) -> Steps[ResponseT]:
    """One response to one request or many; an exception out of the requests is raised."""
    response: ResponseT = yield Call(method, request, timeout, request_id=request_id)
    return response


def receive(
    method: Method[RequestT, ResponseT],
    request: RequestT | Iterator[RequestT],
    sink: Callable[[ResponseT], None],
    timeout: float | None,
    request_id: str = "",
) -> Steps[None]:
    """Many responses, each given to `sink`, which may block, to one request or, meanwhile, many."""
    yield Call(method, request, timeout, sink, request_id)


def sleep(seconds: float) -> Steps[None]:
    """Pause."""
    yield Sleep(seconds)


def work(function: Callable[[], T]) -> Steps[T]:
    """Call a function that blocks."""
    result: T = yield Work(function)
    return result


class Requests(Iterator[Message]):
    """Hands requests to gRPC, which would log an exception out of them and lose it.

    Ends the stream on an exception instead, and raises it where the `with` block ends, in place of
    what the service made of the half that it got.
    """

    def __init__(self, requests: Iterator[Message]) -> None:
        self._requests = requests
        self._error: Exception | None = None

    def __next__(self) -> Message:
        if self._error is None:
            try:
                return next(self._requests)
            except StopIteration:
                raise
            except Exception as error:
                self._error = error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._error is not None and (kind is None or issubclass(kind, Exception)):
            raise self._error
