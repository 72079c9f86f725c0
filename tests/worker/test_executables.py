"""Executables are made once per size, kept within a limit, and survive callers that leave."""

import asyncio
from dataclasses import dataclass

import pytest

from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.executables import Executables


@dataclass(frozen=True)
class Made:
    """Stands in for an executable."""

    sizes: dict[str, int]


class Maker:
    """Makes executables when it is let."""

    def __init__(self):
        self.made = []
        self.gate = asyncio.Event()

    async def make(self, sizes):
        """Makes an executable; size 13 is refused."""
        self.made.append(sizes["b"])
        await self.gate.wait()
        if sizes["b"] == 13:
            raise InvalidInput("not 13")
        return Made(dict(sizes))


def test_concurrent_callers_share_one_compilation():
    """Many callers for one new size cause one compilation and get the same executable."""

    async def scenario():
        maker = Maker()
        executables = Executables(4, maker.make, asyncio.Lock())
        waiting = [asyncio.create_task(executables.get({"b": 3})) for _ in range(10)]
        await asyncio.sleep(0)
        maker.gate.set()
        results = await asyncio.gather(*waiting)
        assert maker.made == [3]
        assert all(result is results[0] for result in results)
        assert await executables.get({"b": 3}) is results[0]

    asyncio.run(scenario())


def test_a_caller_that_leaves_does_not_stop_the_compilation():
    """The compilation goes on for the others and is kept."""

    async def scenario():
        maker = Maker()
        executables = Executables(4, maker.make, asyncio.Lock())
        first, second = (asyncio.create_task(executables.get({"b": 3})) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        maker.gate.set()
        assert (await second).sizes == {"b": 3}
        assert maker.made == [3]
        assert len(executables) == 1

    asyncio.run(scenario())


def test_a_refused_size_is_told_to_everyone_and_not_kept():
    """An error reaches every caller that waits, and the next caller tries again."""

    async def scenario():
        maker = Maker()
        maker.gate.set()
        executables = Executables(4, maker.make, asyncio.Lock())
        results = await asyncio.gather(
            *(executables.get({"b": 13}) for _ in range(3)), return_exceptions=True
        )
        assert [str(result) for result in results] == ["not 13"] * 3
        with pytest.raises(InvalidInput):
            await executables.get({"b": 13})
        assert maker.made == [13, 13]
        assert len(executables) == 0

    asyncio.run(scenario())


def test_the_least_recently_used_goes():
    """Beyond the limit, what was not used for longest is dropped and made again when needed."""

    async def scenario():
        maker = Maker()
        maker.gate.set()
        executables = Executables(2, maker.make, asyncio.Lock())
        for size in (1, 2, 1, 3):
            await executables.get({"b": size})
        assert sorted(made.sizes["b"] for made in executables) == [1, 3]
        await executables.get({"b": 2})
        assert maker.made == [1, 2, 3, 2]

    asyncio.run(scenario())


def test_without_demand_there_is_only_what_was_added():
    """Where compiling on demand is off, an error lists the sizes that there are."""

    async def scenario():
        maker = Maker()
        executables = Executables(4, maker.make, asyncio.Lock(), on_demand=False)
        executables.add(Made({"b": 1}))
        executables.add(Made({"b": 8}))
        assert (await executables.get({"b": 8})).sizes == {"b": 8}
        with pytest.raises(CannotServe, match=r"nothing is compiled for b=3 .* b=1; b=8"):
            await executables.get({"b": 3})
        assert maker.made == []

    asyncio.run(scenario())


def test_what_nobody_waits_for_any_more_is_not_compiled():
    """Sizes whose callers all left before their turn are dropped; one that had begun is kept; who
    comes back gets an executable.
    """

    async def scenario():
        maker = Maker()
        executables = Executables(4, maker.make, asyncio.Lock())
        calls = [asyncio.create_task(executables.get({"b": size})) for size in (1, 2, 2, 3)]
        await asyncio.sleep(0.01)
        for call in calls[:3]:
            call.cancel()
        await asyncio.sleep(0)
        again = asyncio.create_task(executables.get({"b": 2}))
        maker.gate.set()
        assert (await calls[3]).sizes == {"b": 3}
        assert (await again).sizes == {"b": 2}
        assert maker.made == [1, 3, 2]
        await executables.get({"b": 1})
        assert maker.made == [1, 3, 2]

    asyncio.run(scenario())
