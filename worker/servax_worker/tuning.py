"""Finds out how a signature is called fastest: how many rows at a time, and how many side by side.

More rows at a time are faster as long as the device has idle parts; beyond that they only make
everybody wait, and some programs get slower. Whether two calls at once pay depends on how well one
uses the device's cores. Neither can be told from a program, so both are measured.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import structlog

from servax_worker.batch import Bucket, Key
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import InvalidInput, OutOfMemory

_BRIEF = 0.000_25  # seconds; threads that wake each other take as long
_CLEARLY = 1.05  # a gain below that may be noise, and is not worth the longer wait
_CLEARLY_WORSE = 0.9
_SPAN = 0.02  # seconds that a measurement takes at least
_REPETITIONS = 3

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """How to call a signature: ascending buckets for every key, and how many calls at once.

    `pace` is the seconds that a row takes when there is no end of them.
    """

    side_by_side: int
    pace: float
    buckets: Mapping[Key, tuple[Bucket, ...]]


@dataclass(frozen=True)
class Trial:
    """A call to measure; a `steady` one takes about as long for whatever its inputs hold."""

    call: Callable[[], object]
    steady: bool


async def tune(
    rows: Sequence[int],
    prepare: Callable[[int], Awaitable[Trial]],
    dispatcher: Dispatcher,
    *,
    most_at_once: int,
    cut: bool,
) -> tuple[int, tuple[Bucket, ...]]:
    """How many calls side by side are fastest, and the buckets among the ascending `rows`.

    `prepare` makes a call of so many rows. With `cut`, what is not clearly faster than fewer rows
    is left out, and not even prepared once it has shown twice; otherwise all rows are buckets.
    Rows that the program refuses are left out; what memory has no room for ends the list.

    Raises InvalidInput or OutOfMemory where no rows are left, and what the calls raise.
    """
    trials: dict[int, Trial] = {}
    seconds: dict[int, float] = {}
    refusal: InvalidInput | OutOfMemory | None = None
    best, misses = 0.0, 0
    for count in rows:
        try:
            trial = await prepare(count)
            seconds[count] = await _measure(dispatcher, trial, 1)
        except InvalidInput as error:
            log.warning("a warm-up size is refused", rows=count, reason=str(error))
            refusal = error
            continue
        except OutOfMemory as error:
            log.warning("no room for more rows", rows=count, reason=str(error))
            refusal = error
            break
        trials[count] = trial
        rate = count / seconds[count]
        misses = 0 if rate > _CLEARLY * best else misses + 1
        best = max(best, rate)
        if cut and (misses == 2 or rate < _CLEARLY_WORSE * best):
            break
    if not seconds:
        assert refusal is not None, "there are rows to try"
        raise refusal

    side_by_side = 1
    while 2 * side_by_side <= most_at_once:
        at = _useful(seconds)
        if _is_brief(trials[at], seconds[at]):
            break
        more = await _measure(dispatcher, trials[at], 2 * side_by_side)
        if 2 * seconds[at] <= _CLEARLY * more:
            break
        side_by_side *= 2
        kept = [count for count in seconds if not cut or count <= at]
        seconds = {count: await _measure(dispatcher, trials[count], side_by_side) for count in kept}
    most = _useful(seconds) if cut else max(seconds)
    return side_by_side, tuple(
        Bucket(count, each, _is_brief(trials[count], each))
        for count, each in seconds.items()
        if count <= most
    )


def _is_brief(trial: Trial, seconds: float) -> bool:
    return trial.steady and seconds <= _BRIEF


def _useful(seconds: Mapping[int, float]) -> int:
    """The fewest rows that get done about as fast as at the best number of them."""
    best = max(count / each for count, each in seconds.items())
    return min(count for count, each in seconds.items() if count / each * _CLEARLY >= best)


async def _measure(dispatcher: Dispatcher, trial: Trial, side_by_side: int) -> float:
    """The seconds that a call takes while so many of them run, with what it takes to get there.

    For a small program that is most of it, unless it is brief, which does without. It is the least
    of several measurements: other work on the machine only ever makes them longer.
    """
    alone = await dispatcher.run(partial(_alone, trial.call))
    if side_by_side == 1 and _is_brief(trial, alone):
        return alone

    async def repeat(end: float) -> int:
        count = 0
        while not count or time.perf_counter() < end:
            await dispatcher.run(trial.call, 1 / side_by_side)
            count += 1
        return count

    least = math.inf
    for _ in range(_REPETITIONS):
        began = time.perf_counter()
        counts = await asyncio.gather(*(repeat(began + _SPAN) for _ in range(side_by_side)))
        elapsed = time.perf_counter() - began
        least = min(least, side_by_side * elapsed / sum(counts))
    return least


def _alone(call: Callable[[], object]) -> float:
    """The median seconds of a call on a thread that does nothing else."""
    call()  # the first one finds cold caches
    seconds: list[float] = []
    end = time.perf_counter() + _SPAN
    while not seconds or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return median(seconds)
