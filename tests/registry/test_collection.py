"""Garbage collection on every backend: what goes, what stays, and what goes on beside it."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from obstore.store import from_url
from sqlalchemy import func, select, update

from servax_registry.__main__ import main
from servax_registry.artifact import (
    Action,
    Argument,
    Blob,
    GoldenSource,
    Program,
    ProgramSource,
    Publication,
    Result,
    Selection,
    VersionName,
)
from servax_registry.convert import size_of
from servax_registry.errors import BlobNotFound, BlobsNotStored, UploadConflict, VersionNotFound
from servax_registry.service import Registry
from servax_registry.store.blobs import BlobStore
from servax_registry.store.checking import Check
from servax_registry.store.collection import ACTOR, Collected, Collector
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.database import Database
from servax_registry.store.models import Base, BlobRow, VersionRow

NOW = timedelta(0)
DAY = timedelta(days=1)


def inspect(file):
    """Find one weight and one input in any program."""
    file.read()
    return Program(
        function_name="f",
        arguments=(
            Argument("params", ("w",), True, "float32", ("2",)),
            Argument("x", (), False, "float32", ("2",)),
        ),
        results=(Result((), "float32", ("2",)),),
        platforms=("cpu",),
        device_count=1,
        calling_convention_version=10,
        serialization_version=3,
        stablehlo_version="1.15.0",
        jax_version="0.12.0",
        disabled_checks=(),
        effects=(),
        custom_nodes=(),
    )


@pytest.fixture
def url(backend):
    """The database of each backend."""
    return backend.database


@pytest.fixture
def blobs(database, backend):
    """The blobs of each backend."""
    return BlobStore(database, backend.blobs)


@pytest.fixture
def registry(database, blobs):
    """A registry on each backend."""
    return Registry(database, blobs, size_of=size_of, inspect=inspect)


@pytest.fixture
def collector(database, blobs):
    """Make a collector that spares nothing but what it must."""

    def collector(retention=NOW, grace=NOW):
        return Collector(database, blobs, retention=retention, grace=grace)

    return collector


@pytest.fixture
def kept(database, backend):
    """Count what is kept: the rows of tables, and objects."""

    def kept():
        with database.read() as session:
            counts = {
                table.__tablename__: session.scalars(select(func.count()).select_from(table)).one()
                for table in (mapper.class_ for mapper in Base.registry.mappers)
            }
        objects = backend.blobs and sum(map(len, from_url(backend.blobs).list("sha256")))
        return {name: count for name, count in {**counts, "objects": objects}.items() if count}

    return kept


def put(registry, data):
    """Store a blob."""
    blob = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    parts = range(0, len(data), CHUNK_SIZE)
    registry.write_blob(blob, ((begin, data[begin : begin + CHUNK_SIZE]) for begin in parts))
    return blob.digest


def weights(seed=0):
    """Make a weights file."""
    return safetensors.numpy.save({"w": np.full(2, seed, np.float32)})


GOLDEN = safetensors.numpy.save(
    {"inputs/x": np.zeros(2, np.float32), "outputs/output": np.zeros(2, np.float32)}
)


def publish(registry, model="m", program=b"program", seed=0, golden=None):
    """Publish a version."""
    source = golden and GoldenSource(put(registry, golden), 0.1, 0.1)
    return registry.publish_version(
        Publication(
            model,
            (ProgramSource("s", put(registry, program), golden=source),),
            (put(registry, weights(seed)),),
        )
    )


def delete(registry, version):
    """Delete a version."""
    registry.delete_version(version.model, version.number)


def age(database, table, column, by):
    """Make the times of a table's rows older."""
    with database.write() as session:
        for row in session.scalars(select(table)):
            setattr(row, column, getattr(row, column) - by)


def test_a_deleted_version_goes_with_everything_that_it_alone_needed(
    registry, database, collector, kept
):
    """Version, signatures, inspections and every byte are gone; who collected it is recorded."""
    version = publish(registry, program=bytes(3 * CHUNK_SIZE), golden=GOLDEN)
    delete(registry, version)

    collected = collector().collect()

    size = 3 * CHUNK_SIZE + len(weights()) + len(GOLDEN)
    assert collected == Collected((VersionName("m", 1),), 3, size)
    assert kept() == {"models": 1, "changes": 3}
    change = registry.list_changes(0).changes[-1]
    assert (change.actor, change.action, change.version) == (ACTOR, Action.COLLECT, 1)
    with pytest.raises(VersionNotFound, match="no version 1"):
        registry.undelete_version("m", 1)
    assert publish(registry).number == 2


def test_a_version_that_was_deleted_lately_stays(registry, database, collector, kept):
    """Within the retention period it can be undeleted, and its blobs are kept; then it goes."""
    publish(registry)
    delete(registry, publish(registry, seed=1))
    before = kept()

    assert collector(retention=DAY).collect() == Collected((), 0, 0)
    assert kept() == before
    assert registry.undelete_version("m", 2).delete_time is None
    delete(registry, registry.get_version("m", 2))
    with database.write() as session:
        deleted = VersionRow.delete_time.is_not(None)
        long_ago = datetime.now(UTC) - 1.1 * DAY
        session.execute(update(VersionRow).where(deleted).values(delete_time=long_ago))
    assert collector(retention=DAY).collect() == Collected(
        (VersionName("m", 2),), 1, len(weights())
    )


def test_what_another_version_needs_stays(registry, blobs, collector):
    """A blob goes only when no version of any model needs it: as program, weights or example."""
    first, second = publish(registry, golden=GOLDEN), publish(registry, seed=1)
    copy = registry.copy_version("m", "copy", version=1)
    delete(registry, first)

    assert collector().collect() == Collected((VersionName("m", 1),), 0, 0)
    delete(registry, second)
    assert collector().collect() == Collected((VersionName("m", 2),), 1, len(weights()))
    for digest in (
        copy.signatures[0].program.digest,
        copy.signatures[0].golden.blob.digest,
        copy.weights[0].blob.digest,
    ):
        assert b"".join(blobs.read(digest))


def test_a_dry_run_tells_what_would_go_and_changes_nothing(registry, collector, kept):
    """Measuring finds what collecting collects afterwards."""
    delete(registry, publish(registry))
    publish(registry, seed=1)
    put(registry, b"nobody's")
    before = kept()

    measured = collector().measure()

    assert kept() == before
    assert measured == Collected((VersionName("m", 1),), 2, len(weights()) + len(b"nobody's"))
    assert collector().collect() == measured


@pytest.mark.parametrize("told", ["found", "written", "published"])
def test_a_blob_that_somebody_was_told_of_stays(registry, database, collector, told):
    """Whoever was told that a blob is stored can rely on that for the grace period."""
    digest = put(registry, b"program")
    other = put(registry, b"other")
    age(database, BlobRow, "update_time", 1.1 * DAY)
    match told:
        case "found":
            assert registry.find_missing_blobs([digest]) == ()
        case "written":
            put(registry, b"program")
        case "published":
            publication = Publication("m", (ProgramSource("s", digest),), (put(registry, b"?"),))
            with pytest.raises(Exception, match="safetensors"):
                registry.publish_version(publication)

    assert collector(grace=DAY).collect().blobs == 1
    assert [blob.digest for blob in registry.find_missing_blobs([digest, other])] == [other]


def test_an_upload_under_way_stays(registry, collector):
    """An unfinished upload is not collected; it expires by other rules."""
    data = b"abc"
    blob = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", 3)
    with pytest.raises(Exception, match="are kept"):
        registry.write_blob(blob, [(0, b"ab")])

    assert collector().collect() == Collected((), 0, 0)
    assert registry.find_missing_blobs([blob.digest])[0].committed_size == 2


def test_a_blob_that_is_collected_just_before_it_is_noted_is_missing(
    registry, database, blobs, collector, monkeypatch
):
    """Nobody is told that a blob is stored which is gone before that could be noted."""
    digest = put(registry, b"abc")
    age(database, BlobRow, "update_time", DAY)
    write = database.write

    def slow(**options):
        monkeypatch.undo()
        collector().collect()
        return write(**options)

    monkeypatch.setattr(database, "write", slow)

    (missing,) = registry.find_missing_blobs([digest])

    assert (missing.digest, missing.committed_size) == (digest, 0)


def test_a_download_of_what_is_collected_meanwhile_ends_with_not_found(registry, collector):
    """A reader that lost a race is told so, rather than that the registry lost bytes."""
    data = np.random.default_rng(0).bytes(40 * CHUNK_SIZE)
    reading = registry.read_blob(put(registry, data))
    next(reading)

    collector().collect()

    with pytest.raises(BlobNotFound, match="was collected while it was read"):
        list(reading)


@pytest.mark.parametrize("when", ["inspected", "inspected before"])
def test_publishing_what_is_collected_meanwhile_is_refused(database, blobs, collector, when):
    """A blob that vanishes between check and commit is a blob that is not stored."""

    def collect_first(file):
        collector().collect()
        return inspect(file)

    registry = Registry(database, blobs, size_of=size_of, inspect=collect_first)
    publication = Publication(
        "m", (ProgramSource("s", put(registry, b"program")),), (put(registry, weights()),)
    )
    if when == "inspected before":
        find = blobs.find_missing

        def find_and_collect(digests):
            found = find(digests)
            collector().collect()
            return found

        blobs.find_missing = find_and_collect

    with pytest.raises(BlobsNotStored, match="once more"):
        registry.publish_version(publication)


def test_collecting_beside_everything_else_loses_nothing(
    backend, registry, database, blobs, collector
):
    """While two collectors without any grace work, every version that is acknowledged is whole.

    Checks that go on meanwhile find nothing wrong.
    """
    stop = threading.Event()

    def collect():
        with closing(Database(backend.database)) as other:
            mine = BlobStore(other, backend.blobs)
            while not stop.wait(0.02):
                Collector(other, mine, retention=NOW, grace=NOW).collect()

    def work(number):
        rng = np.random.default_rng(number)
        made = refused = 0
        while made < 4:
            program = bytes([rng.integers(3)]) * int(rng.integers(1, 3 * CHUNK_SIZE))
            try:
                version = publish(registry, f"m{number}", program, rng.integers(3))
            except (BlobsNotStored, UploadConflict):
                refused += 1
                continue
            made += 1
            if rng.integers(2):
                delete(registry, version)
        return refused

    def check():
        with closing(Database(backend.database)) as other:
            while not stop.wait(0.02):
                problems = Check(other, backend.blobs, lambda done, total: None).run()
                assert [problem for problem in problems if not problem.harmless] == []

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work) for work in (collect, collect, check)]
        try:
            list(pool.map(work, range(3)))
        finally:
            stop.set()
        for each in others:
            each.result()

    collector().collect()
    left = registry.list_versions(Selection(), 1000).items
    for version in left:
        for blob in (version.signatures[0].program, version.weights[0].blob):
            found = hashlib.sha256(b"".join(blobs.read(blob.digest))).hexdigest()
            assert blob.digest == f"sha256:{found}"
    needed = {version.signatures[0].program for version in left}
    needed |= {version.weights[0].blob for version in left}
    assert collector().measure() == Collected((), 0, 0)
    assert list(Check(database, backend.blobs, lambda done, total: None).run()) == []
    with database.read() as session:
        assert set(session.scalars(select(BlobRow.digest))) == {blob.digest for blob in needed}


class TestCommand:
    """servax-registry gc."""

    @pytest.fixture
    def gc(self, database, backend):
        """Run the command, and give what it printed."""

        def gc(*options, code=0):
            where = ["--db", backend.database, *(["--blobs", backend.blobs] * bool(backend.blobs))]
            result = CliRunner().invoke(main, ["gc", *where, *options])
            assert result.exit_code == code, result.output
            return result.output

        return gc

    def test_it_tells_what_it_freed(self, registry, gc):
        """As a table, and as JSON; without options, what is young stays."""
        delete(registry, publish(registry))
        options = ("--retention", "0", "--grace", "0")
        freed = {
            "versions": [{"model": "m", "version": 1}],
            "blobs": 2,
            "bytes": len(b"program") + len(weights()),
        }

        assert json.loads(gc("--json"))["blobs"] == 0
        assert "m:1" in gc(*options, "--dry-run")
        assert json.loads(gc(*options, "--dry-run", "--json")) == {"dry_run": True, **freed}
        assert json.loads(gc(*options, "--json")) == {"dry_run": False, **freed}
        assert "0 bytes" in gc(*options)


def test_a_database_that_is_none_is_refused(tmp_path):
    """A typing error in --db creates no database, and another program's is left alone."""
    other = tmp_path / "other.db"
    with closing(Database(f"sqlite:///{other}")) as database, database.write():
        pass

    for path, reason in ((tmp_path / "typo.db", "no database at"), (other, "of no registry")):
        result = CliRunner().invoke(main, ["gc", "--db", f"sqlite:///{path}"])
        assert result.exit_code == 1
        assert reason in result.output
    assert not (tmp_path / "typo.db").exists()
