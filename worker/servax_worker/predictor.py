"""Finds the model and runs a request, free of any transport."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from servax.types import DEFAULT_SIGNATURE, ServedState, ServedVersion
from servax_worker.errors import CannotServe, NotReady, NotServed, TooLarge, WorkerError
from servax_worker.follower import Follower
from servax_worker.loader import Loader
from servax_worker.metrics import Metrics
from servax_worker.statistics import Statistics


@dataclass(frozen=True)
class Request:
    """A call: of a version by number or by alias, or of the newest that is ready.

    An alias is answered by the version that is current when the call comes. A version that is
    draining gets no new calls, not even by its number: else it might drain for ever.

    `outputs` are the names to return, all when empty. `deadline` is in the seconds of
    `time.monotonic()`. `max_answer_bytes` is the most that the answer may take.
    """

    model: str
    inputs: Mapping[str, NDArray[Any]]
    version: int | None = None
    alias: str | None = None
    signature: str = DEFAULT_SIGNATURE
    outputs: Sequence[str] = ()
    deadline: float | None = None
    max_answer_bytes: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a call gave, and what gave it; the arrays are read-only."""

    model: str
    version: int
    signature: str
    outputs: Mapping[str, NDArray[Any]]


class Predictor:
    """Answers requests with what the followers have loaded."""

    def __init__(self, followers: Sequence[Follower], metrics: Metrics):
        self._followers = followers
        self._metrics = metrics
        self._draining = False
        self._running = 0
        self._idle = asyncio.Event()

    async def predict(self, request: Request) -> Answer:
        """Runs one request.

        A caller that leaves, or whose deadline passes, before the device's turn costs it nothing.

        Raises:
            NotServed, NotReady: as their names say.
            CannotServe: the version failed to load, or the size is not compiled.
            InvalidInput: the inputs do not fit.
            TooLarge: the answer would be; nothing was executed.
            Overloaded, DeadlineExpired, OutOfMemory, ExecutionFailed: as their names say.
        """
        labels = ["", "", ""]
        with self._counted(labels) as began, self._find(request).use() as loaded:
            version = loaded.version
            labels[:] = version.model, str(version.number), request.signature
            signature = loaded.signatures.get(request.signature)
            if signature is None:
                labels[2] = ""
                raise NotServed(
                    f"{version.model} version {version.number} has no signature "
                    f"'{request.signature}'; it has {', '.join(sorted(loaded.signatures))}"
                )
            sizes = signature.checker.check(request.inputs)
            wanted = signature.checker.select(request.outputs)
            size, limit = signature.checker.output_bytes(wanted, sizes), request.max_answer_bytes
            if limit is not None and size > limit:
                raise TooLarge(
                    f"the answer has {size} bytes, one message takes {limit}; ask with "
                    f"servax.v1.Prediction/PredictStream, which gives it in parts"
                )
            result = await signature.call(request.inputs, sizes, request.deadline)
            signature.metrics.answered(time.monotonic() - began, result.queue_seconds)
            outputs = {name: result.outputs[name] for name in wanted}
            return Answer(version.model, version.number, request.signature, outputs)

    def status(self, model: str = "") -> list[ServedVersion]:
        """What is served, and in which state; of one model or of all. Raises NotServed.

        Where a reference moves, its current version comes first, then the one that it moved to,
        then those that are draining.
        """
        found = [
            loader.status
            for follower in self._followers
            if model in ("", follower.reference.name)
            for loader in follower.loaders
        ]
        if not found and model:
            raise NotServed(f"no model '{model}' here; {self._served()}")
        return found

    def served(
        self, model: str, version: int | None = None, alias: str | None = None
    ) -> ServedVersion:
        """The version that would answer such a request now; raises NotServed, NotReady and
        CannotServe, as `predict` does.
        """
        return self._find(Request(model, {}, version, alias)).status

    def waiting(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """How many requests wait for the device, by model, version and signature."""
        for follower in self._followers:
            for loader in follower.loaders:
                if (loaded := loader.loaded) is not None:
                    for name, signature in loaded.signatures.items():
                        labels = loaded.version.model, str(loaded.version.number), name
                        yield labels, signature.batcher.waiting

    @property
    def statistics(self) -> Statistics:
        """How often versions were called."""
        return self._metrics.statistics

    @property
    def ready(self) -> bool:
        """Whether everything that the worker was told to serve has a READY version."""
        return all(
            follower.current.status.state is ServedState.READY for follower in self._followers
        )

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the worker is shutting down."""
        return self._draining

    def drain(self) -> None:
        """Refuses requests from now on; those in flight go on."""
        self._draining = True
        if not self._running:
            self._idle.set()
        for follower in self._followers:
            follower.drain()

    async def wait_until_idle(self, seconds: float) -> None:
        """Waits, while draining, until the last request has ended, or the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def _find(self, request: Request) -> Loader:
        if self._draining:
            raise NotReady("the worker is shutting down; ask another")
        named = [each for each in self._followers if each.reference.name == request.model]
        if not named:
            raise NotServed(f"no model '{request.model}' here; {self._served()}")
        if request.alias is not None:
            matching = [each.current for each in named if each.reference.alias == request.alias]
        elif request.version is not None:
            # A version that is not resolved yet (0) may turn out to be the one.
            matching = [
                loader
                for each in named
                for loader in (each.current, each.candidate)
                if loader is not None and loader.version in (request.version, 0)
            ]
        else:
            matching = [each.current for each in named]
        ready = [loader for loader in matching if loader.status.state is ServedState.READY]
        if ready:
            return max(ready, key=lambda loader: loader.version)
        raise self._why_not(request, matching)

    def _why_not(self, request: Request, matching: Sequence[Loader]) -> WorkerError:
        if not matching:
            wanted = (
                f"alias '{request.alias}'"
                if request.alias is not None
                else f"version {request.version}"
            )
            return NotServed(f"no {wanted} of '{request.model}' here; {self._served()}")
        states = "; ".join(
            f"{_name(loader)} is {loader.status.state.name}"
            + (f" ({loader.status.detail})" if loader.status.detail else "")
            for loader in matching
        )
        if all(loader.status.state is ServedState.FAILED for loader in matching):
            return CannotServe(states)
        return NotReady(f"not ready: {states}")

    def _served(self) -> str:
        names = ", ".join(_name(follower.current) for follower in self._followers)
        return f"this worker serves {names}"

    @contextmanager
    def _counted(self, labels: list[str]) -> Iterator[float]:
        """Counts how a request fails; `labels` are read then. Gives when it began."""
        self._running += 1
        began = time.monotonic()
        try:
            yield began
        except BaseException as error:
            result = "Unexpected"
            if isinstance(error, asyncio.CancelledError):
                result = "Cancelled"
            elif isinstance(error, WorkerError):
                result = type(error).__name__
            self._metrics.requests.labels(*labels, result).inc()
            if model := labels[0]:
                failure = self._metrics.statistics.of(model, int(labels[1])).failure
                failure.add(time.monotonic() - began)
            raise
        finally:
            self._running -= 1
            if self._draining and not self._running:
                self._idle.set()


def _name(loader: Loader) -> str:
    if loader.version and loader.reference.version is None:
        return f"{loader.reference} (version {loader.version})"
    return str(loader.reference)
