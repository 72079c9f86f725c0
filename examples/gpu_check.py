"""Runs the whole way of a model on a GPU: python -m examples.gpu_check

A registry and a worker run as processes of their own. A model is published and served on the
device; what it answers is held against the same program on the CPU of this process. It takes one to
three minutes. Where there is no device it says so and ends with 0; a step that goes wrong ends it
with 1. `--platform cpu` shows the same way where there is no GPU.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from rich.console import Console

from examples.services import Service, clean_environment, service
from servax import Client, FailedPrecondition
from servax.types import Batching, Golden, Version

MODEL = "gpu-check"
WIDTH, HIDDEN, CLASSES = 512, 2048, 64
# GPUs multiply float32 with TF32's ten bits of mantissa.
RTOL, ATOL = 1e-2, 1e-2

# Exported in a process of its own, on the CPU: the worker's process is to have the GPU to itself.
_EXPORT = """
import sys
import jax, jax.numpy as jnp
from jax import export

def forward(params, x):
    hidden = jax.nn.gelu(x @ params["hidden.kernel"] + params["hidden.bias"])
    return {"logits": hidden @ params["out.kernel"]}

WIDTH, HIDDEN, CLASSES = map(int, sys.argv[2:])
f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
params = {
    "hidden.kernel": f32(WIDTH, HIDDEN),
    "hidden.bias": f32(HIDDEN),
    "out.kernel": f32(HIDDEN, CLASSES),
}
(b,) = export.symbolic_shape("b")
platforms = ("cpu", "cuda")
program = export.export(jax.jit(forward), platforms=platforms)(params, f32(b, WIDTH))
open(sys.argv[1], "wb").write(program.serialize())
"""


class Check:
    """The steps, and what each took."""

    def __init__(self, console: Console, folder: Path, platform: str):
        self._console = console
        self._folder = folder
        self._platform = platform
        self._rng = np.random.default_rng(0)
        self._program = folder / "program.bin"
        self._cache = folder / "cache"

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._console.print(f"[green]ok[/green] {time.perf_counter() - began:6.2f} s  {what}")

    def run(self) -> None:
        """Take all steps; raises what the first one that goes wrong raises."""
        with self._step("exported for cpu and cuda"):
            sizes = map(str, (WIDTH, HIDDEN, CLASSES))
            subprocess.run(
                [sys.executable, "-c", _EXPORT, str(self._program), *sizes],
                env=clean_environment() | {"JAX_PLATFORMS": "cpu"},
                check=True,
            )
        database = f"sqlite:///{self._folder / 'registry.db'}"
        options = ["serve", "--db", database, "--listen", "127.0.0.1:0"]
        with service("servax_registry", options, self._folder, clean_environment()) as registry:
            self._with_registry(registry)

    def _with_registry(self, registry: Service) -> None:
        with Client(registry=registry.address) as client:
            with self._step("published, with a golden example and batching"):
                first, first_weights = self._push(client, "production")
            for start in ("cold", "warm"):
                with self._worker(registry, f"{MODEL}@production") as worker:
                    with self._step(f"READY on {self._platform} after a {start} start"):
                        self._wait(worker, first)
                    if start == "cold":
                        self._calls(worker, first_weights)
                        self._swap(client, worker)
                        client.set_alias(MODEL, "production", first.number)
            wrong, _ = self._push(client, "wrong", golden_offset=1.0)
            with self._step("a golden example that does not hold is refused"):
                self._refused(registry, wrong, "golden")
            with self._step("a version that the device has no room for is refused"):
                self._refused(registry, first, "memory", "--memory-limit", "1000000")

    def _refused(self, registry: Service, version: Version, why: str, *options: str) -> None:
        with self._worker(registry, f"{MODEL}:{version.number}", *options) as worker:
            try:
                self._wait(worker, version)
            except FailedPrecondition as error:
                if why not in str(error):
                    raise
                return
        raise AssertionError(f"version {version.number} is served")

    def _push(
        self, client: Client, alias: str, golden_offset: float = 0.0
    ) -> tuple[Version, dict[str, NDArray[np.float32]]]:
        """Publish a version with weights of its own."""
        draw = self._rng.standard_normal
        weights = {
            "hidden.kernel": (draw((WIDTH, HIDDEN)) / WIDTH**0.5).astype(np.float32),
            "hidden.bias": draw(HIDDEN).astype(np.float32),
            "out.kernel": (draw((HIDDEN, CLASSES)) / HIDDEN**0.5).astype(np.float32),
        }
        path = self._folder / f"{alias}.safetensors"
        safetensors.numpy.save_file(weights, path)
        x = draw((3, WIDTH)).astype(np.float32)
        example = {"inputs/x": x, "outputs/logits": forward(weights, x) + np.float32(golden_offset)}
        version = client.push(
            MODEL,
            self._program,
            weights=[path],
            aliases=[alias],
            batching=Batching("b"),
            golden=Golden(safetensors.numpy.save(example), RTOL, ATOL),
        )
        return version, weights

    @contextmanager
    def _worker(self, registry: Service, model: str, *options: str) -> Iterator[Client]:
        arguments = ["serve", "--registry", registry.address, "--model", model, "--poll", "0.2"]
        arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        arguments += ["--cache-dir", str(self._cache), "--max-message-bytes", "400000", *options]
        environment = clean_environment() | {"JAX_PLATFORMS": self._platform}
        with (
            service("servax_worker", arguments, self._folder, environment) as worker,
            Client(worker=worker.address, timeout=60) as client,
        ):
            yield client

    def _wait(self, worker: Client, version: Version) -> None:
        deadline = time.monotonic() + 180
        while worker.wait_until_ready(MODEL, timeout=180).version != version.number:
            assert time.monotonic() < deadline, f"{version.number} is not served"
            time.sleep(0.1)
        status = worker.status()
        assert status.platform == self._platform, f"the worker runs on {status.platform}"

    def _calls(self, worker: Client, weights: dict[str, NDArray[np.float32]]) -> None:
        with self._step("64 callers' rows are joined, and are what the CPU gives"):
            self._compare(worker, weights, [1 + number % 4 for number in range(64)])
        with self._step("a request of 4 MiB and its answer travel in parts"):
            self._compare(worker, weights, [2048])

    def _compare(
        self, worker: Client, weights: dict[str, NDArray[np.float32]], rows: Sequence[int]
    ) -> None:
        inputs = [self._rng.standard_normal((count, WIDTH)).astype(np.float32) for count in rows]

        def call(x: NDArray[np.float32]) -> NDArray[np.float32]:
            return worker.predict(MODEL, {"x": x})["logits"]

        with ThreadPoolExecutor(len(rows)) as pool:
            answers = list(pool.map(call, inputs))
        for x, logits in zip(inputs, answers, strict=True):
            np.testing.assert_allclose(logits, forward(weights, x), RTOL, ATOL)

    def _swap(self, client: Client, worker: Client) -> None:
        with self._step("the alias moved: other weights, same executables, no failed call"):
            second, weights = self._push(client, "production")
            x = np.ones((2, WIDTH), np.float32)
            while worker.status(MODEL).versions[0].version != second.number:
                worker.predict(MODEL, {"x": x})
            self._compare(worker, weights, [1, 2, 3])


def forward(weights: dict[str, NDArray[np.float32]], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the program computes, in numpy."""
    hidden = x @ weights["hidden.kernel"] + weights["hidden.bias"]
    # JAX's gelu, in its default approximation by tanh.
    inner = np.float32((2 / np.pi) ** 0.5) * (hidden + np.float32(0.044715) * hidden**3)
    hidden = hidden * (1 + np.tanh(inner)) / 2
    logits: NDArray[np.float32] = hidden @ weights["out.kernel"]
    return logits


def device_missing() -> str:
    """Why JAX has no CUDA device, in one line; empty where it has one."""
    found = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices('cuda')"], capture_output=True, text=True
    )
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


@click.command()
@click.option("--platform", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
def main(platform: str) -> None:
    """Check the whole way of a model on a device."""
    console = Console()
    if platform == "cuda" and (reason := device_missing()):
        console.print(f"skipped: no CUDA device here ({reason})", soft_wrap=True)
        return
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        Check(console, Path(folder), platform).run()
    console.print(f"all steps passed on {platform}, in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
