"""Units of work on the database, and the schema's migrations."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import alembic.command
import alembic.util
from alembic.config import Config
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError
from sqlalchemy.orm import Session

from servax_registry.errors import DatabaseUnusable
from servax_registry.store import sqlite

# Beyond these many connections at once, calls wait for one another.
_CONNECTIONS = 32


class Database:
    """Hands out units of work on one database, to any number of threads.

    A unit of work is a session that commits when its block ends and rolls back when the block
    raises.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._durable = self._engine.execution_options(servax_begin="durable")
        self._relaxed = self._engine.execution_options(servax_begin="relaxed")
        self._sqlite = sqlite.Writers(self._engine) if _is_sqlite(self._engine) else None

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
        turn = self._sqlite.turn() if self._sqlite else nullcontext()
        with turn, Session(engine) as session, session.begin():
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
        if self._sqlite:
            self._sqlite.close()
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
    if _is_sqlite(engine):
        sqlite.configure(engine)
    return engine


def _is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"
