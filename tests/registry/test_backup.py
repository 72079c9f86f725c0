"""Backups of a SQLite registry that is in use, and what restoring them proves."""

import hashlib
import json
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import URL

from servax_registry.__main__ import main
from servax_registry.artifact import Blob
from servax_registry.errors import BackupFailed
from servax_registry.store.backup import copy
from servax_registry.store.blobs import BlobStore
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.database import Database

SIZE = 20 * CHUNK_SIZE + 3


def write(blobs, seed, size=SIZE):
    """Store a blob."""
    data = np.random.default_rng(seed).bytes(size)
    blob = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", size)
    parts = range(0, size, CHUNK_SIZE)
    blobs.write(blob, ((begin, data[begin : begin + CHUNK_SIZE]) for begin in parts))
    return blob.digest


@pytest.fixture
def path(tmp_path):
    """The file of the database."""
    return tmp_path / "registry.db"


@pytest.fixture
def run(tmp_path):
    """Run a command, check its exit code and give what it printed."""

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert list(tmp_path.glob("*.part*")) == []
        return result.output

    return run


def test_a_backup_is_what_was_there_when_it_began(blobs, path, tmp_path):
    """What is written beside is not in it, does not make it begin anew, and is not held up."""
    before = write(blobs, 0)
    said = []

    def report(done, total):
        said.append((done, total))
        if len(said) < 9:
            write(blobs, len(said), CHUNK_SIZE)

    copy(path, tmp_path / "copy", report)

    with closing(Database(f"sqlite:///{tmp_path / 'copy'}")) as copied:
        found = BlobStore(copied)
        assert found.find_missing([before]) == ()
        with closing(sqlite3.connect(tmp_path / "copy")) as connection:
            assert connection.execute("SELECT count(*) FROM blobs").fetchone() == (1,)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert said == sorted(said)
    assert said[-1][0] == said[-1][1] > SIZE


def test_backups_beside_writers_are_consistent(blobs, path, tmp_path, run):
    """Every backup of a registry under load passes the check that restoring makes."""
    stop = threading.Event()

    def work():
        seed = 0
        while not stop.is_set():
            seed += 1
            write(blobs, seed % 20, 2 * CHUNK_SIZE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(2):
            file = tmp_path / f"backup{number}"
            run("backup", file, "--db", f"sqlite:///{path}")
            run("restore", file, "--db", f"sqlite:///{tmp_path / f'restored{number}.db'}")
    finally:
        stop.set()
        thread.join()


def test_a_restored_registry_has_everything(blobs, path, tmp_path, run):
    """A backup is one file; what is restored from it is told, and has every byte."""
    digest = write(blobs, 0)
    backup, folder = tmp_path / "backup", tmp_path / "a ?%20"
    folder.mkdir()
    url = URL.create("sqlite", database=str(folder / "new.db")).render_as_string()

    assert str(backup) in run("backup", backup, "--db", f"sqlite:///{path}")
    document = json.loads(run("restore", backup, "--db", url, "--json"))

    assert document == {"blobs": 1, "bytes": SIZE, "problems": []}
    with closing(Database(url)) as restored:
        assert len(b"".join(BlobStore(restored).read(digest))) == SIZE
    run("backup", backup, "--db", f"sqlite:///{path}")


def test_nothing_is_overwritten(blobs, path, tmp_path, run):
    """Restoring over a database, and backing up into the database itself, are refused."""
    write(blobs, 0, 10)
    backup, url = tmp_path / "backup", f"sqlite:///{path}"
    run("backup", backup, "--db", url)

    assert "exists; restore into a new" in run("restore", backup, "--db", url, code=1)
    assert "is the database itself" in run("backup", path, "--db", url, code=2)


def test_a_damaged_backup_is_not_restored(blobs, path, tmp_path, run):
    """What is wrong with it is told, and no database appears."""
    write(blobs, 0)
    backup, new = tmp_path / "backup", tmp_path / "new.db"
    run("backup", backup, "--db", f"sqlite:///{path}")
    with closing(sqlite3.connect(backup)) as connection, connection:
        connection.execute("DELETE FROM chunks WHERE position = ?", (CHUNK_SIZE,))

    output = run("restore", backup, "--db", f"sqlite:///{new}", code=1)

    assert "byte 1048576 is missing" in output
    assert "nothing was restored" in output
    assert not new.exists()


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_what_is_no_registry_is_refused(tmp_path, run, content):
    """An empty file, which SQLite takes for a database, and any other are no backup."""
    file = tmp_path / "file"
    file.write_bytes(content)

    assert "Error: " in run("restore", file, "--db", f"sqlite:///{tmp_path / 'new.db'}", code=1)
    assert "Error: " in run("backup", tmp_path / "x", "--db", f"sqlite:///{file}", code=1)
    assert "cannot read" in run(
        "backup", tmp_path / "x", "--db", f"sqlite:///{tmp_path / 'typo.db'}", code=1
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_an_older_schema_is_backed_up_and_restored(path, tmp_path, run):
    """A backup before an upgrade is possible, and is migrated where it is restored."""
    from alembic.command import upgrade

    from servax_registry.store.database import _migrations

    config = _migrations()
    with closing(Database(f"sqlite:///{path}")) as database, database.write() as session:
        config.attributes["connection"] = session.connection()
        upgrade(config, "0001")
    backup, url = tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}"

    run("backup", backup, "--db", f"sqlite:///{path}")
    run("restore", backup, "--db", url)

    with closing(Database(url)) as restored:
        restored.check_schema()


def test_blobs_outside_are_not_forgotten(database, path, tmp_path, run):
    """A backup without them has to be asked for, and is restored beside a copy of them."""
    folder = tmp_path / "blobs"
    write(BlobStore(database, folder.as_uri()), 0)
    backup, source = tmp_path / "backup", ("--db", f"sqlite:///{path}")
    target = ("--db", f"sqlite:///{tmp_path / 'new.db'}")

    assert "1 blobs lie outside" in run("backup", backup, *source, code=1)
    assert "1 blobs are not in it" in run("backup", backup, *source, "--metadata-only")
    assert "tell where with --blobs" in run("restore", backup, *target, code=1)
    run("restore", backup, *target, "--blobs", folder.as_uri())


def test_other_databases_have_their_own_tools(tmp_path, run):
    """For PostgreSQL, the commands name what to use instead."""
    url = "postgresql://me@example.com/registry"
    (tmp_path / "backup").touch()

    assert "pg_dump" in run("backup", tmp_path / "backup", "--db", url, code=2)
    assert "pg_restore" in run("restore", tmp_path / "backup", "--db", url, code=2)


def test_a_full_disk_is_told(blobs, path, tmp_path):
    """A copy that cannot be written is an error that names both files."""
    write(blobs, 0, 10)

    with pytest.raises(BackupFailed, match=r"cannot copy .*registry\.db to"):
        copy(path, tmp_path / "missing" / "copy", lambda done, total: None)
