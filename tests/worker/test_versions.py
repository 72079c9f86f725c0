"""Loaded versions are shared, and given back by the last who leaves."""

import asyncio
import weakref
from datetime import UTC, datetime

import pytest

from servax.types import ServedState, Version, VersionName
from servax_worker.errors import CannotServe
from servax_worker.quarantine import Quarantine
from servax_worker.versions import LoadedVersions

VERSION = Version("m", 1, (), (), "", {}, datetime.now(UTC))
OTHER = Version("m", 2, (), (), "", {}, datetime.now(UTC))


class Loaded:
    """What is assembled."""

    def __init__(self, version):
        self.version = version


class Assembler:
    """Assembles when it is let to."""

    def __init__(self):
        self.open = asyncio.Event()
        self.assembled = []
        self.released = asyncio.Event()
        self.error = None
        self.cancelled = 0

    async def assemble(self, version, files, report):
        """Reports a step, waits, and gives something that can be watched."""
        self.assembled.append(version.number)
        report(ServedState.COMPILING, "compiling")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return Loaded(version)

    def is_proved(self, version):
        """Stands in for the assembler's."""
        return False

    def choose_encodings(self, version):
        """Stands in for the assembler's."""
        return version

    async def release(self):
        """Notes that memory is given back."""
        self.released.set()


def scenario(body):
    """Runs a coroutine with an assembler and the versions that it assembles."""

    async def run():
        assembler = Assembler()
        versions = LoadedVersions(None, assembler, Quarantine())
        await body(assembler, versions)
        await versions.close()

    asyncio.run(run())


def ignore(state, detail):
    """Takes no interest."""


async def begun(assembler):
    """Waits until something is being assembled."""
    while not assembler.assembled:  # noqa: ASYNC110 # a stand-in that knows no events
        await asyncio.sleep(0)


def test_a_version_is_loaded_once_for_all():
    """Whoever wants a version gets the same, is told how far it is however late they come, and its
    memory is given back when the last one has left.
    """

    async def body(assembler, versions):
        told = {"first": [], "late": []}

        def telling(who):
            return lambda state, detail: told[who].append((state.name, detail))

        first = asyncio.create_task(versions.acquire(VERSION, telling("first")))
        await begun(assembler)
        late = asyncio.create_task(versions.acquire(VERSION, telling("late")))
        await asyncio.sleep(0)
        assembler.open.set()
        loaded = await first
        assert await late is loaded
        assert await versions.acquire(VERSION, ignore) is loaded
        assert told["first"][-1] == told["late"][0] == ("COMPILING", "compiling")
        assert assembler.assembled == [1]

        gone = weakref.ref(loaded)
        del loaded, first, late
        versions.release(VERSION)
        versions.release(VERSION)
        await asyncio.sleep(0.01)
        assert gone() is not None
        assert not assembler.released.is_set()
        versions.release(VERSION)
        await assembler.released.wait()
        assert gone() is None

    scenario(body)


def test_what_was_given_back_is_loaded_anew():
    """A version that everybody left is loaded again for who comes then; others are not touched."""

    async def body(assembler, versions):
        assembler.open.set()
        other = await versions.acquire(OTHER, ignore)
        first = await versions.acquire(VERSION, ignore)
        versions.release(VERSION)
        assert await versions.acquire(VERSION, ignore) is not first
        assert await versions.acquire(OTHER, ignore) is other
        assert assembler.assembled == [2, 1, 1]

    scenario(body)


def test_a_loading_ends_when_nobody_waits_any_more():
    """Who stops waiting does not stop the others; the last one does."""

    async def body(assembler, versions):
        waiting = [asyncio.create_task(versions.acquire(VERSION, ignore)) for _ in range(2)]
        await begun(assembler)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert assembler.cancelled == 0
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
        await assembler.released.wait()
        assert assembler.cancelled == 1

    scenario(body)


def test_a_failure_is_told_to_all_and_tried_again_for_others():
    """All who wait hear why; who comes afterwards has it loaded anew."""

    async def body(assembler, versions):
        waiting = [asyncio.create_task(versions.acquire(VERSION, ignore)) for _ in range(2)]
        await begun(assembler)
        assembler.error = CannotServe("it is for cuda")
        assembler.open.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert errors == [assembler.error] * 2
        assembler.error = None
        assert (await versions.acquire(VERSION, ignore)).version == VERSION
        assert assembler.assembled == [1, 1]

    scenario(body)


def test_what_is_quarantined_is_not_loaded_until_it_is_pardoned():
    """A version that ended the serving process is refused, others are not; a pardon is told."""
    changes = []

    async def run():
        assembler = Assembler()
        assembler.open.set()
        quarantine = Quarantine(["m:1"], lambda: changes.append("pardoned"))
        versions = LoadedVersions(None, assembler, quarantine)
        with pytest.raises(CannotServe, match="m:1 is quarantined"):
            await versions.acquire(VERSION, ignore)
        await versions.acquire(OTHER, ignore)
        for _ in range(2):
            versions.pardon(VersionName("m", 1))
        await versions.acquire(VERSION, ignore)
        assert assembler.assembled == [2, 1]
        assert quarantine.pardoned == {"m:1"}
        await versions.close()

    asyncio.run(run())
    assert changes == ["pardoned"]
