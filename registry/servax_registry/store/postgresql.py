"""What is particular to PostgreSQL: its settings, its transactions, its locks."""

from typing import Any

from sqlalchemy import URL, Connection, Engine, event
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
_TIMEOUTS = "SET LOCAL lock_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = '60s'"

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
    arguments = {key: value for key, value in _CONNECTING.items() if key not in url.query}
    # Connections that a restarted server dropped are noticed before a unit of work gets them.
    return {"connect_args": arguments, "pool_pre_ping": True}


def configure(engine: Engine) -> None:
    """Let every connection of the engine begin transactions as we do."""
    event.listen(engine, "begin", _begin)


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    durable, alone = options.get("servax_durable"), options.get("servax_alone")
    if durable is None:
        return
    statements = [_TIMEOUTS]
    if not durable:
        # A machine's crash may undo the last commits, but never breaks the database; the next
        # durable commit covers them.
        statements.append("SET LOCAL synchronous_commit = off")
    if alone:
        statements.append(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql("; ".join(statements))


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
