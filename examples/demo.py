"""The whole way, from training to answers over gRPC: `python -m examples.demo`.

Trains three models (or takes them from .cache/examples), exports them, publishes them to a
registry, serves them from a worker that cannot import the models' code, and compares what the
worker answers with what the same models give in this process. Exits with 1 where they differ.
"""

import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from examples.measurement import EXPLANATION, Measurement, table
from examples.prepare import Example, prepare_cnn, prepare_mlp, prepare_transformer
from examples.services import (
    MODEL_CODE,
    Service,
    ServiceFailed,
    clean_environment,
    environment_without_model_code,
    importable,
    service,
)
from servax import Client, ServaxError, ServedState

ALIAS = "production"
PROMPTS = ("The following ", "If the object ", "A function is ", "Python supports ")
CONTINUATION_BYTES = 48
LATENCY_CALLS = 30
READY_TIMEOUT_SECONDS = 300.0


def main() -> int:
    """Run the demo; the exit status is 0 if every answer is right."""
    # A log has no width, and the 80 columns that rich assumes would break lines.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    root = Path(__file__).resolve().parent.parent
    state = root / ".demo"
    state.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=state))
    try:
        failures = _run(console, root / ".cache" / "examples", directory)
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    except (ServiceFailed, ServaxError, subprocess.CalledProcessError) as error:
        console.print(Text(f"failed: {error}", style="red"))
        return 1
    finally:
        shutil.rmtree(directory)
    for failure in failures:
        console.print(Text(f"wrong: {failure}", style="red"))
    if not failures:
        console.print(Text("Every answer is as it must be.", style="green"))
    return 1 if failures else 0


def _run(console: Console, cache: Path, directory: Path) -> list[str]:
    console.rule(f"1. Train and export (JAX {jax.__version__})", align="left")
    examples = []
    for name, prepare in (
        ("transformer", prepare_transformer),
        ("mnist-cnn", prepare_cnn),
        ("mnist-mlp", prepare_mlp),
    ):
        (directory / name).mkdir()
        examples.append(prepare(console, cache, directory / name))
    transformer, _, mlp = examples
    measurements = {example.name: Measurement() for example in examples}
    with ExitStack() as stack:
        console.rule("2. Publish", align="left")
        database = f"sqlite:///{directory / 'registry.db'}"
        registry = stack.enter_context(
            service(
                "servax_registry",
                ["serve", "--db", database, "--listen", "127.0.0.1:0"],
                directory,
                clean_environment(),
            )
        )
        console.print(f"a registry serves at {registry.address}")
        with Client(registry=registry.address) as client:
            for example in examples:
                _publish(console, client, example, directory, measurements[example.name])
        _cli(console, directory, "ls", "--registry", registry.address)
        _cli(console, directory, "show", f"{mlp.name}@{ALIAS}", "--registry", registry.address)

        console.rule("3. Serve", align="left")
        worker = stack.enter_context(_worker(console, registry.address, examples, directory))
        client = stack.enter_context(Client(worker=worker.address))
        console.print(f"a worker serves at {worker.address}")
        _wait_until_ready(console, client, worker, measurements)

        console.rule("4. Call", align="left")
        for example in examples:
            _call(console, client, example, measurements[example.name])
        np.save(directory / "image.npy", mlp.samples[:1])
        arguments = ["--input", f"{mlp.input}=@image.npy", "--worker", worker.address]
        _cli(console, directory, "predict", f"{mlp.name}@{ALIAS}", *arguments)
        _continue_prompts(console, client, transformer)
    console.rule("5. Measured", align="left")
    console.print(table(measurements, LATENCY_CALLS))
    console.print(EXPLANATION)
    return [
        f"{name} {failure}"
        for name, measurement in measurements.items()
        for failure in measurement.failures()
    ]


def _publish(
    console: Console,
    client: Client,
    example: Example,
    directory: Path,
    measurement: Measurement,
) -> None:
    weights = [example.weights] if example.weights else []
    measurement.program_bytes = example.program.stat().st_size
    measurement.weights_bytes = sum(path.stat().st_size for path in weights)
    started = time.perf_counter()
    version = client.push(example.name, example.program, weights=weights, aliases=[ALIAS])
    measurement.push = time.perf_counter() - started
    command = ["servax", "push", example.name, str(example.program.relative_to(directory))]
    for path in weights:
        command += ["--weights", str(path.relative_to(directory))]
    _show_command(console, [*command, "--alias", ALIAS])
    (signature,) = version.signatures
    console.print(
        f"  {version.model}:{version.number}  {', '.join(map(str, signature.inputs))}  ->  "
        f"{', '.join(map(str, signature.outputs))}",
        markup=False,
    )


def _cli(console: Console, directory: Path, *arguments: str) -> None:
    """Run the servax command in a directory and show what it prints."""
    _show_command(console, ["servax", *arguments])
    command = Path(sys.executable).with_name("servax")
    result = subprocess.run(
        [command, *arguments], check=True, cwd=directory, stdout=subprocess.PIPE, text=True
    )
    lines = (line.rstrip() for line in result.stdout.strip("\n").splitlines())
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _show_command(console: Console, command: list[str]) -> None:
    console.print(Text(f"$ {shlex.join(command)}", style="bold"), soft_wrap=True)


@contextmanager
def _worker(
    console: Console, registry: str, examples: list[Example], directory: Path
) -> Iterator[Service]:
    """Run a worker that serves the examples and cannot import their code."""
    environment = environment_without_model_code(directory / "without-model-code")
    home = directory / "worker"
    home.mkdir()
    if found := importable(MODEL_CODE, home, environment):
        raise ServiceFailed(f"the worker's environment has {', '.join(found)}")
    console.print(f"the worker's environment cannot import {', '.join(MODEL_CODE)}")
    models = [part for it in examples for part in ("--model", f"{it.name}@{ALIAS}")]
    arguments = ["serve", "--registry", registry, *models, "--cache-dir", str(home / "cache")]
    _show_command(console, ["servax-worker", "serve", "--registry", registry, *models])
    with service(
        "servax_worker",
        [*arguments, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        home,
        environment,
    ) as worker:
        yield worker


def _wait_until_ready(
    console: Console, client: Client, worker: Service, measurements: dict[str, Measurement]
) -> None:
    """Wait for every model, and measure how long each takes from the start of the process."""
    seen: dict[str, str] = {}
    while not all(measurement.ready for measurement in measurements.values()):
        worker.check()
        elapsed = time.perf_counter() - worker.started
        for served in client.status().versions:
            measurement = measurements[served.model]
            if served.state is ServedState.FAILED:
                raise ServiceFailed(f"the worker gave up on {served.model}: {served.detail}")
            if served.state is ServedState.READY and not measurement.ready:
                measurement.ready = elapsed
            if seen.get(served.model) != served.state.name:
                seen[served.model] = served.state.name
                console.print(f"  {elapsed:6.2f} s  {served.model}  {served.state.name}")
        if elapsed > READY_TIMEOUT_SECONDS:
            raise ServiceFailed(f"not READY after {READY_TIMEOUT_SECONDS:.0f} s: {seen}")
        time.sleep(0.02)


def _call(console: Console, client: Client, example: Example, measurement: Measurement) -> None:
    """Time calls with one row; compare, and judge, what comes back for all samples."""
    reference = f"{example.name}@{ALIAS}"

    def timed(inputs: NDArray[Any]) -> tuple[NDArray[Any], float]:
        started = time.perf_counter()
        outputs = client.predict(reference, {example.input: inputs})
        return outputs["logits"], time.perf_counter() - started

    row = example.samples[:1]
    _, measurement.first_call = timed(row)
    measurement.steady_call = statistics.median(timed(row)[1] for _ in range(LATENCY_CALLS))
    logits, _ = timed(example.samples)
    source, program = example.from_source(example.samples), example.from_program(example.samples)
    measurement.program_difference = float(np.abs(logits - program).max())
    measurement.source_difference = float(np.abs(logits - source).max() / np.abs(source).max())
    if example.labels is not None:
        measurement.accuracy = float((logits.argmax(-1) == example.labels).mean())
        measurement.local_accuracy = float((source.argmax(-1) == example.labels).mean())
    shape = ",".join(map(str, logits.shape))
    console.print(
        f"{reference}: {len(example.samples)} rows, logits float32[{shape}]", markup=False
    )


def _continue_prompts(console: Console, client: Client, example: Example) -> None:
    """Let the transformer write on, a byte a call, four prompts at a time."""
    texts = [prompt.encode() for prompt in PROMPTS]
    random = np.random.default_rng(0)
    for _ in range(CONTINUATION_BYTES):
        tokens = np.zeros((len(texts), example.samples.shape[1]), np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = list(text)
        logits = client.predict(f"{example.name}@{ALIAS}", {example.input: tokens})["logits"]
        for row, text in enumerate(texts):
            texts[row] += bytes([_draw(logits[row, len(text) - 1], random)])
    console.print(f"the {example.name} writes on, in {CONTINUATION_BYTES} calls for all four:")
    for prompt, text in zip(PROMPTS, texts, strict=True):
        written = re.sub(r"\s+", " ", text[len(prompt) :].decode(errors="replace"))
        console.print(Text.assemble("  ", (prompt, "dim"), (written, "bold")))


def _draw(logits: NDArray[np.float32], random: np.random.Generator) -> int:
    """Draw a byte by its probability, sharpened: temperature 1/2."""
    weights = np.exp(2 * (logits - logits.max()).astype(np.float64))
    return int(random.choice(len(weights), p=weights / weights.sum()))


if __name__ == "__main__":
    sys.exit(main())
