"""What is particular to SQLite: its settings, its transactions, its write-ahead log."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from servax_registry.errors import RegistryError, StorageFull, StorageUnavailable

# How long one process waits for another one's write transaction, in milliseconds. Ours take
# milliseconds; only a stopped process or a stalled disk can use this up.
_BUSY_TIMEOUT = 60_000

# 16 pages carry 1 MiB, so a chunk costs as few pages, and a large table as few levels, as can be.
_PAGE_SIZE = 65_536

# The write-ahead log is copied into the database when writers pause for so many seconds, or when
# it has so many bytes; above the limit they wait for it. What a burst of uploads may cost in disk
# space buys that it is written once, not twice, while somebody waits.
_PAUSE = 0.5
_LONG_LOG = 1 << 30
_LOG_LIMIT = 2 << 30

# What the log is cut down to when it begins anew, in bytes.
_LOG_REMAINDER = 16 << 20

# A transaction sees one snapshot in any case.
READ_OPTIONS: dict[str, Any] = {}

_log = structlog.get_logger(__name__)


def configure(engine: Engine) -> None:
    """Let every connection of the engine have our settings and begin transactions as we do."""
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    # The driver must leave transactions to _begin.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout = {_BUSY_TIMEOUT}",
        f"page_size = {_PAGE_SIZE}",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {_LOG_REMAINDER}",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")
    _keep_log(connection)


def _keep_log(connection: sqlite3.Connection) -> None:
    """Let the database have a write-ahead log, once and for all.

    SQLite does not wait for its turn to change that, however long its busy timeout is: processes
    that open a new file at the same moment have to.
    """
    give_up = time.monotonic() + _BUSY_TIMEOUT / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _begin(connection: Connection) -> None:
    match connection.get_execution_options().get("servax_durable"):
        case True:
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case False:
            # Without a sync at every commit, the log is synced before it is copied into the
            # database: a machine's crash may undo the last commits, but never breaks the file.
            connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case _:
            connection.exec_driver_sql("BEGIN")


def engine_arguments(url: URL) -> dict[str, Any]:
    """Give what create_engine takes besides the pool's size."""
    return {}


def faults(connection: Connection) -> Iterator[str]:
    """Yield what SQLite finds wrong: broken pages and indexes, rows whose reference leads nowhere.

    It reads the whole file, and holds back checkpoints meanwhile.
    """
    for (message,) in connection.exec_driver_sql("PRAGMA integrity_check"):
        if message != "ok":
            yield message
    for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield f"row {row} of table {table} refers to a row of table {parent} that is not there"


def trouble(error: DBAPIError) -> RegistryError | None:
    """Tell a caller what an error of the driver means; None when it is a bug of ours."""
    # The low byte of an extended result code is the primary one: https://sqlite.org/rescode.html
    match getattr(error.orig, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StorageFull("the disk of the registry's database is full; tell the operator")
        case sqlite3.SQLITE_READONLY:
            return StorageUnavailable("the registry's database is read-only; tell the operator")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_PROTOCOL:
            return StorageUnavailable("the registry's database is busy; try again later")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StorageUnavailable("the registry's database is damaged; tell the operator")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR:
            return StorageUnavailable("the disk of the registry's database fails; try again later")
    return None


class Writers:
    """Gives writers their turn, one at a time, and copies the log into the database behind them.

    Threads queue here rather than in SQLite's busy handler, which polls; that one remains for
    other processes. `file` is the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.file = Path(str(engine.url.database))
        self._opened: tuple[int, int] | None = None
        self._log_file = Path(f"{engine.url.database}-wal")
        self._lock = threading.Lock()
        self._wrote = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="checkpoint", daemon=True)
        self._thread.start()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until nobody else in this process writes."""
        with self._lock:
            self.check_file()
            if self._log_size() > _LOG_LIMIT:
                self._checkpoint("RESTART")
            yield
            # What was just committed is not acknowledged either where the file vanished meanwhile.
            self.check_file()
        self._wrote.set()

    def check_file(self) -> None:
        """Raise StorageUnavailable where the file was removed, or replaced, after it was opened.

        The open connections would go on with what nobody can find any more.
        """
        try:
            stat = self.file.stat()
            found = (stat.st_dev, stat.st_ino)
        except FileNotFoundError:
            found = None
        self._opened = self._opened or found
        if found != self._opened:
            raise StorageUnavailable(
                "the file of the registry's database was removed or replaced while the registry "
                "ran; tell the operator to restart it"
            )

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._wrote.set()
        self._thread.join()

    def _copy(self) -> None:
        while not self._closing.is_set():
            self._wrote.wait()
            while self._wrote.is_set() and self._log_size() < _LONG_LOG:
                self._wrote.clear()
                self._closing.wait(_PAUSE)
            self._wrote.clear()
            if self._log_size():
                self._checkpoint("PASSIVE")

    def _checkpoint(self, mode: str) -> None:
        try:
            with closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute(f"PRAGMA wal_checkpoint({mode})")
        except (sqlite3.Error, SQLAlchemyError):
            # The next write brings the next attempt; until then the log only grows.
            _log.exception("cannot copy the write-ahead log into the database")

    def _log_size(self) -> int:
        try:
            return self._log_file.stat().st_size
        except FileNotFoundError:
            return 0
