"""Trying programs in the background."""

import hashlib
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace

import jax
import pytest

from servax_proto.v1 import registry_pb2
from servax_registry.artifact import Blob, ProgramSource, Publication, Trial
from servax_registry.convert import size_of
from servax_registry.errors import StorageFull, StorageUnavailable
from servax_registry.examiner import Examiner
from servax_registry.inspection import try_program
from servax_registry.inspection.exported import read_program
from servax_registry.service import Registry
from servax_registry.store.trials import Trials

PASSED = Trial("passed", size=1, ran=True, flops=12)


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def url(request, tmp_path):
    """Each kind of database."""
    if request.param == "PostgreSQL":
        return request.getfixturevalue("postgresql")
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Look for what changed all the time."""
    monkeypatch.setattr("servax_registry.examiner._INTERVAL", 0.01)


@pytest.fixture
def publish(database, blobs, constant):
    """Publish a real program, of which there are as many as there are salts."""
    registry = Registry(database, blobs, size_of=size_of, inspect=read)

    def publish(salt=b""):
        data = constant + 4 * salt
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        registry.write_blob(Blob(digest, len(data)), [(0, data)])
        return registry.publish_version(Publication("m", (ProgramSource("s", digest),)))

    publish.registry = registry
    return publish


def read(file):
    """Read a program in this process."""
    return read_program(file.read())


def attempts(*outcomes):
    """An attempt that gives, or raises, one after the other; the last one for ever."""
    seen, remaining = [], list(outcomes)

    def attempt(file, program, *, limits, cancelled):
        seen.append(file.read())
        outcome = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return seen, attempt


def until(condition):
    """Wait until something holds, and give it."""
    while not (found := condition()):
        time.sleep(0.005)
    return found


def trial_of(publish, number):
    """What is known of a version's trial."""
    return publish.registry.get_version("m", number).signatures[0].trial


def test_every_program_is_tried_once_newest_first(publish, database, blobs, constant):
    """What is there already and what is published later is tried, each program once."""
    publish(b"1")
    publish(b"2")
    assert trial_of(publish, 1) is None
    seen, attempt = attempts(PASSED)

    with closing(Examiner(database, blobs, "1.0", attempt=attempt)):
        until(lambda: trial_of(publish, 1))
        publish(b"3")
        publish(b"3")
        until(lambda: trial_of(publish, 4))

    assert seen == [constant + 4 * salt for salt in (b"2", b"1", b"3")]
    assert trial_of(publish, 4) == replace(PASSED, jax_version="1.0")


def test_another_jax_tries_what_did_not_pass(publish, database, blobs):
    """A failed or impossible trial is repeated by a registry with another JAX, a passed one not."""
    publish(b"1")
    publish(b"2")
    publish(b"3")
    outcomes = (PASSED, Trial("failed", "it hangs"), Trial("impossible", "too new"))
    for version, expected in (("1.0", 3), ("1.0", 0), ("2.0", 2)):
        seen, attempt = attempts(*outcomes)
        with closing(Examiner(database, blobs, version, attempt=attempt)):
            until(lambda seen=seen, expected=expected: len(seen) == expected)
            until(lambda: all(trial_of(publish, number) for number in (1, 2, 3)))
        assert len(seen) == expected

    assert [trial_of(publish, number).jax_version for number in (1, 2, 3)] == ["2.0", "2.0", "1.0"]


def test_trouble_passes(publish, database, blobs):
    """A storage that does not answer, or is full, is waited for, and the program tried again."""
    publish()
    trouble = (StorageUnavailable("an outage"), StorageFull("no room"), PASSED)
    seen, attempt = attempts(*trouble)

    with closing(Examiner(database, blobs, "1.0", attempt=attempt)):
        until(lambda: trial_of(publish, 1))

    assert len(seen) == 3
    assert trial_of(publish, 1).outcome == "passed"


def test_what_nobody_foresaw_does_not_block_the_others(publish, database, blobs):
    """A program at which the examiner itself fails is passed over, and told of."""
    publish(b"1")
    publish(b"2")
    _, attempt = attempts(ZeroDivisionError(), PASSED)

    with closing(Examiner(database, blobs, "1.0", attempt=attempt)):
        until(lambda: trial_of(publish, 1))

    assert trial_of(publish, 1).outcome == "passed"
    assert trial_of(publish, 2).outcome == "impossible"


def test_what_cannot_be_tried_is_not_even_read(publish, database, blobs, monkeypatch):
    """A program that the registry's machine cannot run is settled by what is known of it."""
    monkeypatch.setattr("servax_registry.inspection.trial._PLATFORM", "abacus")
    publish()
    seen, attempt = attempts(PASSED)

    with closing(Examiner(database, blobs, "1.0", attempt=attempt)):
        found = until(lambda: trial_of(publish, 1))

    assert (found.outcome, seen) == ("impossible", [])


def test_a_program_that_was_collected_meanwhile_leaves_nothing(database):
    """A trial of a blob that is gone is dropped; of two trials of one program the first stays."""
    with database.write() as session:
        Trials(session).add("sha256:" + "0" * 64, PASSED)

    with database.read() as session:
        assert Trials(session).next() is None


def test_the_first_of_two_trials_stays(publish, database):
    """Two registries that try the same program do not get in each other's way."""
    digest = publish().signatures[0].program.digest
    for trial in (PASSED, Trial("failed", "late")):
        with database.write() as session:
            Trials(session).add(digest, trial)

    assert trial_of(publish, 1) == PASSED


def test_closing_does_not_wait_for_a_trial(publish, database, blobs):
    """A real trial that is under way is cancelled, and nothing is kept of it."""
    spec = jax.ShapeDtypeStruct((3,), "float32")
    endless = jax.jit(lambda x: jax.lax.while_loop(lambda _: True, lambda y: y + 1, x))
    data = bytes(jax.export.export(endless)(spec).serialize())
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    publish.registry.write_blob(Blob(digest, len(data)), [(0, data)])
    publish.registry.publish_version(Publication("m", (ProgramSource("s", digest),)))
    begun, ended = threading.Event(), []

    def attempt(*arguments, **options):
        begun.set()
        ended.append(try_program(*arguments, **options))
        return ended[0]

    examiner = Examiner(database, blobs, jax.__version__, attempt=attempt)
    begun.wait()
    examiner.close()

    assert "nobody waits" in ended[0].reason
    assert trial_of(publish, 1) is None


def test_a_serving_registry_tries_what_it_is_sent(process, connect, constant):
    """With --trials the whole registry, cage included, tells what a pushed program does, and
    stops when it is told to.
    """
    registry = connect(process.start("--trials"))
    registry.publish("m", constant)

    request = registry_pb2.GetVersionRequest(model="m")
    version = until(
        lambda: (v := registry.api.GetVersion(request)).signatures[0].HasField("trial") and v
    )

    trial = version.signatures[0].trial
    assert (trial.outcome, trial.jax_version, trial.ran) == (1, jax.__version__, True)
    assert process.stop(signal.SIGTERM) == 0
