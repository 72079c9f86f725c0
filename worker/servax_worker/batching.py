"""Joins the calls of one signature into batches while the device is busy.

    call ----> group of equal sizes ----> batch: rows of the first calls, padded to a bucket
                 |                          |
                 |                          +-- ran: every call gets its rows
                 |                          +-- failed: each of its calls runs once more, alone
                 +-- cancelled, or late: never reaches the device

Nothing waits for company while device and event loop are idle, unless a delay was asked for. Calls
may be cut anywhere between rows: one with many rows runs in several batches and is put together
again.

The device is a `Dispatcher`: it is asked for a turn, and when that has come takes the batch that is
best then. Nothing here knows what runs a batch. All methods belong to one event loop, save what
`Batch.run` does.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from servax_worker.batch import Batch, Bucket, Call, Group, Key, Piece, Ran, Result, Runner
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import DeadlineExpired, NotReady, Overloaded
from servax_worker.rows import Arrays

# A few microseconds each, and measured: with fewer, hardly any of 64 callers of a small model share
# a batch, because a request takes many steps from the network to here.
_QUIET_STEPS = 8
_LONELY = 0.001  # seconds without another call, after which nobody is likely to be on his way
_MARGIN = 1.25  # else half of those who wait as long as they can would be late
_SMOOTHING = 0.1  # how much of a new measurement the pace takes on


class Batcher:
    """The queue of one signature."""

    def __init__(
        self,
        device: Dispatcher,
        ready: Callable[[Key, int], Runner | None],
        *,
        side_by_side: int = 1,
        joins: bool = True,
        max_queue: int = 1000,
        delay: float = 0.0,
        pace: float = 0.0,
        report: Callable[[Ran], None] = lambda ran: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`ready` gives what runs a group's batches of so many rows, where that is at hand.

        `side_by_side` batches may run at once, a power of two. With `joins` off, every batch is of
        one caller. At most `max_queue` calls wait. A call waits up to `delay` seconds for others
        although the device is idle. `pace` is how many seconds a row will take when the queue is
        never empty, which is measured from then on. `report` is called after every batch.
        """
        self.share = 1 / side_by_side
        self._device = device
        self._ready = ready
        self._joins = joins
        self._max_queue = max_queue
        self._delay = delay
        self._pace = pace
        self._report = report
        self._clock = clock
        self._groups: OrderedDict[Key, Group] = OrderedDict()
        self._alone: deque[Batch] = deque()
        self._waiting = 0
        self._rows = 0  # that wait
        self._running = 0  # rows, too
        self._asked = False
        self._arrived = 0
        self._last_arrival = -math.inf
        self._gathering = False
        self._timer: asyncio.TimerHandle | None = None
        self._busy_since: float | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many calls have rows that no batch has taken yet."""
        return self._waiting

    async def call(
        self,
        key: Key,
        buckets: Sequence[Bucket],
        inputs: Arrays,
        rows: int,
        runner: tuple[int, Runner],
        deadline: float | None = None,
    ) -> Result:
        """Runs a call of so many rows, joined with others of the same key.

        `buckets`, ascending, are those of the key; of one of them, `runner` gives the rows and what
        runs them. The deadline is in the seconds of the clock. A caller that leaves takes its call
        along.

        Raises:
            Overloaded: too many calls wait, or those before this one outlast its deadline.
            DeadlineExpired: the deadline passed before the call began.
            NotReady: the device takes no more calls.
            Exception: what the call raised when it ran alone.
        """
        call = self._admit(key, buckets, inputs, rows, runner, deadline)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._remove(call)
            raise

    def take(self) -> Batch | None:
        """The next batch, for the device's turn that has come."""
        self._asked = False
        batch = self._next(self._clock())
        if self._alone or self._groups:
            self._ask()
        return batch

    def close(self) -> None:
        """Refuses all calls that wait, and all that come."""
        self._closed, self._asked = True, False
        calls = [batch.pieces[0].call for batch in self._alone]
        calls += [call for group in self._groups.values() for call in group.calls]
        self._alone.clear()
        for call in calls:
            self._fail(call, _closed())

    def _admit(
        self,
        key: Key,
        buckets: Sequence[Bucket],
        inputs: Arrays,
        rows: int,
        runner: tuple[int, Runner],
        deadline: float | None,
    ) -> Call:
        now = self._clock()
        if self._closed:
            raise _closed()
        wait = (self._rows + self._running) * self._pace
        if self._waiting >= self._max_queue:
            raise Overloaded(
                f"{self._waiting} requests wait for this signature (--max-queue of the worker); "
                f"they take about {wait:.3f} s",
                retry_after=wait,
            )
        until = now + _MARGIN * (wait + rows * self._pace)
        if deadline is not None and self._rows and until > deadline:
            raise Overloaded(
                f"the {self._waiting} requests that wait before this one take about {wait:.3f} s, "
                f"longer than its deadline allows",
                retry_after=wait,
            )
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, buckets)
        group.runners[runner[0]] = runner[1]
        future = asyncio.get_running_loop().create_future()
        call = Call(group, rows, inputs, deadline, now, future)
        group.calls[call] = None
        self._waiting += 1
        self._rows += rows
        self._arrived += 1
        lonely = now - self._last_arrival > _LONELY
        self._last_arrival = now
        if not self._joins or self._rows >= buckets[-1].rows:
            self._ask()
        elif not self._delay:
            if not self._asked and not self._gathering:
                self._gathering = True
                self._gather(self._arrived, _QUIET_STEPS - 1 if lonely else 0)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._time_out)
        return call

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._device.ask(self)

    def _gather(self, arrived: int = 0, quiet: int = 0) -> None:
        """Asks once the steps of the event loop bring no more calls.

        Whoever is on his way already joins; it matters where the loop is busier than the device.
        """
        quiet = quiet + 1 if self._arrived == arrived else 0
        if quiet == _QUIET_STEPS:
            self._gathering = False
            self._ask()
        else:
            asyncio.get_running_loop().call_soon(self._gather, self._arrived, quiet)

    def _time_out(self) -> None:
        self._timer = None
        self._ask()

    def _next(self, now: float) -> Batch | None:
        while self._alone:
            batch = self._alone.popleft()
            if self._awaited(batch.pieces[0].call, now):
                self._running += batch.pieces[0].rows
                return batch
        while self._groups:
            group = next(iter(self._groups.values()))
            calls = self._first_calls(group, now)
            if calls:
                return self._batch(group, calls, now)
        return None

    def _first_calls(self, group: Group, now: float) -> list[Call]:
        """The calls at the head of the group that fill its largest bucket; drops the dead ones."""
        first, dead, rows = [], [], 0
        for call in group.calls:
            if not self._awaited(call, now):
                dead.append(call)
                continue
            first.append(call)
            rows += call.left
            if rows >= group.buckets[-1].rows or not self._joins:
                break
        for call in dead:
            self._remove(call)
        return first

    def _batch(self, group: Group, calls: Sequence[Call], now: float) -> Batch:
        (rows, _, brief), runner = self._best(group, sum(call.left for call in calls))
        pieces, space = [], rows
        for call in calls:
            count = min(call.left, space)
            pieces.append(Piece(call, call.taken, count))
            if not call.taken:
                call.queue_seconds = now - call.since
            call.taken += count
            self._rows -= count
            self._running += count
            space -= count
            if not call.left:
                self._remove(call)
            if not space:
                break
        # Turns go round: between the calls that fill a batch by themselves, and between groups.
        if len(pieces) == 1 and calls[0].left:
            group.calls.move_to_end(calls[0])
        if group.calls:
            self._groups.move_to_end(group.key)
        return Batch(pieces, rows, runner, self._settle, brief=brief)

    def _best(self, group: Group, waiting: int) -> tuple[Bucket, Runner]:
        """The bucket that gets most of the waiting rows done per second, and what runs it."""
        best, highest = None, 0.0
        for bucket in group.buckets:
            rows = bucket.rows
            runner = self._runner(group, rows)
            if runner is not None:
                rate = min(waiting, rows) / bucket.seconds
                if best is None or rate >= highest:
                    best, highest = (bucket, runner), rate
            if rows >= waiting and best is not None:
                break
        assert best is not None, "every call brings a runner of one of the buckets"
        return best

    def _settle(self, batch: Batch) -> None:
        self._running -= sum(piece.rows for piece in batch.pieces)
        self._measure(batch)
        if batch.ran is not None:
            for piece, part in zip(batch.pieces, batch.parts, strict=True):
                piece.call.finish(piece, part)
            self._report(batch.ran)
        elif len(batch.pieces) == 1:
            self._fail(batch.pieces[0].call, batch.error or _closed())
        else:  # each piece alone shows which of them it was
            self._alone.extend(self._one(piece, batch) for piece in batch.pieces)
            self._ask()

    def _one(self, piece: Piece, failed: Batch) -> Batch:
        group = piece.call.group
        for rows, *_ in group.buckets:
            runner = self._runner(group, rows)
            if rows >= piece.rows and runner is not None:
                return Batch([piece], rows, runner, self._settle)
        return Batch([piece], failed.rows, failed.runner, self._settle)

    def _runner(self, group: Group, rows: int) -> Runner | None:
        return self._ready(group.key, rows) or group.runners.get(rows)

    def _measure(self, batch: Batch) -> None:
        """Keeps the pace, which only shows while calls wait from one batch to the next."""
        now = self._clock()
        if batch.ran is not None and self._busy_since is not None:
            pace = (now - self._busy_since) / batch.ran.rows
            self._pace += _SMOOTHING * (pace - self._pace)
        self._busy_since = now if self._groups else None

    def _awaited(self, call: Call, now: float) -> bool:
        if call.future.done():
            return False
        if call.deadline is not None and now >= call.deadline:
            call.future.set_exception(
                DeadlineExpired(
                    f"the deadline passed while the request waited {now - call.since:.3f} s for "
                    f"the device"
                )
            )
            return False
        return True

    def _fail(self, call: Call, error: Exception) -> None:
        self._remove(call)
        if not call.future.done():
            call.future.set_exception(error)

    def _remove(self, call: Call) -> None:
        """Takes a call out of the queue; what of it runs already goes on."""
        group = call.group
        if call not in group.calls:
            return
        del group.calls[call]
        self._waiting -= 1
        self._rows -= call.left
        if not group.calls:
            del self._groups[group.key]


def _closed() -> NotReady:
    return NotReady("the worker is shutting down; ask another")
