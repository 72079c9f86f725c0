"""A program that is ready to be called."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from servax_worker.batch import Bucket, Key, Result
from servax_worker.batching import Batcher
from servax_worker.dispatch import Dispatcher
from servax_worker.executables import Executables
from servax_worker.metrics import CallMetrics
from servax_worker.runtime import Executable
from servax_worker.signature import SignatureChecker
from servax_worker.tuning import Plan

_KEYS = 1024  # whose buckets are kept in memory


class LoadedSignature:
    """One signature: how its requests are checked, and what runs them.

    A request of rows runs in the buckets of the plan, joined with others. Any other request counts
    as one row of which a batch takes one, whatever its shapes are.
    """

    def __init__(
        self,
        checker: SignatureChecker,
        executables: Executables[Executable],
        plan: Plan,
        dispatcher: Dispatcher,
        metrics: CallMetrics,
        *,
        joins: bool,
        max_queue: int,
        delay: float,
    ):
        """`plan` has the buckets of at least one key; `Batcher` explains the last three."""
        self.checker = checker
        self.executables = executables
        self.metrics = metrics
        self.batcher = Batcher(
            dispatcher,
            self._ready,
            side_by_side=plan.side_by_side,
            joins=joins,
            max_queue=max_queue,
            delay=delay,
            pace=plan.pace,
            report=metrics.ran,
        )
        self._plan = plan
        self._usual = list(plan.buckets.values())[-1]
        self._symbol = checker.row_symbol
        self._others = tuple(symbol for symbol in checker.symbols if symbol != self._symbol)
        self._buckets = lru_cache(_KEYS)(self._choose_buckets)

    async def call(
        self, inputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], deadline: float | None
    ) -> Result:
        """Runs checked inputs of the given sizes, which are compiled first if need be.

        Raises what `Executables.get` and `Batcher.call` raise, and InvalidInput where a constraint
        of the program allows no number of rows at these sizes.
        """
        key = tuple((symbol, sizes[symbol]) for symbol in self._others)
        rows = sizes[self._symbol] if self._symbol else 1
        buckets = self._buckets(key)
        if not buckets:
            self.checker.check_constraints(sizes)
            buckets = (Bucket(rows, 1.0),)
        size = next((bucket.rows for bucket in buckets if bucket.rows >= rows), buckets[-1].rows)
        executable = await self.executables.get(self._sizes(key, size))
        return await self.batcher.call(key, buckets, inputs, rows, (size, executable), deadline)

    def _sizes(self, key: Key, rows: int) -> dict[str, int]:
        return dict(key, **{self._symbol: rows}) if self._symbol else dict(key)

    def _ready(self, key: Key, rows: int) -> Executable | None:
        return self.executables.find(self._sizes(key, rows))

    def _choose_buckets(self, key: Key) -> tuple[Bucket, ...]:
        """The plan's buckets of a key, or else, as far as they are allowed, those of the last."""
        if key in self._plan.buckets:
            return self._plan.buckets[key]
        return tuple(
            bucket for bucket in self._usual if self.checker.allows(self._sizes(key, bucket.rows))
        )
