"""Pushes damaged artifacts to a registry, as many as one likes.

    python -m tests.faults.mutated_blobs --blobs 5000 --seed 1

Every blob is a program or a safetensors file with flipped bits, cut, spliced with another, or with
huge sizes declared, and goes through `Client.push`. The registry must refuse it as an invalid
argument, or publish it and give back the same bytes; it must serve throughout, log no error, leave
no process behind, and not grow. A failure names the blob, which is kept, and exits with 1.
"""

import hashlib
import os
import random
import shutil
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import jax
import numpy as np
import safetensors.numpy
from jax import export

from examples.services import Service, clean_environment, service
from servax import Blob, Client
from servax.errors import InvalidArgument, NotFound
from tests.faults.mutations import OF_PROGRAMS, OF_WEIGHTS

# How many are pushed at once.
PUSHERS = 4

# By how many MiB the registry may grow once it has seen the first tenth.
GROWTH = 24


def programs() -> list[bytes]:
    """Export programs of different size and structure."""
    (b,) = export.symbolic_shape("b")

    def linear(params, x):
        return {"logits": x @ params["w"] + params["b"]}

    def nested(tree, *, scale):
        return [(tree["a"][0] * scale, tree["a"][1]), {"sum": tree["b"].sum()}]

    def looped(x):
        return jax.lax.fori_loop(0, 9, lambda i, y: jax.numpy.tanh(y @ y) * i, x)

    spec = jax.ShapeDtypeStruct
    params = {"w": spec((4, 3), "float32"), "b": spec((3,), "float32")}
    tree = {"a": (spec((2,), "float32"), spec((2,), "int32")), "b": spec((b, 5), "bfloat16")}
    platforms = ["cpu", "cuda", "tpu"]
    exports = [
        export.export(jax.jit(linear))(params, spec((b, 4), "float32")),
        export.export(jax.jit(nested), platforms=platforms)(tree, scale=spec((), "float32")),
        export.export(jax.jit(looped))(spec((8, 8), "float32")),
    ]
    return [bytes(exported.serialize()) for exported in exports]


def weights() -> list[bytes]:
    """Write files of the weights that the first program takes."""
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.standard_normal((4, 3), np.float32),
        "b": rng.standard_normal(3, np.float32),
    }
    many = {f"layers.{index}.kernel": np.full((2, index), index) for index in range(50)}
    return [safetensors.numpy.save(tensors), safetensors.numpy.save(tensors | many)]


class Mutants:
    """Pushes mutants, each by its number, and counts what came of them."""

    def __init__(self, client: Client, folder: Path, seed: int) -> None:
        self._client = client
        self._folder = folder
        self._seed = seed
        self._programs = programs()
        self._weights = weights()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def push(self, number: int) -> None:
        """Make a mutant and push it; raises AssertionError unless it is refused or kept."""
        rng = random.Random(self._seed * 1_000_003 + number)
        of_weights = number % 2 == 1
        originals = self._weights if of_weights else self._programs
        mutate = rng.choice(OF_WEIGHTS if of_weights else OF_PROGRAMS)
        data = mutate(rng, rng.choice(originals), rng.choice(originals))
        path = self._folder / f"{'weights' if of_weights else 'program'}-{number}"
        path.write_bytes(data)
        try:
            if of_weights:
                self._client.push("m", self._programs[0], weights=[path])
            else:
                self._client.push("m", path)
            outcome = "published"
        except InvalidArgument:
            outcome = "refused"
        blob = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        try:
            assert self._client.read_blob(blob) == data, f"{path} was changed"
        except NotFound:
            assert outcome == "refused", f"{path} was published and is not there"
        path.unlink()
        with self._lock:
            kind = "weights" if of_weights else "programs"
            self.counts[f"{kind} {outcome}, {mutate.__name__}"] += 1


def resident(registry: Service) -> float:
    """How many MiB of memory the registry has."""
    pages = int(Path(f"/proc/{registry.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def children(registry: Service) -> int:
    """How many processes the registry has started that are still there."""
    tasks = Path(f"/proc/{registry.pid}/task").glob("*/children")
    return sum(len(task.read_text().split()) for task in tasks)


@click.command()
@click.option("--blobs", default=500, show_default=True, help="How many to push.")
@click.option("--seed", default=0, show_default=True, help="Repeats a run, blob by blob.")
def main(blobs: int, seed: int) -> None:
    """Push damaged artifacts to a registry."""
    folder = Path(tempfile.mkdtemp())
    arguments = ["serve", "--db", f"sqlite:///{folder / 'registry.db'}", "--listen", "127.0.0.1:0"]
    arguments += ["--no-trials"]
    with (
        service("servax_registry", arguments, folder, clean_environment()) as registry,
        Client(registry=registry.address, timeout=120) as client,
        ThreadPoolExecutor(PUSHERS) as pool,
    ):
        before = resident(registry)
        mutants = Mutants(client, folder, seed)
        list(pool.map(mutants.push, range(blobs // 10)))
        warm = resident(registry)
        list(pool.map(mutants.push, range(blobs // 10, blobs)))
        after = resident(registry)
        registry.check()
        assert not children(registry), "it left processes behind"
    log = (folder / "servax_registry.log").read_text()
    faults = [line for line in log.splitlines() if '"level": "error"' in line]
    assert not faults, faults
    for what, count in sorted(mutants.counts.items()):
        click.echo(f"{count:6} {what}")
    click.echo(
        f"registry: {before:.0f} MiB at first, {warm:.0f} after a tenth, {after:.0f} in the end"
    )
    assert after - warm < GROWTH, "it grew"
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
