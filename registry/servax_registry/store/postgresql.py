"""What is particular to PostgreSQL: its settings, its transactions, its locks."""

from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine.interfaces import ExecutionContext
from sqlalchemy.exc import DBAPIError, OperationalError

from servax_registry.errors import RegistryError, StorageFull, StorageUnavailable

# Reads see one snapshot, and need no more than that.
READ_OPTIONS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

# How the driver connects. A server that vanished is noticed within a minute.
_CONNECTING = {
    "application_name": "servax-registry",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

# Names the lock that units of work take which must be alone: "servax" in ASCII.
_LOCK = 0x736572766178

# A registry that stalls in the middle of a unit of work gives up its locks after as long as others
# wait for them; ours take milliseconds.
_TIMEOUTS = {"lock_timeout": "60s", "idle_in_transaction_session_timeout": "60s"}

# SQLSTATE classes and codes of what is the server's state rather than a bug of ours:
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_TROUBLE = (
    "08",  # connection exception
    "25006",  # read-only: a standby answered
    "25P03",  # idle-in-transaction timeout
    "40",  # transaction rollback: deadlock, serialization failure
    "53",  # insufficient resources
    "55P03",  # lock timeout
    "57",  # operator intervention: shutdown, cancel
    "58",  # system error: I/O
)
_DISK_FULL = "53100"


def engine_arguments(url: URL) -> dict[str, Any]:
    """Give what create_engine takes besides the pool's size; what the URL says comes first."""
    return {
        "connect_args": {key: value for key, value in _CONNECTING.items() if key not in url.query},
        # Connections that a restarted server dropped are noticed before a unit of work gets them.
        "pool_pre_ping": True,
    }


def configure(engine: Engine) -> None:
    """Let every connection of the engine begin transactions, and get bytes, as we do."""
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", _choose_format)


def _choose_format(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: object,
    context: ExecutionContext,
    executemany: bool,
) -> None:
    # As text, which is the default, and which much of SQLAlchemy relies on, bytes take three times
    # as long.
    if context.execution_options.get("servax_bytes"):
        from psycopg.pq import Format  # not installed everywhere

        cursor.format = Format.BINARY


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    durable, alone = options.get("servax_durable"), options.get("servax_alone")
    if durable is None:
        return
    # A machine's crash may undo the last commits that were not synced, but never breaks the
    # database; the next durable commit covers them.
    local = _TIMEOUTS if durable else {**_TIMEOUTS, "synchronous_commit": "off"}
    calls = [f"set_config('{name}', '{value}', true)" for name, value in local.items()]
    if alone:
        calls.append(f"pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(f"SELECT {', '.join(calls)}")


def faults(connection: Connection) -> tuple[str, ...]:
    """Nothing: the server checks references, and, with data checksums, what it reads."""
    return ()


def trouble(error: DBAPIError) -> RegistryError | None:
    """Tell a caller what an error of the driver means; None when it is a bug of ours."""
    state = getattr(error.orig, "sqlstate", None)
    if state == _DISK_FULL:
        return StorageFull("the disk of the registry's database is full; tell the operator")
    if state is None:
        # The driver itself found that there is no connection, or no longer.
        troubled = isinstance(error, OperationalError) or error.connection_invalidated
    else:
        troubled = state.startswith(_TROUBLE)
    if not troubled:
        return None
    return StorageUnavailable("the registry's database does not answer; try again later")
