"""What memory a worker keeps of models that were loaded and unloaded again.

    python -m benchmarks.load_unload [--cycles N] [--size MB]

A worker without models is told, again and again, to load a model with so many MB of weights, to
answer a call with it, and to unload it. The target: after 200 cycles of 100 MB, the memory that the
worker has to itself (weights that are mapped from a file are the system's to drop) is within 10 %
of that after the first 20, by medians. Linux only.
"""

import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import click
import jax
import numpy as np
from jax import export
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.numpy import save_file

from examples.services import clean_environment, service
from servax import Client

MODEL = "large"
SIDE = 1024
# Medians are of so many cycles: whether a collection of garbage has just been is chance.
_SPAN = 20


def publish(client: Client, folder: Path, megabytes: int) -> None:
    """Publish a program that multiplies a row with the sum of its weights."""
    count = max(1, megabytes * 1_000_000 // (4 * SIDE * SIDE))
    rng = np.random.default_rng(0)
    matrices = {f"w{index}": rng.random((SIDE, SIDE), np.float32) for index in range(count)}
    save_file(matrices, folder / "weights.safetensors")
    specs = {
        name: jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)  # type: ignore[no-untyped-call]
        for name, matrix in matrices.items()
    }
    (b,) = export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, SIDE), "float32")  # type: ignore[no-untyped-call]

    def apply(weights, x):  # type: ignore[no-untyped-def]
        return {"y": sum(x @ weight for weight in weights.values())}

    program = export.export(jax.jit(apply))(specs, x).serialize()
    client.push(MODEL, program, weights=[folder / "weights.safetensors"])


def own_mebibytes(pid: int) -> float:
    """What a worker's processes have to themselves, in MiB: the supervisor and those it started."""
    total, pids = 0, [pid]
    while pids:
        process = Path(f"/proc/{pids.pop()}")
        with suppress(FileNotFoundError, ProcessLookupError):  # a loader process has ended
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Clean", "Private_Dirty")):
                    total += int(line.split()[1])
            for children in process.glob("task/*/children"):
                pids += map(int, children.read_text().split())
    return total / 1024


@click.command()
@click.option("--cycles", default=200, show_default=True, help="How often to load and unload.")
@click.option("--size", default=100, show_default=True, help="Size of the weights in MB.")
def main(cycles: int, size: int) -> None:
    """Load and unload a model, and watch the worker's memory."""
    memory: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = f"sqlite:///{folder / 'registry.db'}"
        options = ["serve", "--db", database, "--listen", "127.0.0.1:0"]
        with service("servax_registry", options, folder, clean_environment()) as registry:
            with Client(registry=registry.address) as client:
                publish(client, folder, size)
            options = ["serve", "--registry", registry.address, "--allow-management"]
            options += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
            options += ["--cache-dir", str(folder / "cache")]
            with (
                service("servax_worker", options, folder, clean_environment()) as worker,
                Client(worker=worker.address, timeout=120) as client,
            ):
                began = time.monotonic()
                for _ in track(range(cycles), "cycles", console=Console(stderr=True)):
                    client.load(MODEL)
                    client.wait_until_ready(MODEL)
                    client.predict(MODEL, {"x": np.ones((1, SIDE), np.float32)})
                    loaded = own_mebibytes(worker.pid)
                    client.unload(MODEL)
                    memory.append((loaded, own_mebibytes(worker.pid)))
                seconds = (time.monotonic() - began) / cycles
    _report(memory, seconds)


def _report(memory: list[tuple[float, float]], seconds: float) -> None:
    table = Table(title=f"{len(memory)} cycles of {seconds:.2f} s: the worker's own memory in MiB")
    for column in ("cycles", "loaded", "unloaded", "unloaded, at most", "to the first"):
        table.add_column(column, justify="right")
    first = median(unloaded for _, unloaded in memory[:_SPAN])
    for begin in range(0, len(memory), _SPAN):
        span = memory[begin : begin + _SPAN]
        unloaded = [each for _, each in span]
        table.add_row(
            f"{begin + 1}-{begin + len(span)}",
            f"{median(loaded for loaded, _ in span):.0f}",
            *(f"{median(unloaded):.0f}", f"{max(unloaded):.0f}"),
            f"{median(unloaded) / first:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
