"""Units of work on the database, and the schema's migrations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import alembic.command
import alembic.util
import structlog
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    TimeoutError,
)
from sqlalchemy.orm import Session

from servax_registry.artifact import Change
from servax_registry.errors import DatabaseUnusable, StorageUnavailable, listed
from servax_registry.store import postgresql, sqlite

# Beyond these many connections at once, calls wait for one another.
_CONNECTIONS = 32

_DIALECTS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}

_log = structlog.get_logger(__name__)


class Database:
    """Hands out units of work on one database, to any number of threads.

    A unit of work is a session that commits when its block ends and rolls back when the block
    raises. It raises StorageUnavailable when the database does not answer, and StorageFull.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._dialect = _DIALECTS[self._engine.dialect.name]
        self._reading = self._engine.execution_options(**self._dialect.READ_OPTIONS)
        self._sqlite = sqlite.Writers(self._engine) if self._dialect is sqlite else None
        self._observers: list[Callable[[Sequence[Change]], None]] = []

    @property
    def location(self) -> str:
        """The URL, without the password."""
        return self._engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Begin a unit of work that sees one snapshot. Keep it short: it holds back checkpoints."""
        if self._sqlite:
            self._sqlite.check_file()
        with self._translating(), Session(self._reading) as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = True, alone: bool = True) -> Iterator[Session]:
        """Begin a unit of work that may change something.

        When the block ends, the change outlives this process; if `durable`, it and every change
        before it outlive the machine's crash as well. No two units of work that are `alone` run at
        the same time, in any process: what they read stays true until they end. Without, only rows
        that were changed are locked, and only where the database can do that.
        """
        with self._translating(), self._write(durable=durable, alone=alone) as session:
            yield session
        if changes := session.info.get("changes"):
            for observer in self._observers:
                observer(changes)

    def observe(self, observer: Callable[[Sequence[Change]], None]) -> None:
        """Let `observer` be told, from now on, what every unit of work of this process changed.

        It is called once the changes are committed, and must neither block nor raise.
        """
        self._observers.append(observer)

    def migrate(self) -> None:
        """Bring the schema up to date, or create it; any number of processes may do so at once.

        Raises DatabaseUnusable.
        """
        config = _migrations()
        try:
            with self._write(durable=True, alone=True) as session:
                tables = inspect(session.connection()).get_table_names()
                if tables and "alembic_version" not in tables:
                    raise DatabaseUnusable(
                        f"cannot use {self.location}: it is another program's, with the tables "
                        f"{listed(tables)}; start with another database"
                    )
                config.attributes["connection"] = session.connection()
                alembic.command.upgrade(config, "head")
        except DBAPIError as error:
            need = "; the registry has to write the file and its folder" if self._sqlite else ""
            raise DatabaseUnusable(f"cannot use {self.location}: {error.orig}{need}") from error
        except alembic.util.CommandError as error:
            raise DatabaseUnusable(
                f"cannot use {self.location}: a newer servax-registry wrote it ({error}); "
                "start that version, or another database"
            ) from error

    def check_schema(self) -> None:
        """Raise DatabaseUnusable unless the database exists, with the schema of this version.

        For whoever works beside a registry, whose database is not theirs to create or to migrate.
        """
        if self._sqlite and not self._sqlite.file.exists():
            raise DatabaseUnusable(
                f"there is no database at {self.location}; name the one of a registry"
            )
        expected = set(ScriptDirectory.from_config(_migrations()).get_heads())
        try:
            with self._engine.connect() as connection:
                found = set(MigrationContext.configure(connection).get_current_heads())
        except DBAPIError as error:
            raise DatabaseUnusable(f"cannot use {self.location}: {error.orig}") from error
        if found != expected:
            raise DatabaseUnusable(
                f"{self.location} has the schema {listed(sorted(found)) or 'of no registry'}, not "
                f"{listed(sorted(expected))}; run the version of servax-registry that serves it, "
                "or serve it with this one first"
            )

    def faults(self) -> Iterator[str]:
        """Yield what the database itself finds wrong with its files, and with references."""
        with self.read() as session:
            yield from self._dialect.faults(session.connection())

    def close(self) -> None:
        """Close every connection."""
        if self._sqlite:
            self._sqlite.close()
        self._engine.dispose()

    @contextmanager
    def _write(self, *, durable: bool, alone: bool) -> Iterator[Session]:
        engine = self._engine.execution_options(servax_durable=durable, servax_alone=alone)
        turn = self._sqlite.turn() if self._sqlite else nullcontext()
        with turn, Session(engine) as session, session.begin():
            # Takes the lock now, not at the first change: a reader that turns into a writer fails
            # in SQLite when another one was faster.
            session.connection()
            yield session

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            _log.warning("every connection to the database is in use", connections=_CONNECTIONS)
            raise StorageUnavailable("the registry is overloaded; try again later") from error
        except DBAPIError as error:
            trouble = self._dialect.trouble(error)
            if trouble is None:
                raise
            _log.warning("the database failed", database=self.location, reason=str(error.orig))
            raise trouble from error


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        backend = parsed.get_backend_name()
        if backend not in _DIALECTS:
            raise DatabaseUnusable(
                f"{url!r} is not a database URL that can be used; give one such as "
                "sqlite:///registry.db or postgresql://USER@HOST/NAME"
            )
        if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise DatabaseUnusable(
                f"{url!r} names no file; give a path, such as sqlite:///registry.db"
            )
        engine = create_engine(
            parsed,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=300,
            pool_use_lifo=True,
            **_DIALECTS[backend].engine_arguments(parsed),
        )
    except ArgumentError as error:
        raise DatabaseUnusable(
            f"{url!r} is not a database URL that can be used ({error}); "
            "give one such as sqlite:///registry.db"
        ) from error
    except (NoSuchModuleError, ImportError) as error:
        raise DatabaseUnusable(
            f"no driver for {parsed.render_as_string()} is installed ({error}); "
            "pip install 'servax[postgres]'"
        ) from error
    _DIALECTS[backend].configure(engine)
    return engine
