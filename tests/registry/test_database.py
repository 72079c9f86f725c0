"""The schema, its migrations, and transactions."""

import multiprocessing
import sqlite3
import threading
from datetime import UTC, datetime

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.engine.default import DefaultDialect

from servax_registry.artifact import StoredTensor
from servax_registry.errors import DatabaseUnusable, StorageUnavailable
from servax_registry.store.database import Database
from servax_registry.store.models import Base, ModelRow
from servax_registry.store.types import Document

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def definitions(connection):
    """Give the clauses of every table and index, without the migrations' own table."""
    rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    return {
        name: sorted(" ".join(sql.split()).removesuffix(" )").split(", CONSTRAINT "))
        for name, sql in rows
        if name != "alembic_version"
    }


def test_migrations_give_the_models(database, tmp_path):
    """The migrated schema is, constraint by constraint, what the models say."""
    engine = create_engine(f"sqlite:///{tmp_path / 'models.db'}")
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        expected = definitions(connection)
    engine.dispose()

    with database.read() as session:
        connection = session.connection()
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
        found = definitions(connection)

    assert differences == []
    assert found == expected


def migrate(url, barrier):
    """Migrate at the same moment as others."""
    database = Database(url)
    barrier.wait()
    database.migrate()
    database.close()


def test_processes_may_migrate_at_once(url):
    """Several processes that start on one new file all succeed."""
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(4)
    processes = [context.Process(target=migrate, args=(url, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 4


def test_migrating_again_changes_nothing(database):
    """Migrating a database that is up to date leaves its schema and its rows as they are."""
    with database.write() as session:
        session.execute(insert(ModelRow).values(name="m", last_number=7, create_time=NOW))

    def contents():
        with database.read() as session:
            rows = session.execute(text("SELECT * FROM models")).all()
            version = session.scalars(text("SELECT version_num FROM alembic_version")).all()
            return definitions(session.connection()), rows, version

    before = contents()
    database.migrate()

    assert contents() == before


def test_a_newer_database_is_refused(database):
    """A schema of a release that does not exist yet is refused, and the message says why."""
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(DatabaseUnusable, match="newer servax-registry"):
        database.migrate()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("nonsense", "not a database URL"),
        ("nosuch://host/name", "not a database URL"),
        ("sqlite:////nonexistent/registry.db", "unable to open"),
    ],
)
def test_a_database_that_cannot_be_used_is_named(url, reason):
    """A URL that is wrong gives one sentence with the URL and the reason."""
    with pytest.raises(DatabaseUnusable, match=reason) as caught:
        Database(url).migrate()

    assert url in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    """Any other file is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("hello " * 1000)

    with pytest.raises(DatabaseUnusable, match="not a database"):
        Database(f"sqlite:///{path}").migrate()

    assert path.read_text() == "hello " * 1000


def test_the_file_is_set_up_for_blobs(database, tmp_path):
    """The database has large pages, a write-ahead log and foreign keys."""
    with database.read() as session:
        pragmas = [
            session.scalar(text(f"PRAGMA {name}"))
            for name in ("page_size", "journal_mode", "foreign_keys")
        ]

    assert pragmas == [65536, "wal", 1]


def test_writers_wait_for_each_other(database, url):
    """Threads that read and then write, over two engines, never meet a locked database."""
    other = Database(url)
    with database.write() as session:
        session.execute(insert(ModelRow).values(name="m", last_number=0, create_time=NOW))

    def count(engine):
        for _ in range(25):
            with engine.write() as session:
                row = session.scalars(select(ModelRow)).one()
                row.last_number += 1

    threads = [threading.Thread(target=count, args=(db,)) for db in (database, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()

    with database.read() as session:
        assert session.scalars(select(ModelRow.last_number)).one() == 100


def test_a_unit_of_work_that_fails_leaves_nothing(database):
    """An exception rolls the whole unit of work back."""

    def fail():
        with database.write() as session:
            session.execute(insert(ModelRow).values(name="m", last_number=0, create_time=NOW))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    with database.read() as session:
        assert session.scalars(select(ModelRow)).all() == []


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_durable_changes_are_synced(database, durable, level):
    """A durable unit of work waits for the disk, SQLite's level FULL; another one does not."""
    with database.write(durable=durable) as session:
        assert session.scalar(text("PRAGMA synchronous")) == level


def test_documents_come_back_equal():
    """A tuple of dataclasses survives being a document, tuples inside included."""
    kind = Document(tuple[StoredTensor, ...])
    tensors = (StoredTensor("a", "float32", (1, 2), 0, 8), StoredTensor("b", "int8", (), 8, 1))

    stored = kind.process_bind_param(tensors, DefaultDialect())

    assert kind.process_result_value(stored, DefaultDialect()) == tensors


def test_foreign_keys_hold(database, tmp_path):
    """The database itself refuses an alias to a version that does not exist."""
    with database.write() as session:
        session.execute(insert(ModelRow).values(name="m", last_number=0, create_time=NOW))
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO aliases (model_id, name, number) VALUES (1, 'a', 1)")
    connection.close()


def test_another_programs_database_is_left_alone(tmp_path):
    """A database with tables of another program is refused, and gets none of ours."""
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE bookmarks (id INTEGER)")

    with pytest.raises(DatabaseUnusable, match="another program's, with the tables bookmarks"):
        Database(f"sqlite:///{tmp_path / 'other.db'}").migrate()

    tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert tables == [("bookmarks",)]


def test_a_file_that_is_removed_takes_nothing_more(database, tmp_path):
    """Once its file is gone, or another one, the database refuses to read and to write."""
    path = tmp_path / "registry.db"

    for replace in (path.unlink, path.touch):
        replace()
        for begin in (database.read, database.write):
            with pytest.raises(StorageUnavailable, match="removed or replaced"), begin():
                pass


def test_copying_the_log_is_tried_again_after_a_failure(database, monkeypatch):
    """A log that cannot be copied once, for want of room, is copied after a later write."""
    failed, copied = threading.Event(), threading.Event()
    connect = database._engine.raw_connection

    def raw_connection():
        if not failed.is_set():
            failed.set()
            raise sqlite3.OperationalError("database or disk is full")
        copied.set()
        return connect()

    monkeypatch.setattr(database._engine, "raw_connection", raw_connection)
    for attempt in (failed, copied):
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = version_num"))
        assert attempt.wait(60)
