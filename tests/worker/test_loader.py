"""The loader reaches READY, waits for what may pass, and fails for what will not."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from servax.errors import DataLoss, NotFound, PermissionDenied, Unreachable
from servax.reference import ModelReference
from servax.types import Blob, Progress, ServedState, Signature, Version, WeightsShard
from servax_worker.assembly import Assembler
from servax_worker.errors import CannotServe, Delayed
from servax_worker.loader import Loader
from servax_worker.memory import MemoryBudget

PROGRAM, WEIGHTS = Blob("sha256:aa", 100), Blob("sha256:bb", 900)
SIGNATURE = Signature(
    "serving_default", PROGRAM, "f", (), (), (), ("cpu",), 1, 10, 3, "1.15.0", ""
)  # fmt: skip
VERSION = Version(
    "m", 7, (SIGNATURE,), (WeightsShard(WEIGHTS, ()),), "", {}, datetime.now(UTC), ("production",)
)


class World:
    """A registry, a blob cache and an assembler that fail as they are told, then succeed."""

    def __init__(self, resolving=(), fetching=(), assembling=()):
        self.errors = {
            "version": list(resolving),
            "fetch": list(fetching),
            "assemble": list(assembling),
        }
        self.history = []
        self.pauses = []
        self.details = []
        self.chosen = lambda signature: signature

    def _fail(self, step):
        if self.errors[step]:
            raise self.errors[step].pop(0)

    def version(self, reference):
        """Stands in for the client's."""
        self._fail("version")
        return VERSION

    def fetch(self, blob, report=None):
        """Stands in for the blob cache's."""
        self._fail("fetch")
        report(Progress("download", "name", blob.size, blob.size))
        self.details.append(self.loader.status.detail)
        return Path(blob.digest)

    def choose_encodings(self, version):
        """Stands in for the assembler's."""
        return replace(version, signatures=tuple(map(self.chosen, version.signatures)))

    async def assemble(self, version, files, report):
        """Stands in for the assembler's."""
        self.files = files
        report(ServedState.COMPILING, "compiling 1 of 2")
        self._fail("assemble")
        report(ServedState.VERIFYING, "running 1 of 2")
        return f"loaded {version.number}"

    async def sleep(self, seconds):
        """Notes a pause and what the state says meanwhile."""
        self.pauses.append(seconds)
        self.details.append(self.loader.status.detail)

    def load(self, reference="m@production"):
        """Loads to the end."""
        self.loader = Loader(
            ModelReference.parse(reference),
            self,
            self,
            self,
            lambda loader: self.history.append(loader.status.state.name),
            sleep=self.sleep,
        )
        asyncio.run(self.loader.run())
        return self.loader


def test_the_states_on_the_way():
    """All states come in order, and the status tells what is served."""
    world = World()
    loader = world.load()

    assert world.history == ["RESOLVING", "DOWNLOADING", "COMPILING", "VERIFYING", "READY"]
    assert loader.loaded == "loaded 7"
    assert world.files == {"sha256:aa": Path("sha256:aa"), "sha256:bb": Path("sha256:bb")}
    assert world.details == ["100 of 1000 bytes", "1000 of 1000 bytes"]
    status = loader.status
    assert (status.model, status.version, status.alias) == ("m", 7, "production")
    assert status.signatures == (SIGNATURE,)


def test_what_is_fetched_is_the_chosen_encoding():
    """Of a program with several encodings, the one that is to be run is fetched, and no other."""
    world = World()
    world.chosen = lambda signature: replace(signature, program=Blob("sha256:cc", 50))
    world.load()

    assert world.files.keys() == {"sha256:cc", "sha256:bb"}
    assert world.details == ["900 of 950 bytes", "950 of 950 bytes"]


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
def test_what_may_pass_is_waited_for(failures):
    """The loader tries again, says meanwhile why, and gets READY in the end."""
    world = World(**failures)
    (errors,) = failures.values()
    messages = [str(error) for error in errors]
    loader = world.load()

    assert loader.status.state is ServedState.READY
    assert len(world.pauses) == len(messages)
    for message in messages:
        assert any(d.startswith(f"{message}; trying again in") for d in world.details)


def test_pauses_grow_to_a_limit():
    """A registry that stays away is not asked more and more often, nor ever less than a limit."""
    world = World(resolving=[Unreachable("away")] * 12)
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
        ({"assembling": [ZeroDivisionError("secret")]}, "unexpected error; the worker's log"),
    ],
)
def test_what_will_not_pass_fails(failures, reason):
    """FAILED tells the reason, and an error that nobody foresaw tells none of its text."""
    loader = World(**failures).load()

    assert loader.status.state is ServedState.FAILED
    assert loader.status.detail.startswith(reason)
    assert loader.loaded is None


def test_only_ready_models_drain():
    """READY turns to DRAINING; FAILED stays."""
    ready, failed = World().load(), World(assembling=[CannotServe("no")]).load()
    ready.drain()
    failed.drain()

    assert ready.status.state is ServedState.DRAINING
    assert failed.status == replace(failed.status, state=ServedState.FAILED)


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
