"""What callers notice of versions that come and go: errors, mixed answers, latency.

    python -m benchmarks.rollout [--moves N] [--callers N] [--versions N]

A worker follows an alias, and callers call it without a pause. First nothing moves; then the alias
moves, again and again, to versions of which each is new to the worker the first time, so that a
loader process proves it, and loaded from what is kept after that. A caller asks the worker which
version is current before and after each call.

The targets: no call fails; no answer is of a version that was not current before or after; the p99
of calls that overlap a load is at most 1.5 times that of the quiet beginning.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import grpc.aio
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from examples.services import clean_environment, service
from servax import AsyncClient
from servax.tensors import from_proto, to_proto
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc

SIZE = 256
QUIET_SECONDS = 10.0


def program() -> bytes:
    """Export three dense layers whose weights are an argument; the last one adds a number."""
    import jax
    from jax import export

    def layers(params, x):  # type: ignore[no-untyped-def]
        for name in ("a", "b"):
            x = jax.nn.relu(x @ params[name])
        return {"output": 0 * x + params["number"]}

    matrix = jax.ShapeDtypeStruct((SIZE, SIZE), "float32")  # type: ignore[no-untyped-call]
    params = {
        **dict.fromkeys(("a", "b"), matrix),
        "number": jax.ShapeDtypeStruct((1,), "float32"),  # type: ignore[no-untyped-call]
    }
    (b,) = export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, SIZE), "float32")  # type: ignore[no-untyped-call]
    return bytes(export.export(jax.jit(layers))(params, x).serialize())


@dataclass
class Seen:
    """What the callers saw; calls are the moments of their begin and end."""

    calls: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    mixed: int = 0


async def call(address: str, seen: Seen) -> None:
    """Call without a pause until cancelled."""
    request = prediction_pb2.PredictRequest(
        model="moving", alias="production", inputs={"x": to_proto(np.ones((1, SIZE), np.float32))}
    )
    async with grpc.aio.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionStub(channel)

        async def current() -> int:
            status = await stub.GetStatus(prediction_pb2.GetStatusRequest(model="moving"))
            return status.versions[0].version

        before = await current()
        while True:
            began = time.perf_counter()
            try:
                answer = await stub.Predict(request)
            except grpc.aio.AioRpcError as error:
                seen.errors.append(f"{error.code().name}: {error.details()}")
                continue
            seen.calls.append((began, time.perf_counter()))
            after = await current()
            value = int(from_proto(answer.outputs["output"])[0, 0])
            seen.mixed += answer.version not in (before, after) or value != answer.version
            before = after


async def move(client: AsyncClient, number: int) -> tuple[float, float]:
    """Move the alias, and wait until its version answers; gives when that began and ended."""
    began = time.perf_counter()
    await client.set_alias("moving", "production", number)
    while True:
        versions = (await client.status("moving")).versions
        if versions[0].version == number and versions[0].state.name == "READY":
            return began, time.perf_counter()
        assert not any(each.state.name == "FAILED" for each in versions), versions
        await asyncio.sleep(0.02)


def p99(calls: Sequence[tuple[float, float]]) -> float:
    """The 99th percentile of how long calls took, in milliseconds."""
    return float(np.percentile([ended - began for began, ended in calls], 99)) * 1000


async def measure(
    registry: str, worker: str, versions: int, moves: int, callers: int
) -> tuple[Seen, float, list[tuple[float, float]]]:
    """Give what was seen, when the quiet time ended, and when versions were loading."""
    seen = Seen()
    async with AsyncClient(registry=registry, worker=worker, timeout=120) as client:
        await client.wait_until_ready("moving@production")
        calling = [asyncio.create_task(call(worker, seen)) for _ in range(callers)]
        await asyncio.sleep(QUIET_SECONDS)
        quiet_until = time.perf_counter()
        numbers = itertools.cycle([*range(2, versions + 1), 1])
        loads = [await move(client, next(numbers)) for _ in range(moves)]
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)
    return seen, quiet_until, loads


async def publish(registry: str, folder: Path, versions: int) -> None:
    """Publish versions that differ in their weights."""
    rng = np.random.default_rng(0)
    path = folder / "weights.safetensors"
    async with AsyncClient(registry=registry, timeout=120) as client:
        for number in range(1, versions + 1):
            a, b = rng.standard_normal((2, SIZE, SIZE)).astype(np.float32)
            save_file({"a": a, "b": b, "number": np.array([number], np.float32)}, path)
            aliases = ["production"] if number == 1 else []
            await client.push("moving", program(), weights=[path], aliases=aliases)


@click.command()
@click.option("--moves", default=200, show_default=True, help="How often the alias moves.")
@click.option("--callers", default=16, show_default=True, help="How many call at once.")
@click.option("--versions", default=20, show_default=True, help="How many there are.")
def main(moves: int, callers: int, versions: int) -> None:
    """Measure what callers notice of moves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listen = ["--listen", "127.0.0.1:0"]
        options = ["serve", "--db", f"sqlite:///{folder / 'r.db'}", *listen]
        with service("servax_registry", options, folder, clean_environment()) as registry:
            asyncio.run(publish(registry.address, folder, versions))
            options = [
                *("serve", "--registry", registry.address, "--model", "moving@production"),
                *("--poll", "0.1", "--cache-dir", str(folder / "cache"), *listen),
                *("--http", "127.0.0.1:0"),
            ]
            with service("servax_worker", options, folder, clean_environment()) as worker:
                seen, quiet_until, loads = asyncio.run(
                    measure(registry.address, worker.address, versions, moves, callers)
                )
    quiet = [each for each in seen.calls if each[1] < quiet_until]
    new, known = loads[: versions - 1], loads[versions - 1 :]

    def during(periods: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [
            (began, ended)
            for began, ended in seen.calls
            if any(began < last and ended > first for first, last in periods)
        ]

    table = Table(title=f"{moves} moves, {callers} callers: {len(seen.calls)} answers")
    for column in ("", "calls", "p99 in ms", "to quiet", "seconds a move"):
        table.add_column(column, justify="right")
    quiet_p99 = p99(quiet)
    table.add_row("quiet", str(len(quiet)), f"{quiet_p99:.1f}", "1", "")
    for label, periods in (("loads of new versions", new), ("of known versions", known)):
        calls = during(periods)
        if calls:
            took = float(np.median([last - first for first, last in periods]))
            ratio = p99(calls) / quiet_p99
            row = str(len(calls)), f"{p99(calls):.1f}", f"{ratio:.2f}", f"{took:.2f}"
            table.add_row(label, *row)
    console = Console()
    console.print(table)
    console.print(f"{len(seen.errors)} errors, {seen.mixed} mixed answers")
    for error in sorted(set(seen.errors))[:5]:
        console.print(error)
    if seen.errors or seen.mixed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
