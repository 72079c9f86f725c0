"""The loader reaches READY, waits for what may pass, and fails for what will not."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from servax.errors import DataLoss, DeadlineExceeded, NotFound, PermissionDenied, Unreachable
from servax.reference import ModelReference
from servax.types import Blob, Progress, ServedState, Signature, Version, WeightsShard
from servax_worker.assembly import Assembler
from servax_worker.errors import CannotServe, Delayed
from servax_worker.known import KnownVersions
from servax_worker.loader import Loader
from servax_worker.memory import MemoryBudget
from servax_worker.quarantine import Quarantine
from servax_worker.versions import LoadedVersions

PROGRAM, WEIGHTS = Blob("sha256:aa", 100), Blob("sha256:bb", 900)
SIGNATURE = Signature(
    "serving_default", PROGRAM, "f", (), (), (), ("cpu",), 1, 10, 3, "1.15.0", ""
)  # fmt: skip
VERSION = Version(
    "m", 7, (SIGNATURE,), (WeightsShard(WEIGHTS, ()),), "", {}, datetime.now(UTC), ("production",)
)


class World:
    """A registry, a blob cache and an assembler that fail as they are told, then succeed."""

    def __init__(self, directory, resolving=(), fetching=(), assembling=(), quarantined=()):
        self.known = KnownVersions(directory / "known")
        self.quarantine = Quarantine(quarantined)
        self.errors = {
            "version": list(resolving),
            "fetch": list(fetching),
            "assemble": list(assembling),
        }
        self.proved = []
        self.history = []
        self.pauses = []
        self.details = []
        self.chosen = lambda signature: signature

    def _fail(self, step):
        if self.errors[step]:
            raise self.errors[step].pop(0)

    def version(self, reference, timeout=None):
        """Stands in for the client's."""
        self._fail("version")
        return VERSION

    def fetch(self, blob, report=None):
        """Stands in for the blob cache's."""
        self._fail("fetch")
        report(Progress("download", "name", blob.size, blob.size))
        return Path(blob.digest)

    def is_proved(self, version):
        """Stands in for the assembler's."""
        return version in self.proved

    def choose_encodings(self, version):
        """Stands in for the assembler's."""
        return replace(version, signatures=tuple(map(self.chosen, version.signatures)))

    async def assemble(self, version, files, report):
        """Stands in for the assembler's."""
        self.files = files
        report(ServedState.COMPILING, "compiling 1 of 2")
        self._fail("assemble")
        report(ServedState.VERIFYING, "running 1 of 2")
        return SimpleNamespace(version=version)

    async def release(self):
        """Stands in for the assembler's."""

    async def sleep(self, seconds):
        """Notes a pause, and what the status says meanwhile."""
        self.pauses.append(seconds)
        self.details.append(self.loader.status.detail)

    def changed(self, loader):
        """Notes what the status says."""
        state = loader.status.state.name
        if [state] != self.history[-1:]:
            self.history.append(state)
        self.details.append(loader.status.detail)

    def load(self, reference="m@production"):
        """Loads to the end."""

        async def load():
            self.loader = loader = Loader(
                ModelReference.parse(reference),
                self,
                self.known,
                LoadedVersions(self, self, self.quarantine, sleep=self.sleep),
                self.changed,
                sleep=self.sleep,
            )
            await loader.run()
            return loader

        return asyncio.run(load())


@pytest.fixture
def world(tmp_path):
    """Makes worlds with one memory of what was served."""
    return partial(World, tmp_path)


def test_the_states_on_the_way(world):
    """All states come in order, and the status tells what is served."""
    world = world()
    loader = world.load()

    assert world.history == ["RESOLVING", "DOWNLOADING", "COMPILING", "VERIFYING", "READY"]
    assert loader.loaded.version == VERSION
    assert world.files == {"sha256:aa": Path("sha256:aa"), "sha256:bb": Path("sha256:bb")}
    told = [detail for detail in world.details if detail]
    assert told == [
        *("100 of 1000 bytes", "1000 of 1000 bytes"),
        *("compiling 1 of 2", "running 1 of 2"),
    ]
    status = loader.status
    assert (status.model, status.version, status.alias) == ("m", 7, "production")
    assert status.signatures == (SIGNATURE,)


def test_what_is_fetched_is_the_chosen_encoding(world):
    """Of a program with several encodings, the one that is to be run is fetched, and no other."""
    world = world()
    world.chosen = lambda signature: replace(signature, program=Blob("sha256:cc", 50))
    world.load()

    assert world.files.keys() == {"sha256:cc", "sha256:bb"}
    assert "950 of 950 bytes" in world.details


@pytest.mark.parametrize(
    "failures",
    [
        {"resolving": [Unreachable("the registry does not answer")]},
        {"resolving": [NotFound("there is no model 'm'")] * 3},
        {"fetching": [Unreachable("the registry does not answer")]},
        {"fetching": [Delayed("no room"), Unreachable("gone"), Delayed("no room")]},
        {"fetching": [DataLoss("not the bytes")] * 2},
    ],
)
def test_what_may_pass_is_waited_for(world, failures):
    """The loader tries again, says meanwhile why, and gets READY in the end."""
    world = world(**failures)
    (errors,) = failures.values()
    messages = [str(error) for error in errors]
    loader = world.load()

    assert loader.status.state is ServedState.READY
    assert len(world.pauses) == len(messages)
    for message in messages:
        assert any(d.startswith(f"{message}; trying again in") for d in world.details)


def test_pauses_grow_to_a_limit(world):
    """A registry that stays away is not asked more and more often, nor ever less than a limit."""
    world = world(resolving=[Unreachable("away")] * 12)
    world.load()

    assert 0.4 <= world.pauses[0] <= 0.6
    assert all(24 <= pause <= 36 for pause in world.pauses[7:])


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ({"resolving": [PermissionDenied("not for you")]}, "not for you"),
        ({"fetching": [NotFound("no such blob")]}, "no such blob"),
        ({"fetching": [DataLoss("not the bytes")] * 3}, "not the bytes"),
        ({"assembling": [CannotServe("it is for cuda")]}, "it is for cuda"),
        ({"quarantined": ["m:7"]}, "m:7 is quarantined"),
        ({"assembling": [ZeroDivisionError("secret")]}, "unexpected error; the worker's log"),
    ],
)
def test_what_will_not_pass_fails(world, failures, reason):
    """FAILED tells the reason, and an error that nobody foresaw tells none of its text."""
    loader = world(**failures).load()

    assert loader.status.state is ServedState.FAILED
    assert loader.status.detail.startswith(reason)
    assert loader.loaded is None


def test_only_ready_models_drain(world):
    """READY turns to DRAINING; FAILED stays."""
    ready, failed = world().load(), world(assembling=[CannotServe("no")]).load()
    ready.drain()
    failed.drain()

    assert ready.status.state is ServedState.DRAINING
    assert failed.status == replace(failed.status, state=ServedState.FAILED)


@pytest.mark.parametrize("error", [Unreachable("no answer"), DeadlineExceeded("no answer")])
@pytest.mark.parametrize("reference", ["m@production", "m:7", "m"])
def test_without_the_registry_the_last_version_is_served(world, reference, error):
    """A registry that does not answer is not waited for where a version was served before, and the
    detail says so; each reference has its own.
    """
    assert world().load(reference).status.detail == ""
    served = world(resolving=[error])
    loader = served.load(reference)

    assert (loader.status.state, loader.status.version) == (ServedState.READY, 7)
    assert loader.loaded.version == VERSION
    assert loader.status.detail == f"served as before, for {reference} is not known: no answer"
    assert served.pauses == []
    waiting = world(resolving=[error])
    assert waiting.load("m@other").status.state is ServedState.READY
    assert len(waiting.pauses) == 1


def test_what_the_registry_says_counts_more(world):
    """What the registry refuses is not served from memory, and what failed is not remembered."""
    world(assembling=[CannotServe("it is for cuda")]).load()
    waiting = world(resolving=[Unreachable("no answer")])
    assert waiting.load().status.detail == ""
    assert waiting.pauses

    failing = world(resolving=[PermissionDenied("not for you")]).load()
    assert (failing.status.state, failing.status.detail) == (ServedState.FAILED, "not for you")
    missing = world(resolving=[NotFound("no alias 'production'")] * 2)
    assert missing.load().status.detail == ""
    assert len(missing.pauses) == 2


def test_a_damaged_memory_is_as_good_as_none(world, tmp_path):
    """A remembered version that cannot be read is asked for."""
    world().load()
    (tmp_path / "known" / "m@production").write_bytes(b"\xff\xff")

    assert world().load().status.state is ServedState.READY


def test_a_version_without_a_callable_signature_is_refused():
    """A version with no signatures, or two of one name, is refused before anything is loaded."""
    assembler = Assembler(None, None, None, None, MemoryBudget(None), None)
    for signatures in ((), (VERSION.signatures[0],) * 2):
        with pytest.raises(CannotServe, match="one or more, each once"):
            asyncio.run(
                assembler.assemble(
                    replace(VERSION, signatures=signatures), {}, lambda state, detail: None
                )
            )
