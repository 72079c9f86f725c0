"""Lets calls onto the device, in turn.

Small programs are called fastest by one thread at a time: more of them fight over the interpreter's
lock. Others gain from two calls side by side. So every source of calls takes a share of the device:
all of it, or half of it where two of its calls may run at once.

A call that takes less time than two threads need to wake each other runs on the event loop itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, Protocol, TypeVar

from servax_worker.errors import NotReady

T = TypeVar("T")


class Job(Protocol):
    """What runs in one turn."""

    @property
    def brief(self) -> bool:
        """Whether it ends so soon that everybody else can wait for it."""
        ...

    def run(self) -> None:
        """Runs, on a thread of its own unless it is brief; never raises."""
        ...

    def settle(self) -> None:
        """Tells how it ended, on the event loop; also where it was never run."""
        ...


class Source(Protocol):
    """What asks for turns."""

    @property
    def share(self) -> float:
        """How much of the device a turn takes: 1, or a power of a half."""
        ...

    def take(self) -> Job | None:
        """What to run now that the turn has come; None where nobody wants anything any more."""
        ...

    def close(self) -> None:
        """There will be no more turns."""
        ...


class Dispatcher:
    """Gives turns in the order in which they were asked for; all methods belong to one event loop.

    Turns run at once as long as their shares are at most 1 together.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(thread_name_prefix="dispatch")
        self._asking: deque[Source] = deque()
        self._free = 1.0
        self._giving = False
        self._closed = False

    def ask(self, source: Source) -> None:
        """Lets the source take its turn when it has come; a turn for every time it asks."""
        if self._closed:
            source.close()
            return
        self._asking.append(source)
        if not self._giving:  # a source may ask again while it takes its turn
            self._give()

    async def run(self, call: Callable[[], T], share: float = 1.0) -> T:
        """Runs one call and waits for it; a caller that leaves before it begins takes it back.

        Raises what the call raises, and NotReady where the dispatcher was closed.
        """
        single = _Single(call, share)
        del call  # the device may be busy for long: a caller that leaves takes its data along
        self.ask(single)
        return await single.future

    def close(self) -> None:
        """Takes no more calls and refuses those that have not begun; does not wait."""
        self._closed = True
        while self._asking:
            self._asking.popleft().close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _give(self) -> None:
        self._giving = True
        try:
            while self._asking and self._asking[0].share <= self._free:
                source = self._asking.popleft()
                if (job := source.take()) is not None:
                    self._begin(job, source.share)
        finally:
            self._giving = False

    def _begin(self, job: Job, share: float) -> None:
        self._free -= share
        if job.brief:
            job.run()
            # Whoever asked for the turn goes on first.
            asyncio.get_running_loop().call_soon(self._end, job, share)
            return
        running = asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        running.add_done_callback(partial(self._end, job, share))

    def _end(self, job: Job, share: float, _: "asyncio.Future[None] | None" = None) -> None:
        self._free += share
        self._give()  # first: the device is idle meanwhile
        job.settle()


class _Single(Generic[T]):
    """A source of one call, which is its own job."""

    brief = False

    def __init__(self, call: Callable[[], T], share: float):
        self.share = share
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls = [call]
        self._results: list[T] = []
        self._error: Exception = NotReady("the worker is shutting down; ask another")
        self.future.add_done_callback(lambda _: self._calls.clear())

    def take(self) -> "_Single[T] | None":
        return None if self.future.done() else self

    def run(self) -> None:
        try:
            self._results.append(self._calls.pop()())
        except Exception as error:
            self._error = error

    def settle(self) -> None:
        if self.future.done():
            return
        if self._results:
            self.future.set_result(self._results.pop())
        else:
            self.future.set_exception(self._error)

    def close(self) -> None:
        self.settle()
