"""Waits out what may pass: the registry is away, the disk is full."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import structlog

from servax.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Internal,
    ResourceExhausted,
    ServaxError,
    Unavailable,
)
from servax_worker.errors import Delayed, WorkerError

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

_PASSING = (
    Unavailable,
    DeadlineExceeded,
    ResourceExhausted,
    Internal,
    Cancelled,  # proxies end calls so when they restart
    DataLoss,
    Delayed,
)
_DAMAGED_DOWNLOADS = 3

log = structlog.get_logger(__name__)


async def persist(
    what: object,
    step: Callable[[], Awaitable[T]],
    note: Callable[[str], None],
    *passing: type[Exception],
    sleep: Sleep = asyncio.sleep,
) -> T:
    """Repeats a step until it succeeds or fails in a way that will not pass, and raises that.

    `what` it is about goes to the log, and the reason for waiting to `note` too. `passing` are
    errors that pass besides those that always may; `sleep` is called between attempts.
    """
    damaged = 0
    for pause in _pauses():
        try:
            return await step()
        except (WorkerError, ServaxError) as error:
            damaged += isinstance(error, DataLoss)
            if not isinstance(error, (*_PASSING, *passing)) or damaged == _DAMAGED_DOWNLOADS:
                raise
            reason = str(error)
        log.warning("waiting", what=str(what), why=reason)
        note(f"{reason}; trying again in {pause:.0f} s")
        await sleep(pause)
    raise AssertionError("the pauses never end")


def _pauses() -> Iterator[float]:
    """Seconds between attempts: from half a second up to half a minute, spread by a fifth."""
    pause = 0.5
    while True:
        yield pause * random.uniform(0.8, 1.2)
        pause = min(pause * 2, 30.0)
