"""What the registry asks of PostgreSQL, and how it takes its absence."""

import multiprocessing
import threading
from contextlib import closing
from datetime import UTC, datetime

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError

from servax_registry.errors import DatabaseUnusable, StorageUnavailable
from servax_registry.store.database import Database
from servax_registry.store.models import Base, ModelRow

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOWHERE = "postgresql://nobody@127.0.0.1:9/none"


@pytest.fixture
def url(postgresql):
    """An empty database."""
    return postgresql


def add(database, name):
    """Add a model."""
    with database.write() as session:
        session.execute(insert(ModelRow).values(name=name, last_number=0, create_time=NOW))


def names(database):
    """List the models."""
    with database.read() as session:
        return session.scalars(select(ModelRow.name).order_by(ModelRow.name)).all()


def test_migrations_give_the_models(database):
    """The migrated schema has the tables, columns, keys and indices of the models."""
    with database.read() as session:
        context = MigrationContext.configure(session.connection())

        assert compare_metadata(context, Base.metadata) == []


def test_chunks_are_kept_as_they_are(database):
    """Chunks lie outside of the table and are not compressed, which weights would only slow."""
    with database.read() as session:
        storage = session.scalar(
            text(
                "SELECT attstorage FROM pg_attribute WHERE attrelid = 'chunks'::regclass "
                "AND attname = 'data'"
            )
        )

    assert storage == "e"


def test_names_are_in_the_order_of_their_characters(database):
    """Listings do not depend on the language that the database was made for."""
    for name in ("a_1", "a1", "a-1", "a.1", "a"):
        add(database, name)

    assert names(database) == ["a", "a-1", "a.1", "a1", "a_1"]


def migrate(url, barrier):
    """Migrate at the same moment as others."""
    with closing(Database(url)) as database:
        barrier.wait()
        database.migrate()


def test_processes_may_migrate_at_once(url):
    """Several processes that start on one new database all succeed."""
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(3)
    processes = [context.Process(target=migrate, args=(url, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 3


def test_writers_take_turns(database, url):
    """Threads that read and then write, over two engines, lose nothing of what others wrote."""
    add(database, "m")

    def count(engine):
        for _ in range(25):
            with engine.write() as session:
                row = session.scalars(select(ModelRow)).one()
                row.last_number += 1

    with closing(Database(url)) as other:
        threads = [threading.Thread(target=count, args=(db,)) for db in (database, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with database.read() as session:
        assert session.scalars(select(ModelRow.last_number)).one() == 100


def test_uploads_do_not_wait_for_writers(database):
    """A unit of work that need not be alone is done while another one is open."""
    add(database, "m")

    with database.write() as session:
        session.execute(insert(ModelRow).values(name="n", last_number=0, create_time=NOW))
        with database.write(alone=False) as upload:
            upload.execute(update(ModelRow).where(ModelRow.name == "m").values(last_number=1))

        assert names(database) == ["m"]
    assert names(database) == ["m", "n"]


def test_a_read_sees_one_snapshot(database):
    """What is written while a read goes on is not seen by it, and it cannot write."""
    with database.read() as session:
        assert session.scalars(select(ModelRow)).all() == []
        add(database, "m")
        assert session.scalars(select(ModelRow)).all() == []

    with pytest.raises(StorageUnavailable), database.read() as session:
        session.execute(insert(ModelRow).values(name="n", last_number=0, create_time=NOW))
    assert names(database) == ["m"]


@pytest.mark.parametrize(("durable", "level"), [(True, "on"), (False, "off")])
def test_durable_changes_are_synced(database, durable, level):
    """A durable unit of work waits for the disk; another one does not, and neither outlasts it."""
    for setting in (durable, True):
        with database.write(durable=setting) as session:
            found = session.scalar(text("SHOW synchronous_commit"))
            assert found == (level if setting == durable else "on")


def test_a_lost_connection_is_unavailable(database, url):
    """A call whose connection breaks is told to come again, and the next one gets a new one."""
    add(database, "m")

    def end_all():
        statement = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with closing(Database(url)) as other, other.read() as session:
            session.execute(text(statement))

    def change():
        with database.write() as session:
            session.execute(update(ModelRow).values(last_number=7))
            end_all()

    with pytest.raises(StorageUnavailable, match="try again later"):
        change()
    assert names(database) == ["m"]
    end_all()

    assert names(database) == ["m"]
    with database.read() as session:
        assert session.scalars(select(ModelRow.last_number)).one() == 0


def test_a_stalled_writer_is_given_up(database, monkeypatch):
    """Writers do not wait for ever for one that has stopped in the middle."""
    monkeypatch.setattr("servax_registry.store.postgresql._TIMEOUTS", {"lock_timeout": "1"})

    with (
        database.write(),
        pytest.raises(StorageUnavailable, match="does not answer"),
        database.write(),
    ):
        pass


def test_a_bug_is_no_outage(database):
    """A statement that is wrong is not taken for a database that does not answer."""
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(text("SELECT nonsense"))


def test_a_server_that_does_not_answer_is_named():
    """The registry does not start without its server, and says which, without the password."""
    url = NOWHERE.replace("nobody", "nobody:secret")

    with closing(Database(url)) as database:
        with pytest.raises(DatabaseUnusable, match=r"nobody:\*\*\*@127.0.0.1:9/none") as caught:
            database.migrate()
        with pytest.raises(StorageUnavailable), database.read() as session:
            session.scalar(text("SELECT 1"))

    assert "secret" not in str(caught.value)
