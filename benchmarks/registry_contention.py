"""Whether many writers and polling workers on one SQLite registry get in one another's way.

    python -m benchmarks.registry_contention [--writers N] [--pollers N] [--poll SECONDS]
                                             [--seconds N] [--db URL]

Each writer uploads weights of its own, publishes a version with them and moves an alias to it, one
call after the other; each poller asks once in a while for the version behind an alias of one of the
writers' models, as a worker does. They are on gRPC's stubs, without retries, so that whatever the
registry refuses is counted. The target: not one error, and nothing about the database in the
registry's log. Exits with 1 where that is missed.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import grpc
import jax
import numpy as np
import safetensors.numpy
from jax import export
from rich.console import Console
from rich.table import Table

from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc


class Load:
    """Callers of one registry, what their calls took in seconds, and what was refused."""

    def __init__(self, stub: Any, seconds: float) -> None:
        self._stub = stub
        self._end = time.perf_counter() + seconds
        self.times: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()

    async def write(self, model: str, program: str, rng: random.Random) -> None:
        """Upload, publish and move an alias until the time is over."""
        while time.perf_counter() < self._end:
            weights = safetensors.numpy.save({"w": np.array([rng.random(), 0], "float32")})
            digest = await self.upload(weights)
            version = await self._timed(
                "publish", self._stub.PublishVersion(publication(model, program, digest))
            )
            if version is not None:
                request = registry_pb2.SetAliasRequest(
                    model=model, alias="live", version=version.number
                )
                await self._timed("move an alias", self._stub.SetAlias(request))

    async def poll(self, model: str, interval: float, rng: random.Random) -> None:
        """Ask for the version behind an alias until the time is over."""
        request = registry_pb2.GetVersionRequest(model=model, alias="live")
        await asyncio.sleep(rng.uniform(0, interval))
        while time.perf_counter() < self._end:
            await self._timed("poll", self._stub.GetVersion(request))
            await asyncio.sleep(interval)

    async def upload(self, data: bytes) -> str:
        """Upload a small blob."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"

        async def requests() -> AsyncIterator[registry_pb2.WriteBlobRequest]:
            blob = artifact_pb2.Blob(digest=digest, size=len(data))
            yield registry_pb2.WriteBlobRequest(blob=blob)
            yield registry_pb2.WriteBlobRequest(data=data)

        await self._timed("upload", self._stub.WriteBlob(requests()))
        return digest

    async def _timed(self, what: str, call: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            self.errors[f"{what}: {error.code().name}: {error.details()}"] += 1
            return None
        self.times[what].append(time.perf_counter() - began)
        return answer


def publication(model: str, program: str, weights: str) -> registry_pb2.PublishVersionRequest:
    """Ask for a version that becomes the newest."""
    return registry_pb2.PublishVersionRequest(
        model=model,
        programs=[registry_pb2.ProgramSource(digest=program)],
        weights=[weights],
        aliases=["newest"],
    )


def exported() -> bytes:
    """Make a program that takes weights."""
    pair = jax.ShapeDtypeStruct((2,), "float32")  # type: ignore[no-untyped-call]
    function = jax.jit(lambda params, x: params["w"] + x)
    return bytes(export.export(function)({"w": pair}, pair).serialize())


async def load(address: str, writers: int, pollers: int, poll: float, seconds: float) -> Load:
    """Have every writer publish once, then put all of them to work."""
    rng = random.Random(1)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = registry_pb2_grpc.RegistryStub(channel)
        first = Load(stub, 0)
        program = await first.upload(exported())
        weights = await first.upload(safetensors.numpy.save({"w": np.zeros(2, np.float32)}))
        models = [f"m{index}" for index in range(writers)]
        for model in models:
            request = publication(model, program, weights)
            request.aliases.append("live")
            await stub.PublishVersion(request)
        work = Load(stub, seconds)
        await asyncio.gather(
            *(work.write(model, program, random.Random(model)) for model in models),
            *(work.poll(rng.choice(models), poll, rng) for _ in range(pollers)),
        )
        return work


@click.command()
@click.option("--writers", default=64, show_default=True)
@click.option("--pollers", default=200, show_default=True)
@click.option("--poll", default=1.0, show_default=True, help="Seconds between a poller's calls.")
@click.option("--seconds", default=30.0, show_default=True)
@click.option("--db", help="The registry's database, empty; a SQLite file of its own by default.")
def main(writers: int, pollers: int, poll: float, seconds: float, db: str | None) -> None:
    """Measure writers and pollers on one registry."""
    with tempfile.TemporaryDirectory() as name:
        url = db or f"sqlite:///{Path(name) / 'registry.db'}"
        log = Path(name) / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "servax_registry", "serve"),
                    *("--db", url, "--listen", "127.0.0.1:0"),
                ],
                stdout=file,
            )
        try:
            while not log.read_text().endswith("\n"):
                assert process.poll() is None, "the registry did not start"
                time.sleep(0.05)
            address = json.loads(log.read_text().splitlines()[0])["address"]
            work = asyncio.run(load(address, writers, pollers, poll, seconds))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        lines = map(json.loads, log.read_text().splitlines())
        troubles = Counter(
            line["event"] for line in lines if line["level"] not in ("info", "debug")
        )
    report(work, troubles, writers, pollers, seconds)
    sys.exit(1 if work.errors or troubles else 0)


def report(work: Load, troubles: Counter[str], writers: int, pollers: int, seconds: float) -> None:
    """Print latencies, errors, and what the registry logged as trouble."""
    table = Table(title=f"{writers} writers, {pollers} pollers, {seconds:g} s")
    for column in ("", "calls/s", "p50 ms", "p99 ms", "slowest ms"):
        table.add_column(column, justify="right" if column else "left")
    for what, times in work.times.items():
        cuts = quantiles(times, n=100, method="inclusive")
        values = (cuts[49], cuts[98], max(times))
        table.add_row(
            what, f"{len(times) / seconds:.1f}", *(f"{value * 1e3:.0f}" for value in values)
        )
    console = Console()
    console.print(table)
    console.print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    console.print(f"errors: {work.errors.total()}")
    for what, count in (work.errors + troubles).most_common():
        console.print(f"{count:6} {what}")


if __name__ == "__main__":
    main()
