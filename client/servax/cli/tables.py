"""What people see: tables on stdout, progress bars on stderr."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import progress
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from servax.cli.rendering import add_row, escaped, grid, last_day, moment, show
from servax.types import (
    Change,
    Model,
    Progress,
    ServedVersion,
    Version,
    VersionStatistics,
    WorkerStatus,
)

_STYLES = {"READY": "green", "FAILED": "red"}


def print_text(text: str) -> None:
    """Print what a program holds."""
    click.echo(escaped(text))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that others wrote."""
    for line in lines:
        click.echo(escaped(line))


def print_json(document: Any) -> None:
    """Print a document for scripts."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_models(models: Iterable[Model]) -> None:
    """Print one line per model."""
    table = grid("name", "latest", "versions", "aliases", "created")
    for model in models:
        aliases = ", ".join(f"{alias} → {number}" for alias, number in model.aliases.items())
        latest = model.latest_version or "—"
        add_row(table, model.name, latest, model.version_count, aliases, moment(model.create_time))
    show(table)


def print_versions(versions: Iterable[Version], *, with_model: bool) -> None:
    """Print one line per version; where they are of several models, with the model."""
    table = grid("version", "aliases", "signatures", "size", "created", "expires", "description")
    for version in versions:
        number = f"{version.model}:{version.number}" if with_model else str(version.number)
        add_row(
            table,
            f"{number} (deleted)" if version.delete_time else number,
            ", ".join(version.aliases),
            ", ".join(signature.name for signature in version.signatures),
            decimal(version.size),
            moment(version.create_time),
            last_day(version.expires) if version.expires else "",
            version.description,
        )
    show(table)


def print_changes(changes: Iterable[Change]) -> None:
    """Print one line per change."""
    table = grid("revision", "time", "actor", "action", "model", "version", "what")
    for change in changes:
        what = change.detail
        if change.alias:
            before = change.previous_version or "nowhere"
            what = f"{change.alias}: {before} → {change.version or 'nowhere'}"
        add_row(
            table,
            change.revision,
            moment(change.time),
            change.actor,
            change.action.name.lower().replace("_", " "),
            change.model,
            change.version or "",
            what,
        )
    show(table)


def print_status(status: WorkerStatus) -> None:
    """Print one line per version that a worker serves."""
    show(Text(f"JAX {status.jax_version} on {status.platform}"), _served(status.versions))


def print_served(versions: Iterable[ServedVersion]) -> None:
    """Print one line per version."""
    show(_served(versions))


def _served(versions: Iterable[ServedVersion]) -> Table:
    table = grid("model", "version", "alias", "state", "detail")
    for served in versions:
        state = Text(served.state.name, style=_STYLES.get(served.state.name, "yellow"))
        add_row(table, served.model, served.version or "—", served.alias, state, served.detail)
    return table


def print_statistics(versions: Iterable[VersionStatistics]) -> None:
    """Print one line per version; seconds are means, of batches by their rows."""
    table = grid(
        *("model", "version", "answered", "failed", "seconds", "waited"),
        *("batches", "rows a batch", "compute"),
    )
    for each in versions:
        batches = sum(batch.compute.count for batch in each.batches)
        rows = sum(batch.rows * batch.compute.count for batch in each.batches)
        compute = sum(batch.compute.seconds for batch in each.batches)
        add_row(
            table,
            *(each.model, each.version, each.succeeded.count, each.failed.count),
            *(f"{each.succeeded.mean:.6f}", f"{each.waited.mean:.6f}", batches),
            *((f"{rows / batches:.1f}", f"{compute / batches:.6f}") if batches else ("", "")),
        )
    show(table)


def print_arrays(arrays: Mapping[str, NDArray[Any]], *, values: bool) -> None:
    """Print each array's type, and its elements (of a large one, the outermost)."""
    for name, array in arrays.items():
        show(Text(escaped(f"{name}: {array.dtype.name}{list(array.shape)}"), style="bold"))
        if values:
            show(Text(np.array2string(array, threshold=100)))


@contextmanager
def progress_bars() -> Iterator[Callable[[Progress], None] | None]:
    """Give a function that draws bars; None where nobody is looking."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
    ) as bars:
        tasks: dict[tuple[str, str], progress.TaskID] = {}

        def report(step: Progress) -> None:
            key = step.action, step.name
            if key not in tasks:
                tasks[key] = bars.add_task(f"{step.action} {step.name}", total=step.total)
            bars.update(tasks[key], completed=step.done)

        yield report
