"""Which sizes of a program are compiled: a bounded set, filled at warm-up and on demand."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from servax_worker.errors import CannotServe

Sizes = Mapping[str, int]
_Key = tuple[tuple[str, int], ...]

log = structlog.get_logger(__name__)


class Sized(Protocol):
    """What is kept: it knows the size of every symbol that it was compiled for."""

    @property
    def sizes(self) -> Sizes:
        """The sizes, by symbol."""
        ...


E = TypeVar("E", bound=Sized)


@dataclass(eq=False)
class _Wish(Generic[E]):
    """Sizes that callers wait for."""

    sizes: Sizes
    callers: int = 0
    begun: bool = False


class Executables(Generic[E]):
    """The executables of one program by the sizes of its symbols; the least recently used goes.

    All methods belong to one event loop.
    """

    def __init__(
        self,
        limit: int,
        make: Callable[[Sizes], Awaitable[E]],
        turn: asyncio.Lock,
        *,
        on_demand: bool = True,
    ):
        """Keeps at most `limit` executables and makes new ones with `make`, while it has the
        `turn`, which several programs may share.

        Without `on_demand`, only `add` brings new ones.
        """
        self._limit = limit
        self._make = make
        self._on_demand = on_demand
        self._ready: OrderedDict[_Key, E] = OrderedDict()
        self._turn = turn
        self._pending: dict[_Key, tuple[_Wish[E], asyncio.Task[E]]] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[E]:
        return iter(self._ready.values())

    def add(self, executable: E) -> None:
        """Keeps an executable as the most recently used one."""
        key = _key(executable.sizes)
        self._ready[key] = executable
        self._ready.move_to_end(key)
        while len(self._ready) > self._limit:
            dropped, _ = self._ready.popitem(last=False)
            log.info("executable dropped", sizes=dict(dropped), limit=self._limit)

    def find(self, sizes: Sizes) -> E | None:
        """The executable for `sizes`, if there is one by now."""
        key = _key(sizes)
        if key in self._ready:
            self._ready.move_to_end(key)
        return self._ready.get(key)

    async def get(self, sizes: Sizes) -> E:
        """The executable for `sizes`, made first if need be.

        Callers that want the same new sizes wait for one compilation. Once it has begun it goes on
        although they leave; before, it is not made for callers who all have left. Raises
        CannotServe where making on demand is off, and what `make` raises.
        """
        if (executable := self.find(sizes)) is not None:
            return executable
        key = _key(sizes)
        if not self._on_demand:
            raise CannotServe(
                f"nothing is compiled for {_text(key)} and compiling on demand is off; compiled "
                f"are {'; '.join(map(_text, sorted(self._ready)))}. Add the size with --warm-up"
            )
        if key not in self._pending:
            wish = _Wish[E](dict(sizes))
            task = asyncio.create_task(self._fulfil(wish))
            self._pending[key] = wish, task
            task.add_done_callback(lambda done: self._settle(key, done))
        wish, task = self._pending[key]
        wish.callers += 1
        try:
            return await asyncio.shield(task)
        finally:
            wish.callers -= 1
            if not wish.callers and not wish.begun:
                self._pending.pop(key, None)  # at once: who comes now has a wish of his own
                task.cancel()

    async def _fulfil(self, wish: _Wish[E]) -> E:
        async with self._turn:
            wish.begun = True
            executable = await self._make(wish.sizes)
        self.add(executable)
        return executable

    def _settle(self, key: _Key, task: asyncio.Task[E]) -> None:
        if self._pending.get(key, (None, None))[1] is task:
            del self._pending[key]
        if not task.cancelled():
            task.exception()  # every caller may have left; then nobody else would look


def _key(sizes: Sizes) -> _Key:
    return tuple(sorted(sizes.items()))


def _text(key: _Key) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in key) or "fixed shapes"
