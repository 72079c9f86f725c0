"""The one thread that calls the device.

One thread per process is the fastest way to call small programs: more of them fight over the
interpreter's lock, and a program that gains from more cores takes them by itself.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from servax_worker.errors import DeadlineExpired

T = TypeVar("T")


@dataclass(frozen=True)
class Executed(Generic[T]):
    """What a call gave, how long it waited for the thread and how long it ran, in seconds."""

    result: T
    queue_seconds: float
    compute_seconds: float


class Dispatcher:
    """Runs calls one after the other, in the order in which they come."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dispatch")

    async def run(self, call: Callable[[], T], deadline: float | None = None) -> Executed[T]:
        """Runs `call` on the thread and waits for it.

        A caller that leaves before the call begins takes it back; later it runs to its end.
        Raises DeadlineExpired where `time.monotonic()` passed `deadline` before the call began.
        """
        submitted = time.monotonic()
        # The thread may be busy for long: what a caller that left wanted must not wait in memory.
        wanted = [call]

        def timed() -> Executed[T]:
            began = time.monotonic()
            if deadline is not None and began >= deadline:
                waited = began - submitted
                raise DeadlineExpired(
                    f"the deadline passed while the request waited {waited:.3f} s for the device"
                )
            result = wanted.pop()()
            return Executed(result, began - submitted, time.monotonic() - began)

        del call
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, timed)
        except asyncio.CancelledError:
            wanted.clear()
            raise

    def close(self) -> None:
        """Takes no more calls and drops those that have not begun; does not wait."""
        self._executor.shutdown(wait=False, cancel_futures=True)
