"""Tables and texts on standard output, where what others wrote cannot steer the terminal."""

import sys
from datetime import date, datetime, timedelta
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# What expires within this time is shown in yellow.
_SOON = timedelta(days=60)


def show(*renderables: Any) -> None:
    """Print one after the other."""
    # What goes into a pipe has no width; nothing may be cut there.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    for renderable in renderables:
        console.print(renderable)


def grid(*columns: str) -> Table:
    """Give a table without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def list_of_facts() -> Table:
    """Give a table of names and values without rows."""
    # Broken rather than cut where the terminal is narrow: a digest must stay whole.
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def add_row(table: Table, *cells: object) -> None:
    """Add a row; a Text is taken as it is."""
    # As Text, for what others wrote must not be taken for markup.
    table.add_row(*(cell if isinstance(cell, Text) else Text(escaped(cell)) for cell in cells))


def escaped(cell: object) -> str:
    """Escape what would steer the terminal, such as the sequences that set colours or its title."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in str(cell)
    )


def moment(value: datetime) -> str:
    """Write a time in the local zone."""
    return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def last_day(day: date) -> Text:
    """Write a day on which something expires: in red when it is over, in yellow when it is soon."""
    left = day - date.today()
    return Text(str(day), style="red" if left < timedelta() else "yellow" if left < _SOON else "")
