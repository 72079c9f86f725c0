"""The options and argument types that commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from servax._calls.endpoints import DEFAULT_TIMEOUT
from servax.errors import InvalidReference
from servax.reference import ModelReference

F = TypeVar("F", bound=Callable[..., Any])


class ReferenceType(click.ParamType[ModelReference]):
    """NAME, NAME:VERSION or NAME@ALIAS."""

    name = "reference"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ModelReference:
        """Read a reference; what is none is wrong usage."""
        try:
            return ModelReference.parse(value)
        except InvalidReference as error:
            self.fail(str(error), param, ctx)


class PairType(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        key, sign, rest = value.partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, rest


REFERENCE = ReferenceType()
PAIR = PairType()
FILE = click.Path(exists=True, dir_okay=False)


def registry_option(command: F) -> F:
    """Add --registry."""
    return click.option(
        "--registry",
        metavar="HOST:PORT",
        envvar="SERVAX_REGISTRY",
        default="127.0.0.1:8400",
        show_default=True,
        show_envvar=True,
        help="Where the registry listens.",
    )(command)


def worker_option(command: F) -> F:
    """Add --worker."""
    return click.option(
        "--worker",
        metavar="HOST:PORT",
        envvar="SERVAX_WORKER",
        default="127.0.0.1:8500",
        show_default=True,
        show_envvar=True,
        help="Where the worker listens.",
    )(command)


def output_options(command: F) -> F:
    """Add --json and --timeout."""
    with_json = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for scripts instead of tables."
    )
    with_timeout = click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        help="How long one call may take; transfers get a second more for every MiB.",
    )
    return with_timeout(with_json(command))
