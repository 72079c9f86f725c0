"""What runs together: pieces of calls, in one turn on the device."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from servax_worker.rows import Arrays, join, restore, split

Key = tuple[tuple[str, int], ...]
"""The sizes, by symbol, that calls must have in common to be joined."""

Runner = Callable[[Arrays], Arrays]
"""Runs a batch of the rows that it was made for, on any thread; what it gives is read-only."""


class Bucket(NamedTuple):
    """A number of rows that a program is compiled for, and the seconds that a call then takes.

    A `brief` call runs on the event loop; the seconds of any other include the way to a thread.
    """

    rows: int
    seconds: float
    brief: bool = False


@dataclass(frozen=True)
class Result:
    """What a call gave, read-only, and how many seconds it waited for its first batch."""

    outputs: Arrays
    queue_seconds: float


@dataclass(frozen=True)
class Ran:
    """One batch: its rows, how many more it was padded by, of how many calls they are, how many of
    those begin with it, and the seconds that its steps took.
    """

    rows: int
    padding: int
    calls: int
    begun: int
    input_seconds: float
    compute_seconds: float
    output_seconds: float


@dataclass(eq=False)
class Group:
    """Calls that may be joined, in their order, and what can run them."""

    key: Key
    buckets: Sequence[Bucket]
    runners: dict[int, Runner] = field(default_factory=dict)
    calls: OrderedDict["Call", None] = field(default_factory=OrderedDict)


@dataclass(eq=False)
class Call:
    """A caller's rows, of which `taken` are or were in batches; `since` is when it came."""

    group: Group
    rows: int
    inputs: Arrays
    deadline: float | None
    since: float
    future: "asyncio.Future[Result]"
    taken: int = 0
    queue_seconds: float = 0.0
    _done: int = 0
    _parts: dict[int, Arrays] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many rows no batch has taken yet."""
        return self.rows - self.taken

    def finish(self, piece: "Piece", outputs: Arrays) -> None:
        """Takes the outputs of some of the rows; those of the last rows settle the call."""
        self._parts[piece.start] = outputs
        self._done += piece.rows
        if self._done == self.rows and not self.future.done():
            parts = [self._parts[start] for start in sorted(self._parts)]
            whole = parts[0] if len(parts) == 1 else restore(parts)
            self.future.set_result(Result(whole, self.queue_seconds))


class Piece(NamedTuple):
    """Consecutive rows of a call."""

    call: Call
    start: int
    rows: int

    @property
    def inputs(self) -> Arrays:
        """The rows."""
        if self.rows == self.call.rows:
            return self.call.inputs
        stop = self.start + self.rows
        return {name: array[self.start : stop] for name, array in self.call.inputs.items()}


@dataclass(eq=False)
class Batch:
    """A `dispatch.Job`: pieces that are padded to `rows` together.

    After it ran it has `ran` or `error`.
    """

    pieces: Sequence[Piece]
    rows: int
    runner: Runner
    settled: Callable[["Batch"], None]
    brief: bool = False
    ran: Ran | None = None
    error: Exception | None = None
    parts: Sequence[Arrays] = ()
    """The outputs, by piece."""

    def run(self) -> None:
        """Runs; never raises."""
        counts = [piece.rows for piece in self.pieces]
        whole = counts == [self.rows]
        try:
            began = time.monotonic()
            parts = [piece.inputs for piece in self.pieces]
            inputs = parts[0] if whole else join(parts, self.rows)
            joined = time.monotonic()
            outputs = self.runner(inputs)
            ran = time.monotonic()
            self.parts = [outputs] if whole else split(outputs, counts)
        except Exception as error:
            self.error = error
            return
        filled, ended = sum(counts), time.monotonic()
        begun = sum(1 for piece in self.pieces if not piece.start)
        self.ran = Ran(
            rows=filled,
            padding=self.rows - filled,
            calls=len(counts),
            begun=begun,
            input_seconds=joined - began,
            compute_seconds=ran - joined,
            output_seconds=ended - ran,
        )

    def settle(self) -> None:
        """Tells how it ended, on the event loop; also where it was never run."""
        self.settled(self)
