"""What an operator sees: tables and JSON on standard output, progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

Report = Callable[[int, int], None]
"""Is told how many of how many bytes are done."""


def print_json(document: Any) -> None:
    """Print a document for scripts."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below the names of their columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    # What goes into a pipe has no width; nothing may be cut there.
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(table)


def _shown(cell: object) -> str:
    """Escape what would steer the terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in str(cell)
    )


@contextmanager
def progress_bar(what: str) -> Iterator[Report]:
    """Give a function that draws a bar of bytes, where somebody is looking."""
    console = Console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
