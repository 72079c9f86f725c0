"""Runs the checks of a protocol and prints how they went.

A protocol's checks are the public methods of an object, in their order. A check's name is the first
line of its docstring. It passes unless it raises, may return what it found for people to read, and
raises `NotApplicable` where the server is not to be blamed.
"""

import inspect
import time
import traceback
from collections.abc import Callable, Iterator

import grpc
from rich.console import Console
from rich.markup import escape
from rich.table import Table


class NotApplicable(Exception):
    """A check that means nothing for this server or model; the message says why."""


def run(title: str, checks: object) -> bool:
    """Runs all checks, prints a table, and tells whether none failed."""
    table = Table("check", "result", "ms", "found", title=title)
    failed = 0
    for name, check in _checks(checks):
        began = time.perf_counter()
        found = ""
        try:
            found, result = check() or "", "passed"
        except NotApplicable as error:
            found, result = str(error), "-"
        except Exception as error:
            failed += 1
            found, result = _told(error), "FAILED"
        table.add_row(name, result, f"{(time.perf_counter() - began) * 1000:.0f}", escape(found))
    console = Console()
    if not console.is_terminal:  # a log has room
        console = Console(width=180)
    console.print(table)
    console.print(f"{failed} failed" if failed else "all passed")
    return not failed


def _checks(checks: object) -> Iterator[tuple[str, Callable[[], str | None]]]:
    for name, method in vars(type(checks)).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            title = (inspect.getdoc(method) or name).splitlines()[0]
            yield title, getattr(checks, name)


def _told(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
