"""Remote calls that block: all those of `Client`, and those of `AsyncClient` that send streams."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from servax._calls.endpoints import Endpoints
from servax._calls.methods import channel_options
from servax._calls.steps import Call, Peer, Requests
from servax._calls.stubs import Stub, stub
from servax.errors import FailedPrecondition, translated


class Channels:
    """The connections of one client, opened by the first call that needs them."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._closed = False
        self._opened: dict[Peer, tuple[grpc.Channel, Stub]] = {}

    def close(self) -> None:
        """Close what was opened; nothing can be called any more."""
        with self._lock:
            self._closed = True
            for channel, _ in self._opened.values():
                channel.close()
            self._opened.clear()

    def call(self, step: Call) -> Any:
        """Perform a call."""
        if step.sink is not None or isinstance(step.request, Iterator):
            return self.start(step).finish()
        with translated(self._endpoints.label(step.method.peer)):
            return self._method(step)(
                step.request,
                timeout=step.timeout,
                metadata=self._endpoints.metadata(step),
            )

    def start(self, step: Call) -> "Stream":
        """Begin a call that sends or receives a stream."""
        peer = step.method.peer
        metadata = self._endpoints.metadata(step)
        return Stream(self._method(step), step, self._endpoints.label(peer), metadata)

    def _method(self, step: Call) -> Any:
        peer = step.method.peer
        with self._lock:
            if self._closed:
                raise FailedPrecondition("this client is closed")
            if peer not in self._opened:
                address = self._endpoints.address(peer)
                channel = grpc.insecure_channel(address, options=channel_options(peer))
                self._opened[peer] = channel, stub(peer, channel)
            return getattr(self._opened[peer][1], step.method.name)


class Stream:
    """A call that has begun; another thread may cancel it."""

    def __init__(
        self, method: Any, step: Call, peer: str, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self._step = step
        self._peer = peer
        self._errors: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        request = step.request
        if isinstance(request, Iterator):
            request = self._errors = Requests(request)
        begin = method.future if step.sink is None else method
        self._call = begin(request, timeout=step.timeout, metadata=metadata)

    def finish(self) -> Any:
        """Wait for the response, or give the responses to the sink."""
        with self._errors, translated(self._peer):
            try:
                if self._step.sink is None:
                    return self._call.result()
                for response in self._call:
                    self._step.sink(response)
            finally:
                self._call.cancel()  # of no effect where the call has ended
        return None

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
