"""What the demo measures of each model, when that is wrong, and how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass

from rich import box
from rich.filesize import decimal
from rich.table import Table

# The same program, compiled by the same JAX for the same machine, has no reason to differ by a
# bit. Compiled from source, the operations are fused differently.
SOURCE_TOLERANCE = 1e-5
LOWEST_ACCURACY = 0.9

EXPLANATION = (
    "Differences are between logits over gRPC and logits in this process: those of the exported "
    "program (largest absolute difference, must be 0) and those of jax.jit of the model's source "
    f"(relative to the largest logit, at most {SOURCE_TOLERANCE:.0e})."
)


@dataclass
class Measurement:
    """One model's column of the final table; times in seconds, sizes in bytes.

    `program_difference` is the largest absolute difference to the exported program, called in
    this process; `source_difference` that to the source, relative to the largest logit.
    """

    program_bytes: int = 0
    weights_bytes: int = 0
    push: float = 0.0
    ready: float = 0.0
    first_call: float = 0.0
    steady_call: float = 0.0
    program_difference: float = 0.0
    source_difference: float = 0.0
    accuracy: float | None = None
    local_accuracy: float | None = None

    def failures(self) -> list[str]:
        """Return what is not as it must be."""
        failures = []
        if self.program_difference != 0:
            failures.append(f"differs from the same program by {self.program_difference:.1e}")
        if not self.source_difference <= SOURCE_TOLERANCE:
            failures.append(
                f"differs from its source by {self.source_difference:.1e} of the largest logit, "
                f"more than {SOURCE_TOLERANCE:.0e}"
            )
        if self.accuracy is not None and self.accuracy < LOWEST_ACCURACY:
            failures.append(f"has an accuracy of {self.accuracy:.1%}, under {LOWEST_ACCURACY:.0%}")
        return failures


def table(measurements: dict[str, Measurement], steady_calls: int) -> Table:
    """Show the measurements by model's name, a column each."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("")
    for name in measurements:
        result.add_column(name, justify="right")
    steady = f"steady call (median of {steady_calls})"
    rows: list[tuple[str, Callable[[Measurement], str]]] = [
        ("program", lambda m: decimal(m.program_bytes)),
        ("weights beside it", lambda m: decimal(m.weights_bytes) if m.weights_bytes else "-"),
        ("push", lambda m: _milliseconds(m.push)),
        ("worker start to READY", lambda m: f"{m.ready:.2f} s"),
        ("first call, 1 row", lambda m: _milliseconds(m.first_call)),
        (steady, lambda m: _milliseconds(m.steady_call)),
        ("difference to the same program", lambda m: f"{m.program_difference:.2g}"),
        ("difference to jax.jit of the source", lambda m: f"{m.source_difference:.2g}"),
        ("accuracy over gRPC", lambda m: _percent(m.accuracy)),
        ("accuracy in this process", lambda m: _percent(m.local_accuracy)),
    ]
    for label, cell in rows:
        result.add_row(label, *map(cell, measurements.values()))
    return result


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"
