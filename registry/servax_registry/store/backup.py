"""Copies of a SQLite database that is in use."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from servax_registry.errors import BackupFailed

# How many pages are copied between two reports: 16 MiB.
_PAGES = 256


def blobs_outside(file: Path) -> int:
    """Count blobs that lie outside of a registry's database, of any version of the schema.

    Raises BackupFailed where it is none.
    """
    with _failing(f"cannot read {file}"), closing(_open(file)) as connection:
        columns = {
            name
            for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", ("blobs",))
        }
        if not columns:
            raise BackupFailed(f"{file} is no database of a registry")
        if "folder" not in columns:
            return 0
        query = "SELECT count(*) FROM blobs WHERE folder IS NOT NULL"
        return int(connection.execute(query).fetchone()[0])


def copy(source: Path, destination: Path, report: Callable[[int, int], None]) -> None:
    """Copy a database as it is now, whoever works on it meanwhile; the copy is one durable file.

    What is at `destination` is overwritten. `report` is told how many of how many bytes are copied.
    Raises BackupFailed.
    """
    destination.unlink(missing_ok=True)
    with (
        _failing(f"cannot copy {source} to {destination}"),
        closing(_open(source)) as origin,
        closing(sqlite3.connect(destination)) as target,
    ):
        (page_size,) = origin.execute("PRAGMA page_size").fetchone()
        # With a snapshot of ours, nothing is copied anew because somebody wrote meanwhile.
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
        origin.backup(
            target,
            pages=_PAGES,
            progress=lambda _, left, total: report((total - left) * page_size, total * page_size),
        )
    fold(destination)


def fold(file: Path) -> None:
    """Make a database that nobody uses one file, without a log, and let it outlive a crash.

    Raises BackupFailed.
    """
    with _failing(f"cannot finish {file}"):
        with closing(sqlite3.connect(file)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        assert mode == "delete", "nobody else has it open"
        _sync(file)


def publish(part: Path, destination: Path) -> None:
    """Give a file its name, in one step and durably. Raises BackupFailed."""
    with _failing(f"cannot write {destination}"):
        part.replace(destination)
        _sync(destination.parent)


def _open(file: Path) -> sqlite3.Connection:
    # "rw" does not create what is not there.
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)
    connection.isolation_level = None
    return connection


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise BackupFailed(f"{what}: {error}") from error
