"""A follower turns to where its reference points, and keeps what answers until then."""

import asyncio
import contextlib
import weakref
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from servax.errors import NotFound, Unreachable
from servax.reference import ModelReference
from servax.types import ServedState, Version
from servax_worker.errors import CannotServe, NotServed
from servax_worker.follower import Follower
from servax_worker.known import KnownVersions
from servax_worker.metrics import Metrics
from servax_worker.predictor import Predictor, Request
from servax_worker.quarantine import Quarantine
from servax_worker.versions import LoadedVersions

VERSION = Version("m", 1, (), (), "", {}, datetime.now(UTC), ("production",))


class Loaded:
    """What the assembler gave for a version."""

    def __init__(self, version):
        self.version = version
        self.signatures = {}


class World:
    """A registry and an assembler that the test steers."""

    def __init__(self, directory, quarantined=()):
        self.known = KnownVersions(directory)
        self.quarantine = Quarantine(quarantined)
        self.number = 1
        self.error = None
        self.asked = 0
        self.assembled = []
        self.refused = set()
        self.proved = set()
        self.open = asyncio.Event()
        self.open.set()
        self.released = 0
        self.pause = asyncio.Event()

    def version(self, reference, timeout=None):
        """Stands in for the client's."""
        self.asked += 1
        if self.error:
            raise self.error
        return replace(VERSION, number=self.number)

    async def assemble(self, version, files, report):
        """Stands in for the assembler's."""
        self.assembled.append(version.number)
        report(ServedState.COMPILING, "compiling")
        await self.open.wait()
        if version.number in self.refused:
            raise CannotServe("it is for cuda")
        return Loaded(version)

    def is_proved(self, version):
        """Stands in for the assembler's."""
        return version.number in self.proved

    def choose_encodings(self, version):
        """Stands in for the assembler's."""
        return version

    async def release(self):
        """Stands in for the assembler's."""
        self.released += 1

    async def sleep(self, seconds):
        """Stands in for the pause before each question, and tells that it has come."""
        self.pause.set()
        self.pause = asyncio.Event()
        await asyncio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def following(self, reference="m@production", poll=5.0):
        """Runs a follower, and waits until it has loaded."""
        self.follower = Follower(
            ModelReference.parse(reference),
            *(self, self.known, LoadedVersions(self, self, self.quarantine)),
            lambda _: None,
            poll=poll,
            sleep=self.sleep,
        )
        task = asyncio.create_task(self.follower.run())
        await self.follower.loaded.wait()
        try:
            yield self.follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def states(self):
        """All versions and their states."""
        return [
            (loader.status.version, loader.status.state.name) for loader in self.follower.loaders
        ]

    async def until(self, *states):
        """Waits for exactly these; the suite's time limit ends a wait in vain."""
        while self.states() != list(states):
            await self.pause.wait()

    async def asked_again(self):
        """Waits until a question that began after this call was answered and acted upon."""
        before = self.asked
        while self.asked < before + 3:
            await self.pause.wait()


@pytest.fixture
def make_world(tmp_path):
    """Makes a registry and an assembler that the test steers."""
    return partial(World, tmp_path)


def test_the_old_version_answers_until_its_last_request(make_world):
    """A move loads beside the old version, swaps, and drops the old one when its last user left."""

    async def scenario():
        world = make_world()
        async with world.following() as follower:
            with follower.current.use() as old:
                world.open.clear()
                world.number = 2
                await world.until((1, "READY"), (2, "COMPILING"))
                world.open.set()
                await world.until((2, "READY"), (1, "DRAINING"))
                await world.asked_again()
                assert world.states() == [(2, "READY"), (1, "DRAINING")]
                assert world.released == 0
                gone = weakref.ref(old)
                del old
                assert gone() is not None
            await world.until((2, "READY"))
            assert world.released == 1
            assert gone() is None
            world.number = 1
            await world.until((1, "READY"))
        assert world.assembled == [1, 2, 1]

    asyncio.run(scenario())


def test_a_failed_candidate_is_not_tried_again(make_world):
    """It stays FAILED with its reason beside the old version until the reference points elsewhere;
    a later move back to it is another try.
    """

    async def scenario():
        world = make_world()
        world.refused = {2}
        async with world.following() as follower:
            world.number = 2
            await world.until((1, "READY"), (2, "FAILED"))
            await world.asked_again()
            assert follower.candidate.status.detail == "it is for cuda"
            assert world.assembled == [1, 2]
            world.number = 1
            await world.until((1, "READY"))
            world.refused = set()
            world.number = 2
            await world.until((2, "READY"))

    asyncio.run(scenario())


def test_a_candidate_is_abandoned_where_the_reference_moves_on(make_world):
    """What still loads when the reference points elsewhere never answers."""

    async def scenario():
        world = make_world()
        async with world.following():
            world.open.clear()
            world.number = 2
            await world.until((1, "READY"), (2, "COMPILING"))
            world.number = 3
            await world.until((1, "READY"), (3, "COMPILING"))
            world.number = 1
            await world.until((1, "READY"))
            world.open.set()
            await world.asked_again()
            assert world.states() == [(1, "READY")]

    asyncio.run(scenario())


def test_a_failed_first_version_is_replaced(make_world):
    """Where nothing answers yet, the version that the reference moves to takes its place."""

    async def scenario():
        world = make_world()
        world.refused = {1}
        async with world.following():
            assert world.states() == [(1, "FAILED")]
            world.open.clear()
            world.number = 2
            await world.until((2, "COMPILING"))
            world.open.set()
            await world.until((2, "READY"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "error",
    [Unreachable("no answer"), NotFound("no such alias"), ZeroDivisionError("secret")],
    ids=lambda error: type(error).__name__,
)
def test_a_registry_that_does_not_tell_changes_nothing(make_world, error):
    """The version goes on, its detail says that the reference is not known, and a later answer is
    followed.
    """

    async def scenario():
        world = make_world()
        async with world.following() as follower:
            world.error = error
            await world.asked_again()
            assert world.states() == [(1, "READY")]
            detail = follower.current.status.detail
            assert (str(error) in detail) is not isinstance(error, ZeroDivisionError)
            assert detail
            world.error = None
            await world.asked_again()
            assert follower.current.status.detail == ""
            world.number = 2
            await world.until((2, "READY"))

    asyncio.run(scenario())


@pytest.mark.parametrize(("reference", "poll"), [("m:1", 5.0), ("m@production", 0), ("m", 0)])
def test_what_is_pinned_is_asked_for_once(make_world, reference, poll):
    """A version by number, or any reference with polling off, never changes."""

    async def scenario():
        world = make_world()
        async with world.following(reference, poll):
            world.number = 2
            await asyncio.sleep(0.05)
            assert world.asked == 1
            assert world.states() == [(1, "READY")]

    asyncio.run(scenario())


def test_who_is_found_during_a_move(make_world):
    """By alias the current version is found; by number every ready one, but none that drains."""

    async def scenario():
        world = make_world()
        async with world.following() as follower:
            predictor = Predictor([follower], Metrics())

            async def found(**selector):
                # There are no signatures: the refusal names the version that was found.
                with pytest.raises(NotServed) as refusal:
                    await predictor.predict(Request("m", {}, **selector))
                return str(refusal.value)

            assert "m version 1 has no signature" in await found(version=1)
            with follower.current.use():
                world.number = 2
                await world.until((2, "READY"), (1, "DRAINING"))
                assert predictor.ready
                for selector in ({}, {"alias": "production"}, {"version": 2}):
                    assert "m version 2 has no signature" in await found(**selector)
                expected = "no version 1 of 'm' here; this worker serves m@production (version 2)"
                assert await found(version=1) == expected
                assert [status.version for status in predictor.status("m")] == [2, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("refused", [set(), {2}], ids=["good", "failing"])
def test_what_was_served_before_a_start_serves_until_the_new_version_is_ready(make_world, refused):
    """Started after a move to a version that was never loaded here, a follower has the one before
    answer until the new one is ready, or for good where that fails.
    """

    async def scenario():
        world = make_world()
        async with world.following():
            await world.until((1, "READY"))
        world.number, world.refused = 2, refused
        world.open.clear()
        task = asyncio.create_task(asyncio.sleep(0.05))
        task.add_done_callback(lambda _: world.open.set())
        async with world.following():
            if refused:
                await world.until((1, "READY"), (2, "FAILED"))
            else:
                await world.until((2, "READY"))
        assert world.assembled == [1, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize(("poll", "proved"), [(5.0, {2}), (0, set())])
def test_a_move_before_a_start_is_made_at_once(make_world, poll, proved):
    """A version that was proved here before is loaded at once after a move, and so is any version
    where the reference is not followed.
    """

    async def scenario():
        world = make_world()
        async with world.following():
            await world.until((1, "READY"))
        world.number, world.proved = 2, proved
        async with world.following(poll=poll):
            assert world.states() == [(2, "READY")]
        assert world.assembled == [1, 2]

    asyncio.run(scenario())


def test_what_was_served_and_fails_now_gives_way(make_world):
    """Where the version of before the start cannot be served any more, the new one takes over."""

    async def scenario():
        world = make_world()
        async with world.following():
            await world.until((1, "READY"))
        world.number, world.refused = 2, {1}
        async with world.following():
            await world.until((2, "READY"))

    asyncio.run(scenario())
