"""The engine, its transactions, and the schema's migrations.

Everything that is particular to SQLite is in this module.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from sqlite3 import Connection as SQLiteConnection

import alembic.command
import alembic.util
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError
from sqlalchemy.orm import Session

from servax_registry.errors import DatabaseUnusable

# Beyond these many connections at once, calls wait for one another.
_CONNECTIONS = 32

# How long one process waits for another one's write transaction, in milliseconds. Ours take
# milliseconds; only a stopped process or a stalled disk can use this up.
_BUSY_TIMEOUT = 60_000

# 16 pages carry 1 MiB, so a chunk costs as few pages, and a large table as few levels, as can be.
_PAGE_SIZE = 65_536

# Pages after which the write-ahead log is copied into the database: 16 MiB.
_CHECKPOINT_PAGES = 256


class Database:
    """Hands out units of work on one database, to any number of threads.

    A unit of work is a session that commits when its block ends and rolls back when the block
    raises.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._durable = self._engine.execution_options(servax_begin="durable")
        self._relaxed = self._engine.execution_options(servax_begin="relaxed")
        # SQLite takes one writer at a time. Threads queue here rather than in its busy handler,
        # which polls; that one remains for other processes.
        self._writer: AbstractContextManager[object] = (
            threading.Lock() if self._engine.dialect.name == "sqlite" else nullcontext()
        )

    @property
    def location(self) -> str:
        """The URL, without the password."""
        return self._engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Begin a unit of work that sees one snapshot. Keep it short: it holds back checkpoints."""
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Session]:
        """Begin a unit of work that may change something.

        When the block ends, the change outlives this process; if `durable`, it and every change
        before it outlive the machine's crash as well.
        """
        engine = self._durable if durable else self._relaxed
        with self._writer, Session(engine) as session, session.begin():
            # Takes the database's write lock now, not at the first change: a reader that turns
            # into a writer fails when another one was faster.
            session.connection()
            yield session

    def migrate(self) -> None:
        """Bring the schema up to date, or create it; any number of processes may do so at once.

        Raises DatabaseUnusable.
        """
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        try:
            with self.write() as session:
                config.attributes["connection"] = session.connection()
                alembic.command.upgrade(config, "head")
        except DatabaseError as error:
            raise DatabaseUnusable(f"cannot use {self.location}: {error.orig}") from error
        except alembic.util.CommandError as error:
            raise DatabaseUnusable(
                f"cannot use {self.location}: a newer servax-registry wrote it ({error}); "
                "start that version, or another database"
            ) from error

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise DatabaseUnusable(
                f"{url!r} names no file; give a path, such as sqlite:///registry.db"
            )
        engine = create_engine(
            parsed, pool_size=_CONNECTIONS, max_overflow=0, pool_timeout=300, pool_use_lifo=True
        )
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise DatabaseUnusable(
            f"{url!r} is not a database URL that can be used ({error}); "
            "give one such as sqlite:///registry.db"
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: SQLiteConnection, _record: object) -> None:
    # The driver must leave transactions to _begin.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout = {_BUSY_TIMEOUT}",
        f"page_size = {_PAGE_SIZE}",
        "journal_mode = WAL",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    match connection.get_execution_options().get("servax_begin"):
        case "durable":
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case "relaxed":
            # Without a sync at every commit, the log is synced before it is copied into the
            # database: a machine's crash may undo the last commits, but never breaks the file.
            connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case _:
            connection.exec_driver_sql("BEGIN")
