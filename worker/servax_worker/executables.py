"""Which sizes of a program are compiled: a bounded set, filled at warm-up and on demand."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
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


class Executables(Generic[E]):
    """The executables of one program by the sizes of its symbols; the least recently used goes.

    All methods belong to one event loop.
    """

    def __init__(
        self, limit: int, make: Callable[[Sizes], Awaitable[E]], *, on_demand: bool = True
    ):
        """Keeps at most `limit` executables and makes new ones with `make`.

        Without `on_demand`, only `add` brings new ones.
        """
        self._limit = limit
        self._make = make
        self._on_demand = on_demand
        self._ready: OrderedDict[_Key, E] = OrderedDict()
        self._pending: dict[_Key, asyncio.Task[E]] = {}

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

    async def get(self, sizes: Sizes) -> E:
        """The executable for `sizes`, made first if need be.

        Callers that want the same new sizes wait for one compilation, which goes on when one of
        them leaves. Raises CannotServe where making on demand is off, and what `make` raises.
        """
        key = _key(sizes)
        if key in self._ready:
            self._ready.move_to_end(key)
            return self._ready[key]
        if not self._on_demand:
            raise CannotServe(
                f"nothing is compiled for {_text(key)} and compiling on demand is off; compiled "
                f"are {'; '.join(map(_text, sorted(self._ready)))}. Add the size with --warm-up"
            )
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._make_and_add(dict(sizes)))
            task.add_done_callback(lambda done: self._settle(key, done))
        return await asyncio.shield(task)

    async def _make_and_add(self, sizes: Sizes) -> E:
        executable = await self._make(sizes)
        self.add(executable)
        return executable

    def _settle(self, key: _Key, task: asyncio.Task[E]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # every caller may have left; then nobody else would look


def _key(sizes: Sizes) -> _Key:
    return tuple(sorted(sizes.items()))


def _text(key: _Key) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in key) or "fixed shapes"
