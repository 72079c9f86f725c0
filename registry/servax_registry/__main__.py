"""The command line: servax-registry, or python -m servax_registry."""

import ctypes
import importlib.util
import logging
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta

import click
import structlog

from servax_registry.cli import backups, maintenance, webhooks
from servax_registry.errors import AddressUnusable, BlobsUnusable, DatabaseUnusable
from servax_registry.server import is_serving
from servax_registry.server import serve as serving
from servax_registry.settings import Settings

# From glibc's malloc.h.
_M_ARENA_MAX = -8

_listen_option = click.option(
    "--listen",
    envvar="SERVAX_REGISTRY_LISTEN",
    show_envvar=True,
    default=Settings.listen,
    metavar="HOST:PORT",
    help="Where the registry serves; port 0 takes any free port.",
)


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Store jax.export artifacts and the versions of models that are made of them."""


@main.command()
@click.option(
    "--db",
    "database",
    envvar="SERVAX_REGISTRY_DB",
    show_envvar=True,
    default=Settings.database,
    metavar="URL",
    help="The database that holds everything; created when it does not exist.",
)
@_listen_option
@click.option(
    "--grace",
    envvar="SERVAX_REGISTRY_GRACE",
    show_envvar=True,
    default=Settings.grace,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long calls in flight may take when the registry is told to stop.",
)
@click.option(
    "--max-transfers",
    envvar="SERVAX_REGISTRY_MAX_TRANSFERS",
    show_envvar=True,
    default=Settings.max_transfers,
    type=click.IntRange(1, 1000),
    help="How many blobs may be read and written at once.",
)
@click.option(
    "--blobs",
    envvar="SERVAX_REGISTRY_BLOBS",
    show_envvar=True,
    metavar="URL",
    help="Where new blobs lie: file:///DIRECTORY, s3://, gs:// or az://; the database by default.",
)
@click.option(
    "--upload-expiry",
    envvar="SERVAX_REGISTRY_UPLOAD_EXPIRY",
    show_envvar=True,
    default=Settings.upload_expiry / timedelta(hours=1),
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="How long an upload may stand still before it is discarded.",
)
@click.option(
    "--allow-custom-call",
    "allowed_custom_calls",
    multiple=True,
    envvar="SERVAX_REGISTRY_ALLOW_CUSTOM_CALL",
    show_envvar=True,
    metavar="TARGET",
    help="A custom call that programs may make although JAX does not keep it stable. Repeat for "
    "more; separate by spaces in the environment.",
)
@click.option(
    "--trials/--no-trials",
    envvar="SERVAX_REGISTRY_TRIALS",
    show_envvar=True,
    default=lambda: _jax_is_installed(),
    show_default="where JAX is installed",
    help="In the background, compile and run every program once, in a cage.",
)
def serve(
    database: str,
    listen: str,
    grace: float,
    max_transfers: int,
    blobs: str | None,
    upload_expiry: float,
    allowed_custom_calls: tuple[str, ...],
    trials: bool,
) -> None:
    """Serve the registry until SIGTERM or SIGINT."""
    if trials and not _jax_is_installed():
        raise click.UsageError("--trials takes JAX and flatbuffers: pip install 'servax[export]'")
    _configure_logging()
    _share_one_heap()
    log = structlog.get_logger("servax_registry")
    settings = Settings(
        database,
        listen,
        grace,
        max_transfers,
        blobs,
        timedelta(hours=upload_expiry),
        frozenset(allowed_custom_calls),
        trials,
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with serving(settings) as server:
            log.info(
                "serving", address=server.address, database=server.database, blobs=settings.blobs
            )
            # Python answers a signal that comes in the instant before it sleeps when it wakes up.
            while not stop.wait(1.0):
                pass
            log.info("stopping", grace=grace)
    except (AddressUnusable, BlobsUnusable, DatabaseUnusable) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_listen_option
def health(listen: str) -> None:
    """Ask a registry whether it serves: exit code 0, or 1."""
    if not is_serving(listen):
        raise click.ClickException(f"no registry serves at {listen}")
    click.echo("serving")


def _jax_is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("jax", "flatbuffers"))


def _share_one_heap() -> None:
    """Let all threads allocate from one heap, where the C library is glibc.

    It would give many of them one of their own, each of which keeps what a transfer once took:
    twice the memory after a few transfers, measured, and no gain in speed.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _configure_logging() -> None:
    """Write a line an event to standard output: for people on a terminal, JSON otherwise."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if sys.stdout.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # Nothing that an operator would miss: it tells of every migration that it looked at.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


for command in (*maintenance.COMMANDS, *backups.COMMANDS, *webhooks.COMMANDS):
    main.add_command(command)


if __name__ == "__main__":
    main(prog_name="servax-registry")
