"""What people see: tables on stdout, progress bars on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import box, progress
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from servax.types import Change, Model, Progress, Signature, TensorSpec, Version, WorkerStatus

_STYLES = {"READY": "green", "FAILED": "red"}


def print_json(document: Any) -> None:
    """Print a document for scripts."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def _print(*renderables: Any) -> None:
    # What goes into a pipe has no width; nothing may be cut there.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    for renderable in renderables:
        console.print(renderable)


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _facts() -> Table:
    # Broken rather than cut where the terminal is narrow: a digest must stay whole.
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def _row(table: Table, *cells: object) -> None:
    # As Text, for what others wrote must not be taken for markup.
    table.add_row(*(cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in cells))


def _shown(cell: object) -> str:
    """Escape what would steer the terminal, such as the sequences that set colours or its title."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in str(cell)
    )


def _time(value: datetime) -> str:
    return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def print_models(models: Iterable[Model]) -> None:
    """Print one line per model."""
    table = _table("name", "latest", "versions", "aliases", "created")
    for model in models:
        aliases = ", ".join(f"{alias} → {number}" for alias, number in model.aliases.items())
        latest = model.latest_version or "—"
        _row(table, model.name, latest, model.version_count, aliases, _time(model.create_time))
    _print(table)


def print_versions(versions: Iterable[Version], *, with_model: bool) -> None:
    """Print one line per version; where they are of several models, with the model."""
    table = _table("version", "aliases", "signatures", "size", "created", "description")
    for version in versions:
        number = f"{version.model}:{version.number}" if with_model else str(version.number)
        _row(
            table,
            f"{number} (deleted)" if version.delete_time else number,
            ", ".join(version.aliases),
            ", ".join(signature.name for signature in version.signatures),
            decimal(version.size),
            _time(version.create_time),
            version.description,
        )
    _print(table)


def print_changes(changes: Iterable[Change]) -> None:
    """Print one line per change."""
    table = _table("revision", "time", "actor", "action", "model", "version", "what")
    for change in changes:
        what = change.detail
        if change.alias:
            before = change.previous_version or "nowhere"
            what = f"{change.alias}: {before} → {change.version or 'nowhere'}"
        _row(
            table,
            change.revision,
            _time(change.time),
            change.actor,
            change.action.name.lower().replace("_", " "),
            change.model,
            change.version or "",
            what,
        )
    _print(table)


def print_version(version: Version) -> None:
    """Print everything about a version."""
    facts = _facts()
    _row(facts, "created", _time(version.create_time))
    _row(facts, "size", decimal(version.size))
    if version.aliases:
        _row(facts, "aliases", ", ".join(version.aliases))
    if version.description:
        _row(facts, "description", version.description)
    for key, value in version.labels.items():
        _row(facts, f"label {key}", value)
    for shard in version.weights:
        text = f"{len(shard.tensors)} tensors, {decimal(shard.blob.size)}, {shard.blob.digest}"
        _row(facts, "weights", text)
    _print(Text(f"{version.model}:{version.number}", style="bold"), facts)
    for signature in version.signatures:
        _print(Text(), *_signature(signature))


def _signature(signature: Signature) -> Iterator[Any]:
    yield Text(f"signature {signature.name}", style="bold")
    facts = _facts()
    _row(facts, "function", signature.function_name)
    _row(facts, "platforms", ", ".join(signature.platforms))
    if signature.device_count != 1:
        _row(facts, "devices", signature.device_count)
    _row(facts, "program", f"{decimal(signature.program.size)}, {signature.program.digest}")
    exported_by = f"JAX {signature.jax_version}, " if signature.jax_version else ""
    _row(facts, "written by", f"{exported_by}StableHLO {signature.stablehlo_version}")
    for name, values in (
        ("disabled checks", signature.disabled_checks),
        ("effects", signature.effects),
        ("custom nodes", signature.custom_nodes),
    ):
        if values:
            _row(facts, name, ", ".join(values))
    yield facts
    yield _specs("input", signature.inputs)
    yield _specs("output", signature.outputs)


def _specs(kind: str, specs: tuple[TensorSpec, ...]) -> Table:
    table = _table(kind, "dtype", "shape")
    for spec in specs:
        _row(table, spec.name, spec.dtype, f"[{', '.join(spec.shape)}]")
    return table


def print_status(status: WorkerStatus) -> None:
    """Print one line per version that a worker serves."""
    table = _table("model", "version", "alias", "state", "detail")
    for served in status.versions:
        state = Text(served.state.name, style=_STYLES.get(served.state.name, "yellow"))
        _row(table, served.model, served.version or "—", served.alias, state, served.detail)
    _print(Text(f"JAX {status.jax_version} on {status.platform}"), table)


def print_arrays(arrays: Mapping[str, NDArray[Any]], *, values: bool) -> None:
    """Print each array's type, and its elements (of a large one, the outermost)."""
    for name, array in arrays.items():
        _print(Text(_shown(f"{name}: {array.dtype.name}{list(array.shape)}"), style="bold"))
        if values:
            _print(Text(np.array2string(array, threshold=100)))


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
