"""What people see of one version."""

from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from servax.cli.rendering import add_row, escaped, grid, last_day, list_of_facts, moment, show
from servax.types import (
    Batching,
    Compatibility,
    Encoding,
    GoldenExample,
    Signature,
    TensorSpec,
    Trial,
    TrialOutcome,
    Version,
)

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def print_version(version: Version) -> None:
    """Print everything about a version."""
    facts = list_of_facts()
    by = f" by {version.creator}" if version.creator else ""
    add_row(facts, "created", moment(version.create_time) + by)
    if version.delete_time:
        add_row(facts, "deleted", Text(moment(version.delete_time), style="red"))
    if version.copied_from:
        add_row(facts, "copied from", version.copied_from)
    if version.source_revision:
        add_row(facts, "made from", version.source_revision)
    add_row(facts, "size", decimal(version.size))
    if version.aliases:
        add_row(facts, "aliases", ", ".join(version.aliases))
    if version.description:
        add_row(facts, "description", version.description)
    for key, value in version.labels.items():
        add_row(facts, f"label {key}", value)
    for shard in version.weights:
        text = f"{len(shard.tensors)} tensors, {decimal(shard.blob.size)}, {shard.blob.digest}"
        add_row(facts, "weights", text)
    show(Text(f"{version.model}:{version.number}", style="bold"), facts)
    for signature in version.signatures:
        show(Text(), *_signature(signature))


def _signature(signature: Signature) -> Iterator[Any]:
    yield Text(escaped(f"signature {signature.name}"), style="bold")
    facts = list_of_facts()
    add_row(facts, "function", signature.function_name)
    add_row(facts, "platforms", ", ".join(signature.platforms))
    if signature.device_count != 1:
        add_row(facts, "devices", signature.device_count)
    add_row(facts, "program", f"{decimal(signature.program.size)}, {signature.program.digest}")
    add_row(facts, "written by", _writer(signature))
    if signature.compatibility:
        add_row(facts, "loads in", _readers(signature.compatibility))
        add_row(facts, "expires", _expiry(signature.compatibility))
    for name, values in (
        ("disabled checks", signature.disabled_checks),
        ("effects", signature.effects),
        ("custom nodes", signature.custom_nodes),
        ("custom calls", signature.custom_calls),
    ):
        if values:
            add_row(facts, name, ", ".join(values))
    if signature.batching:
        add_row(facts, "batching", _batching(signature.batching))
    if signature.golden:
        add_row(facts, "golden", _golden(signature.golden))
    if signature.trial:
        for name, value in _trial(signature.trial):
            add_row(facts, name, value)
    yield facts
    if signature.encodings:
        yield _encodings(signature.encodings)
    yield _specs("input", signature.inputs)
    yield _specs("output", signature.outputs)


def _writer(program: Signature | Encoding) -> str:
    jax = f"JAX {program.jax_version}, " if program.jax_version else ""
    return f"{jax}StableHLO {program.stablehlo_version}"


def _readers(window: Compatibility) -> str:
    if not window.oldest_jax:
        return "no release of JAX that is known here"
    since = f" ({window.oldest_jax_date})" if window.oldest_jax_date else ""
    return f"JAX {window.oldest_jax}{since} and newer"


def _expiry(window: Compatibility) -> Text:
    """Tell the last day on which a release can be built that is bound to load a program."""
    day = last_day(window.expires)
    if window.estimated:
        day.append(" or later")
    if window.expires < date.today():
        day.append("; a JAX that is built now may refuse it")
    return day


def _batching(batching: Batching) -> str:
    if not batching.symbol:
        return f"{batching.max_rows} rows a call"
    most = f", at most {batching.max_rows} a call" if batching.max_rows else ""
    return f"rows are counted by {batching.symbol}{most}"


def _golden(golden: GoldenExample) -> str:
    blob = golden.blob
    return f"rtol {golden.rtol:g}, atol {golden.atol:g}, {decimal(blob.size)}, {blob.digest}"


def _trial(trial: Trial) -> Iterator[tuple[str, object]]:
    yield "trial", _outcome(trial)
    if trial.outcome is not TrialOutcome.PASSED:
        return
    yield "computes", f"{_flops(trial.flops)}, {decimal(trial.accessed_bytes)} accessed"
    memory = (
        ("arguments", trial.argument_bytes),
        ("results", trial.result_bytes),
        ("temporaries", trial.temporary_bytes),
        ("code", trial.code_bytes),
    )
    yield "takes", ", ".join(f"{decimal(size)} {what}" for what, size in memory)


def _outcome(trial: Trial) -> Text:
    outcome = trial.outcome.name.lower()
    if trial.outcome is not TrialOutcome.PASSED:
        style = "red" if trial.outcome is TrialOutcome.FAILED else ""
        return Text(escaped(f"{outcome}: {trial.reason}"), style=style)
    size = f", every symbolic dimension {trial.size}" if trial.size else ""
    what = "compiled and run" if trial.ran else "compiled, too large to run"
    return Text(escaped(f"{outcome}: {what} by JAX {trial.jax_version}{size}"))


def _flops(count: int) -> str:
    power = min((len(str(count)) - 1) // 3, len(_PREFIXES) - 1)
    return f"{count / 1000**power:.{1 if power else 0}f} {_PREFIXES[power]}FLOP"


def _encodings(encodings: Iterable[Encoding]) -> Table:
    table = grid("encoding", "written by", "loads in", "expires", "trial", "added")
    for encoding in encodings:
        add_row(
            table,
            encoding.program.digest,
            _writer(encoding),
            _readers(encoding.compatibility),
            _expiry(encoding.compatibility),
            _outcome(encoding.trial) if encoding.trial else "",
            moment(encoding.create_time),
        )
    return table


def _specs(kind: str, specs: tuple[TensorSpec, ...]) -> Table:
    table = grid(kind, "dtype", "shape")
    for spec in specs:
        add_row(table, spec.name, spec.dtype, f"[{', '.join(spec.shape)}]")
    return table
