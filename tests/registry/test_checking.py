"""Checking on every backend: nothing wrong is overlooked, nothing right is reported."""

import hashlib
import json
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from obstore.store import from_url
from sqlalchemy import delete, insert, select, text, update

from servax_registry.__main__ import main
from servax_registry.artifact import Argument, Blob, Program, ProgramSource, Publication, Result
from servax_registry.convert import size_of
from servax_registry.service import Registry
from servax_registry.store.blobs import BlobStore
from servax_registry.store.checking import Check
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.models import (
    BlobRow,
    ChunkRow,
    ModelRow,
    SegmentRow,
    SignatureRow,
    VersionRow,
)

SIZE = 20 * CHUNK_SIZE + 3
DATA = np.random.default_rng(0).bytes(SIZE)
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", SIZE)


def inspect(file):
    """Find one input in any program."""
    file.read()
    return Program(
        function_name="f",
        arguments=(Argument("x", (), False, "float32", ("2",)),),
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
    """A registry on each backend, with one version, which has an alias."""
    registry = Registry(database, blobs, size_of=size_of, inspect=inspect)
    registry.write_blob(BLOB, parts())
    registry.publish_version(
        Publication("m", (ProgramSource("s", BLOB.digest),), aliases=("production",))
    )
    return registry


def parts(end=SIZE):
    """Yield the bytes up to `end`."""
    for offset in range(0, end, CHUNK_SIZE):
        yield offset, DATA[offset : min(offset + CHUNK_SIZE, end)]


def upload(registry, size):
    """Leave an upload unfinished."""
    digest = f"sha256:{'0' * 64}"
    with pytest.raises(Exception, match="are kept"):
        registry.write_blob(Blob(digest, SIZE), parts(size))


@pytest.fixture
def found(database, backend):
    """Check, and give what is wrong with what."""

    def found():
        problems = Check(database, backend.blobs, lambda done, total: None).run()
        return {problem.what: (problem.problem, problem.remedy) for problem in problems}

    return found


def test_nothing_is_wrong_with_what_was_stored(registry, database, backend, found):
    """Blobs, an upload under way and what waits for sweeping are in order; all bytes are read."""
    upload(registry, 5 * CHUNK_SIZE)
    said = []
    check = Check(database, backend.blobs, lambda done, total: said.append((done, total)))

    assert list(check.run()) == []
    assert (check.count, check.bytes) == (2, SIZE + 5 * CHUNK_SIZE)
    assert said[-1] == (check.bytes, check.bytes)
    with database.write() as session:
        session.execute(update(BlobRow).where(BlobRow.complete_time.is_(None)).values(digest=None))
    assert found() == {}


def test_changed_bytes_are_found(registry, database, backend, found):
    """A bit that flipped at rest is found by the digest; the versions that it hurts are told."""
    if backend.blobs is None:
        with database.write() as session:
            row = session.scalars(select(ChunkRow).where(ChunkRow.position == 9 * CHUNK_SIZE)).one()
            row.data = bytes([row.data[0] ^ 1]) + row.data[1:]
    else:
        with database.read() as session:
            name = session.scalars(select(SegmentRow.name)).first()
        store = from_url(backend.blobs)
        data = bytes(store.get(name).bytes())
        store.put(name, bytes([data[0] ^ 1]) + data[1:])

    problem, remedy = found()[f"blob {BLOB.digest}"]

    assert problem.startswith("its bytes have the digest sha256:")
    assert problem.endswith("m:1 need it")
    assert remedy == "restore a backup"


def test_missing_bytes_are_found(registry, database, backend, found):
    """A chunk, a row or an object that is gone is found, in a blob and in an upload."""
    upload(registry, 9 * CHUNK_SIZE)
    with database.write() as session:
        table = ChunkRow if backend.blobs is None else SegmentRow
        session.execute(delete(table).where(table.position == 8 * CHUNK_SIZE))

    problems = found()

    assert "byte 8388608 is missing" in problems[f"blob {BLOB.digest}"][0]
    assert "begins anew" in problems[f"upload of sha256:{'0' * 64}"][1]


def test_a_missing_object_is_found(registry, database, backend, found):
    """An object that a segment names, and that is gone, is found."""
    if backend.blobs is None:
        pytest.skip("there are no objects")
    with database.read() as session:
        name = session.scalars(select(SegmentRow.name)).first()
    from_url(backend.blobs).delete(name)

    assert "is gone" in found()[f"blob {BLOB.digest}"][0]


def test_surplus_bytes_are_found(registry, database, found):
    """Chunks that overlap, or that lie where they should not, are found."""
    with database.write() as session:
        key = session.scalars(select(BlobRow.id)).one()
        session.execute(insert(ChunkRow).values(blob_id=key, position=17, data=b"x"))

    assert "bytes are recorded" in found()[f"blob {BLOB.digest}"][0]


def test_an_object_that_nobody_knows_is_reported_and_stays(registry, backend, found):
    """Strays, inside and outside of a blob's folder, are told and not deleted."""
    if backend.blobs is None:
        pytest.skip("there are no objects")
    store = from_url(backend.blobs)
    known = [item["path"] for page in store.list("sha256") for item in page]
    strays = [
        f"{known[0].rpartition('/')[0]}/{0:020d}-stray",
        f"sha256/00/{'0' * 64}/{'0' * 16}/{0:020d}-stray",
        "README",
    ]
    for name in strays:
        store.put(name, b"stray")

    assert sorted(found()) == sorted(f"object {name}" for name in strays)
    assert all(store.head(name) for name in strays)


def test_folders_under_work_are_left_out(registry, database, backend, found):
    """What lies in the folder of an upload, or of what waits for sweeping, is no stray."""
    if backend.blobs is None:
        pytest.skip("there are no objects")
    upload(registry, 9 * CHUNK_SIZE)
    with database.read() as session:
        folder = session.scalars(select(BlobRow.folder).where(BlobRow.complete_time.is_(None)))
        name = f"{folder.one()}/{9 * CHUNK_SIZE:020d}-staged"
    from_url(backend.blobs).put(name, b"staged")

    assert found() == {}
    with database.write() as session:
        session.execute(update(BlobRow).where(BlobRow.complete_time.is_(None)).values(digest=None))
    assert found() == {}


def test_impossible_rows_are_found(registry, database, found):
    """An alias of a deleted version, and a version without program, number or blob, are found."""
    with database.write() as session:
        session.execute(update(VersionRow).values(delete_time=VersionRow.create_time))
        session.execute(update(ModelRow).values(last_number=0))
        session.execute(update(BlobRow).values(digest=None))
    assert {what: problem.partition(" ")[0] for what, (problem, _) in found().items()} == {
        "version m:1": "has",
        "alias m@production": "points",
    }
    with database.write() as session:
        session.execute(update(ModelRow).values(last_number=1))
    assert "not whole" in found()["version m:1"][0]
    with database.write() as session:
        session.execute(delete(SignatureRow))
    assert "no program" in found()["version m:1"][0]


def test_what_vanishes_while_it_is_read_is_no_problem(registry, database, found, monkeypatch):
    """A blob that is collected between listing and reading is not reported."""
    read = BlobStore.read_kept

    def discard_first(blobs, place, size):
        with database.write() as session:
            for table in (SegmentRow, ChunkRow):
                session.execute(delete(table))
            session.execute(update(BlobRow).values(digest=None))
        return read(blobs, place, size)

    monkeypatch.setattr(BlobStore, "read_kept", discard_first)

    assert found() == {}


class TestCommand:
    """servax-registry check."""

    @pytest.fixture
    def check(self, database, backend):
        """Run the command, check its exit code and give what it printed."""

        def check(*options, code):
            where = ["--db", backend.database, *(["--blobs", backend.blobs] * bool(backend.blobs))]
            result = CliRunner().invoke(main, ["check", *where, *options])
            assert result.exit_code == code, result.output
            return result.output

        return check

    def test_nothing_wrong_is_0(self, registry, check):
        """A registry that is in order gives exit code 0, and tells how much was read."""
        assert "no problems; 1 blobs" in check(code=0)
        assert json.loads(check("--json", code=0)) == {"blobs": 1, "bytes": SIZE, "problems": []}

    def test_damage_is_1(self, registry, database, check):
        """Damage gives exit code 1 and a table with the remedy."""
        with database.write() as session:
            session.execute(text("DELETE FROM chunks"))
            session.execute(text("DELETE FROM segments"))

        assert "restore a backup" in check(code=1)
        assert json.loads(check("--json", code=1))["problems"][0]["what"] == f"blob {BLOB.digest}"


class TestSQLite:
    """What SQLite itself knows of its file."""

    @pytest.fixture
    def path(self, tmp_path):
        """The file of a registry that is not running."""
        return tmp_path / "registry.db"

    @pytest.fixture
    def blobs_url(self):
        """Blobs lie in the database."""

    @pytest.fixture
    def backend(self, path, blobs_url):
        """One backend is enough."""
        return SimpleNamespace(database=f"sqlite:///{path}", blobs=blobs_url)

    def test_broken_references_are_found(self, registry, path, found):
        """A row that refers to nothing, which constraints forbid, is found."""
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE labels SET version_id = 9")
            connection.execute("UPDATE signatures SET version_id = 9")

        assert "table signatures refers to a row of table versions" in found()["database"][0]

    def test_a_damaged_file_is_reported(self, registry, database, path):
        """Pages that were overwritten are reported, whether or not the check can go on."""
        database.close()
        with path.open("r+b") as file:
            for page in range(3, path.stat().st_size // 65536, 2):
                file.seek(page * 65536)
                file.write(b"\xff" * 4096)

        result = CliRunner().invoke(main, ["check", "--db", f"sqlite:///{path}"])

        assert result.exit_code == 1
        assert "restore a backup" in result.output
