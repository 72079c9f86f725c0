"""The options and argument types that commands share."""

import getpass
import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, TypeVar

import click

from servax._calls.endpoints import DEFAULT_TIMEOUT
from servax.errors import InvalidReference
from servax.reference import ModelReference
from servax.types import Batching

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


class BatchingType(click.ParamType[Batching]):
    """SYMBOL or SYMBOL:ROWS; with a number for SYMBOL, the fixed number of rows."""

    name = "batching"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Batching:
        """Split at the colon."""
        symbol, _, rows = value.partition(":")
        if symbol.isdecimal() and not rows:
            return Batching("", int(symbol))
        if not symbol.isidentifier() or not (rows.isdecimal() or ":" not in value):
            self.fail(f"{value!r} is not of the form SYMBOL or SYMBOL:ROWS", param, ctx)
        return Batching(symbol, int(rows or 0))


class DayType(click.ParamType[date]):
    """A day, as in 2026-12-31, or how far away it is: 60d, 8w, or 6m for six times 30 days."""

    name = "day"
    _DAYS = {"d": 1, "w": 7, "m": 30}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        """Read a date, or count from today."""
        try:
            if distance := re.fullmatch(r"([0-9]{1,5})([dwm])", value):
                number, unit = distance.groups()
                return date.today() + timedelta(int(number) * self._DAYS[unit])
            return date.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no day; say 60d, 8w, 6m or a day as in 2026-12-31", param, ctx)


REFERENCE = ReferenceType()
DAY = DayType()
BATCHING = BatchingType()
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


def actor_option(command: F) -> F:
    """Add --actor."""
    return click.option(
        "--actor",
        metavar="NAME",
        envvar="SERVAX_ACTOR",
        default=_user,
        show_default="the user's name",
        show_envvar=True,
        help="Who is recorded as having done this.",
    )(command)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user need not have a name
        return None


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
