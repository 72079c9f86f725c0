"""Joins random mixes of requests, and holds every answer against its rows called alone.

    python -m tests.faults.batched_mixes [--mixes N] [--seed N] [--model NAME] [--cache DIR]

For each model of the examples, a worker gets mixes of requests with random rows at random moments
over one stream. Every row of every answer must be, within the model's tolerance, what the exported
program gives for that row alone in a process that batches nothing; and exactly what the executable
that ran the batch gives for the request alone. A failure prints the seed and exits with 1.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.prepare import Example, prepare_cnn, prepare_mlp, prepare_transformer
from examples.services import clean_environment, service
from servax import AsyncClient, Client
from servax.reference import ModelReference
from servax.types import Batching
from servax_worker import batch
from servax_worker.rows import join
from servax_worker.server import WorkerServer
from servax_worker.settings import Settings

POOL = 64
PREPARE = {
    "mnist-mlp": prepare_mlp,
    "mnist-cnn": prepare_cnn,
    "transformer": prepare_transformer,
}
# Requests of a mix, rows of a request, and of a batch, at most; the transformer takes 20 ms a row.
# Left to itself, a worker may find that nothing is gained by joining a model's requests.
LARGEST = {"mnist-mlp": (12, 9, 64), "mnist-cnn": (12, 9, 64), "transformer": (4, 2, 8)}
TOLERANCE = 1e-5
"""Of the largest logit: float32 sums in another order, as other numbers of rows bring it."""


class Batches:
    """Checks every batch that the worker runs, on the thread that ran it."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.joined = 0
        self.checked = 0
        self.wrong: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check batches while the block runs."""
        run = batch.Batch.run

        def checked(job: batch.Batch) -> None:
            run(job)
            if job.error is None:
                self._check(job)

        with mock.patch.object(batch.Batch, "run", checked):
            yield

    def _check(self, job: batch.Batch) -> None:
        self.sizes[job.rows] += 1
        self.joined += len(job.pieces) > 1
        for piece, part in zip(job.pieces, job.parts, strict=True):
            alone = job.runner(join([piece.inputs], job.rows))
            for name, array in part.items():
                self.checked += 1
                if not np.array_equal(array, alone[name][: piece.rows]):
                    self.wrong.append(
                        f"'{name}' of {piece.rows} rows among {len(job.pieces)} in a batch of "
                        f"{job.rows} differs from the same alone"
                    )


def pool(example: Example, rng: np.random.Generator) -> NDArray[Any]:
    """Rows to choose from: samples, or windows of as many tokens cut from them anywhere."""
    samples = example.samples
    if samples.ndim == 2:
        text, length = samples.reshape(-1), samples.shape[1]
        starts = rng.integers(0, text.size - length, POOL)
        return np.stack([text[start : start + length] for start in starts])
    return samples[rng.choice(len(samples), POOL, replace=False)]


async def ask(
    client: AsyncClient,
    example: Example,
    rows: NDArray[Any],
    expected: NDArray[np.float32],
    chosen: list[int],
    pause: float,
) -> float:
    """Send one request; gives how far its answer is from the rows alone, in the largest logit."""
    await asyncio.sleep(pause)
    answer = await client.predict(example.name, {example.input: rows[chosen]})
    wanted = expected[chosen]
    logits = answer["logits"]
    assert logits.shape == wanted.shape, (logits.shape, wanted.shape)
    return float(np.abs(logits - wanted).max() / np.abs(expected).max())


async def run_mixes(
    example: Example, address: str, mixes: int, random_numbers: random.Random, seed: int
) -> tuple[int, float]:
    """Send the mixes, one after the other; gives how many requests, and the farthest answer."""
    rows = pool(example, np.random.default_rng(seed))
    expected = np.concatenate([example.from_program(row[np.newaxis]) for row in rows])
    count, farthest = 0, 0.0
    most_requests, most_rows, _ = LARGEST[example.name]
    async with AsyncClient(worker=address, timeout=60) as client:
        for _ in track(range(mixes), example.name, console=Console(stderr=True)):
            sizes = random_numbers.choices(
                range(1, most_rows + 1), k=random_numbers.randint(1, most_requests)
            )
            spread = random_numbers.choice((0.0, 0.0, 0.01))
            distances = await asyncio.gather(
                *(
                    ask(
                        client,
                        example,
                        rows,
                        expected,
                        random_numbers.choices(range(POOL), k=size),
                        random_numbers.random() * spread,
                    )
                    for size in sizes
                )
            )
            count += len(sizes)
            farthest = max(farthest, *distances)
    return count, farthest


async def check(example: Example, registry: str, cache: Path, mixes: int, seed: int) -> list[str]:
    """Serve the example and send it mixes; gives the row of the table that tells how it went."""
    settings = Settings(
        registry=registry,
        models=(ModelReference(example.name),),
        cache_directory=cache,
        listen="127.0.0.1:0",
        http="127.0.0.1:0",
        max_batch_rows=LARGEST[example.name][2],
    )
    batches = Batches()
    began = time.monotonic()
    async with WorkerServer(settings) as server:
        await server.wait_until_loaded()
        with batches.watched():
            count, farthest = await run_mixes(
                example, server.address, mixes, random.Random(seed), seed
            )
    assert not batches.wrong, batches.wrong[0]
    assert farthest <= TOLERANCE, f"an answer is {farthest:.1e} of the largest logit off"
    assert batches.joined, "nothing was joined"
    sizes = " ".join(map(str, sorted(batches.sizes)))
    return [
        example.name,
        *(f"{mixes:,}", f"{count:,}", sizes, f"{batches.sizes.total():,}", f"{batches.joined:,}"),
        *(f"{batches.checked:,}", f"{farthest:.1e}", f"{time.monotonic() - began:.0f} s"),
    ]


@click.command()
@click.option("--mixes", default=300, show_default=True, help="How many for each model.")
@click.option("--seed", type=int, help="Repeats a run, as far as timing allows.")
@click.option("--model", "models", multiple=True, type=click.Choice(list(PREPARE)))
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path(".cache/examples"),
    show_default=True,
    help="Keeps checkpoints between runs.",
)
def main(mixes: int, seed: int | None, models: tuple[str, ...], cache: Path) -> None:
    """Send random mixes of requests, and check every answer."""
    console = Console()
    seed = random.randrange(1 << 30) if seed is None else seed
    console.print(f"seed {seed}")
    table = Table(title="Batched against unbatched")
    columns = ("mixes", "requests", "sizes", "batches", "joined", "exact", "farthest", "time")
    table.add_column("model")
    for column in columns:
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = [
            "serve",
            "--db",
            f"sqlite:///{folder / 'registry.db'}",
            "--listen",
            "127.0.0.1:0",
        ]
        with (
            service("servax_registry", options, folder, clean_environment()) as registry,
            Client(registry=registry.address) as client,
        ):
            for model in models or PREPARE:
                directory = folder / model
                directory.mkdir()
                example = PREPARE[model](console, cache, directory)
                client.push(
                    example.name,
                    example.program,
                    weights=[example.weights] if example.weights else [],
                    batching=Batching("b"),
                )
                row = asyncio.run(check(example, registry.address, folder / "worker", mixes, seed))
                table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
