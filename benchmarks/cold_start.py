# mypy: disable-error-code="no-untyped-call"
# JAX annotates only part of its functions.
"""How long a worker takes from the start of its process to READY.

    python -m benchmarks.cold_start [--rounds N] [--cache DIR]

The transformer of the examples, with its weights beside the program and baked into it, and the MLP,
are served by a worker of their own that starts on an empty cache directory (cold), and again on
what that left behind (warm). Beside each, in the same round, a process does nothing but import JAX,
because the speed of a machine drifts. The target: warm, with weights beside the program, at most
0.6 s above that import.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import click
import jax
import safetensors.flax
from jax import export
from rich.console import Console
from rich.table import Table

from examples.prepare import Example, prepare_mlp, prepare_transformer
from examples.services import clean_environment, service
from servax import Client


def import_seconds() -> float:
    """Seconds that a process takes that imports JAX and nothing else."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jax"], check=True)
    return time.perf_counter() - began


def ready_seconds(registry: str, model: str, cache: Path) -> float:
    """Seconds from the start of a worker's process until it tells that the model is READY."""
    began = time.perf_counter()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "servax_worker", "serve"),
            *("--registry", registry, "--model", model, "--cache-dir", str(cache)),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] in ("ready", "failed"):
                seconds = time.perf_counter() - began
                break
        process.terminate()
        process.stdout.read()
    if event["event"] == "failed":
        raise click.ClickException(f"{model} is FAILED: {event['why']}")
    return seconds


def bake(example: Example, path: Path) -> Path:
    """Write the program of an example anew, with its weights inside."""
    assert example.weights is not None
    program = export.deserialize(bytearray(example.program.read_bytes()))
    weights = safetensors.flax.load_file(example.weights)
    (b,) = export.symbolic_shape("b")
    tokens = program.in_avals[-1]
    function = jax.jit(lambda tokens: program.call(weights, tokens))
    argument = jax.ShapeDtypeStruct((b, *tokens.shape[1:]), tokens.dtype)
    path.write_bytes(export.export(function, platforms=("cpu", "cuda"))(argument).serialize())
    return path


def publish(registry: str, directory: Path, cache: Path, console: Console) -> list[str]:
    """Publish what is measured; gives the models' names."""
    with Client(registry=registry, timeout=300) as client:
        made = {}
        for name, prepare in (("transformer", prepare_transformer), ("mlp", prepare_mlp)):
            (directory / name).mkdir()
            made[name] = prepare(console, cache, directory / name)
        transformer = made["transformer"]
        assert transformer.weights is not None
        client.push("transformer", transformer.program, weights=[transformer.weights])
        client.push("transformer-baked", bake(transformer, directory / "baked.bin"))
        client.push("mlp-baked", made["mlp"].program)
    return ["transformer", "transformer-baked", "mlp-baked"]


@click.command()
@click.option("--rounds", default=5, show_default=True, help="How often to measure.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path(".cache/examples"),
    show_default=True,
    help="Where trained checkpoints are kept.",
)
def main(rounds: int, cache: Path) -> None:
    """Measure cold and warm starts."""
    console = Console()
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    above: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        arguments = ["serve", "--db", f"sqlite:///{directory / 'r.db'}", "--listen", "127.0.0.1:0"]
        with service("servax_registry", arguments, directory, clean_environment()) as registry:
            models = publish(registry.address, directory, cache.absolute(), console)
            for number in range(rounds):
                for model in models:
                    for temperature in ("cold", "warm"):
                        imported = import_seconds()
                        worker_cache = directory / f"{model}-{number}"
                        seconds = ready_seconds(registry.address, model, worker_cache)
                        times[model, temperature].append(seconds)
                        above[model, temperature].append(seconds - imported)
                        times["", ""].append(imported)
    table = Table(title=f"Process start to READY, medians of {rounds} rounds")
    for column in ("", "", "seconds", "above import jax", "least above"):
        table.add_column(column, justify="right")
    table.add_row("import jax", "", f"{median(times.pop(('', ''))):.2f}", "", "")
    for (model, temperature), seconds_each in times.items():
        differences = above[model, temperature]
        table.add_row(
            model,
            temperature,
            f"{median(seconds_each):.2f}",
            f"{median(differences):.2f}",
            f"{min(differences):.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
