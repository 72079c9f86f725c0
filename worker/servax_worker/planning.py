"""Decides what a signature is compiled for, and how it is called."""

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from servax.types import Signature
from servax_worker.batch import Bucket, Key
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.plans import Plans
from servax_worker.runtime import Executable, Runtime
from servax_worker.settings import Settings
from servax_worker.signature import SignatureChecker, fixed_rows
from servax_worker.tuning import Plan, Trial, tune
from servax_worker.warmup import choose_batches, choose_rows, choose_sizes

Compile = Callable[[Mapping[str, int]], Awaitable[Executable]]
Choice = tuple[dict[str, int], list[int]]
"""Sizes of all symbols but the one that counts rows, and the numbers of rows to try."""

_MOST_ROWS = 256
"""The most rows that are tried together where nobody says more."""


class Planner:
    """Chooses sizes, and measures how a signature is called fastest."""

    def __init__(self, runtime: Runtime, dispatcher: Dispatcher, plans: Plans, settings: Settings):
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._plans = plans
        self._settings = settings

    def served(self, signature: Signature) -> Signature:
        """The signature without its declaration of batching, where the operator turned it off.

        A fixed number of rows goes on being padded and cut, or else nobody could call it.
        """
        if self._settings.batching or fixed_rows(signature) is not None:
            return signature
        return replace(signature, batching=None)

    def choices(self, checker: SignatureChecker) -> list[Choice]:
        """What to compile for; raises CannotServe where that is nothing, or too much."""
        settings, name = self._settings, checker.signature.name
        if checker.row_symbol:
            choices = choose_batches(
                checker.symbols,
                checker.row_symbol,
                settings.warm_up,
                self._rows(checker),
                checker.allows,
            )
        else:
            sizes = choose_sizes(checker.symbols, settings.warm_up, checker.allows)
            choices = [(each, [1]) for each in sizes]
        if not choices:
            raise CannotServe(
                f"no small sizes of {', '.join(checker.symbols)} meet the constraints of signature "
                f"'{name}' ({'; '.join(map(str, checker.constraints))}): name some with --warm-up"
            )
        count = sum(len(rows) for _, rows in choices)
        if count > settings.max_executables:
            raise CannotServe(
                f"{count} sizes of signature '{name}' to warm up, at most "
                f"{settings.max_executables}: change --warm-up or --max-executables"
            )
        return choices

    def _rows(self, checker: SignatureChecker) -> Sequence[int]:
        """The numbers of rows to try."""
        assert checker.signature.batching is not None
        most, settings = checker.signature.batching.max_rows, self._settings
        if checker.fixed:
            return [most]
        if named := settings.warm_up.get(checker.row_symbol):
            return sorted({rows for rows in named if not most or rows <= most} or {most})
        wanted = settings.max_batch_rows or _MOST_ROWS
        rows = choose_rows(min(wanted, most or wanted))
        if settings.max_batch_rows:
            return rows
        others = (len(settings.warm_up.get(each, (1,))) for each in checker.symbols)
        return rows[: max(1, settings.max_executables // math.prod(others))]

    async def plan(
        self,
        checker: SignatureChecker,
        choices: Sequence[Choice],
        compile: Compile,
    ) -> tuple[Plan, list[Executable]]:
        """How to call the signature, and what is compiled for that.

        What was measured in the same circumstances before is not measured again.
        """
        circumstances = {
            "program": checker.signature.program.digest,
            "choices": choices,
            "as told": self._told(checker),
            "jax": self._runtime.jax_version,
            "device": [self._runtime.platform, self._runtime.device, _cores()],
        }
        symbol = checker.row_symbol
        if (plan := self._plans.find(circumstances)) is not None:
            return plan, [
                await compile(_with_rows(key, symbol, rows))
                for key, buckets in plan.buckets.items()
                for rows, *_ in buckets
            ]
        compiled: dict[tuple[Key, int], Executable] = {}
        plan = await self._tune(checker, choices, compile, compiled)
        self._plans.keep(circumstances, plan)
        return plan, [
            compiled[key, rows] for key, buckets in plan.buckets.items() for rows, *_ in buckets
        ]

    async def _tune(
        self,
        checker: SignatureChecker,
        choices: Sequence[Choice],
        compile: Compile,
        compiled: dict[tuple[Key, int], Executable],
    ) -> Plan:
        symbol, side_by_side, pace = checker.row_symbol, 1, 0.0
        buckets: dict[Key, tuple[Bucket, ...]] = {}
        refusal: InvalidInput | None = None
        for sizes, rows in choices:
            key = tuple((name, sizes[name]) for name in checker.symbols if name != symbol)

            async def prepare(count: int, key: Key = key) -> Trial:
                executable = await compile(_with_rows(key, symbol, count))
                compiled[key, count] = executable
                return Trial(
                    partial(executable, checker.example(executable.sizes)), executable.steady
                )

            try:
                side_by_side, buckets[key] = await tune(
                    rows,
                    prepare,
                    self._dispatcher,
                    most_at_once=_cores(),
                    cut=not self._told(checker),
                )
            except InvalidInput as error:
                # Whether a program takes a size is known only once it was compiled for it.
                refusal = error
                continue
            pace = min(seconds / rows for rows, seconds, _ in buckets[key]) / side_by_side
            if self._settings.max_batch_rows:  # as many as there are, whatever was measured
                buckets[key] = tuple(bucket._replace(seconds=1.0) for bucket in buckets[key])
        if not buckets:
            raise CannotServe(
                f"signature '{checker.signature.name}' compiles for none of {list(choices)}: "
                f"{refusal}"
            )
        return Plan(side_by_side, pace, buckets)

    def _told(self, checker: SignatureChecker) -> bool:
        """Whether the operator says how many rows run together."""
        return bool(self._settings.max_batch_rows) or checker.row_symbol in self._settings.warm_up


def _with_rows(key: Key, symbol: str, rows: int) -> dict[str, int]:
    return {**dict(key), symbol: rows} if symbol else dict(key)


def _cores() -> int:
    """How many processors this process may use; Python tells them itself only from 3.13 on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
