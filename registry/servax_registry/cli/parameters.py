"""What the commands share: options, and the registry's storage, opened beside whoever serves it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import click
import structlog

from servax_registry.errors import RegistryError
from servax_registry.settings import Settings
from servax_registry.store.database import Database

F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """Add --db."""
    return click.option(
        "--db",
        "url",
        envvar="SERVAX_REGISTRY_DB",
        show_envvar=True,
        default=Settings.database,
        metavar="URL",
        help="The registry's database.",
    )(command)


def blobs_option(command: F) -> F:
    """Add --blobs."""
    return click.option(
        "--blobs",
        "blobs_url",
        envvar="SERVAX_REGISTRY_BLOBS",
        show_envvar=True,
        metavar="URL",
        help="Where the registry keeps blobs outside of its database, if it does.",
    )(command)


def json_option(command: F) -> F:
    """Add --json."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for scripts instead of tables."
    )(command)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """Open an existing database while the block runs; what goes wrong ends the command."""
    with failing(), closing(Database(url)) as database:
        database.check_schema()
        yield database


@contextmanager
def failing() -> Iterator[None]:
    """End the command with exit code 1 and the error's message; the log goes to standard error."""
    configuration = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        yield
    except RegistryError as error:
        raise click.ClickException(str(error)) from error
    finally:
        structlog.configure(**configuration)
