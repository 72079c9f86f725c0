"""How fast a blob of weights goes up to a registry and down again, and what memory that takes.

    python -m benchmarks.blob_transfer [--size MIB] [--rounds N] [--directory DIR]

A real registry process with a fresh SQLite database is measured against writing, syncing and
hashing the same bytes locally, round by round in one run, because the speed of a disk drifts. The
targets: half the local speed each way, and at most 64 MiB of memory above idle on either side.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click
import grpc
from rich.console import Console
from rich.table import Table

from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc

MIB = 1 << 20


def copy_locally(source: Path, target: Path) -> None:
    """Copy a file as a careful program would: hashed, and synced to the disk."""
    sha256 = hashlib.sha256()
    with target.open("wb") as file:
        for data in _chunks(source):
            sha256.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def upload(stub: registry_pb2_grpc.RegistryStub, source: Path) -> str:
    """Hash and upload a file; gives its digest."""
    sha256 = hashlib.sha256()
    for data in _chunks(source):
        sha256.update(data)
    digest = f"sha256:{sha256.hexdigest()}"

    def requests() -> Iterator[registry_pb2.WriteBlobRequest]:
        blob = artifact_pb2.Blob(digest=digest, size=source.stat().st_size)
        yield registry_pb2.WriteBlobRequest(blob=blob)
        offset = 0
        for data in _chunks(source):
            yield registry_pb2.WriteBlobRequest(offset=offset, data=data)
            offset += len(data)

    stub.WriteBlob(requests())
    return digest


def download(stub: registry_pb2_grpc.RegistryStub, digest: str, target: Path) -> None:
    """Download a blob into a file, verified and synced to the disk."""
    sha256 = hashlib.sha256()
    with target.open("wb") as file:
        for response in stub.ReadBlob(registry_pb2.ReadBlobRequest(digest=digest)):
            sha256.update(response.data)
            file.write(response.data)
        file.flush()
        os.fsync(file.fileno())
    if digest != f"sha256:{sha256.hexdigest()}":
        raise click.ClickException(f"what came down is not {digest}")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while data := file.read(MIB):
            yield data


class PeakMemory:
    """Samples the resident memory of a process every 10 ms; Linux only."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.idle = self.peak = self._resident()
        threading.Thread(target=self._sample, daemon=True).start()

    @property
    def growth(self) -> float:
        """The highest value above the first one, in MiB."""
        return (self.peak - self.idle) / 1024

    def _sample(self) -> None:
        while self._status.exists():
            self.peak = max(self.peak, self._resident())
            time.sleep(0.01)

    def _resident(self) -> int:
        try:
            text = self._status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return next((int(line.split()[1]) for line in text.splitlines() if "VmRSS" in line), 0)


@contextmanager
def registry(directory: Path) -> Iterator[tuple[str, int]]:
    """Run a registry process; gives its address and process id."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "servax_registry", "serve"),
            *("--db", f"sqlite:///{directory / 'registry.db'}", "--listen", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _make(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(size):
            file.write(os.urandom(MIB))
    # What the disk still has to do must not count against what is measured next.
    os.sync()


@click.command()
@click.option("--size", default=1024, show_default=True, help="Size of the blob in MiB.")
@click.option("--rounds", default=3, show_default=True, help="How often to measure.")
@click.option("--directory", type=click.Path(path_type=Path), help="On which disk to measure.")
def main(size: int, rounds: int, directory: Path | None) -> None:
    """Measure uploads and downloads against the local disk."""
    times: dict[str, list[float]] = {"local": [], "up": [], "down": []}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = Path(name)
        with registry(folder) as (address, pid), grpc.insecure_channel(address) as channel:
            stub = registry_pb2_grpc.RegistryStub(channel)
            stub.ListModels(registry_pb2.ListModelsRequest())
            server, client = PeakMemory(pid), PeakMemory(os.getpid())
            for _ in range(rounds):
                _make(source := folder / "source", size)
                target = folder / "target"
                begin = time.perf_counter()
                copy_locally(source, target)
                copied = time.perf_counter()
                digest = upload(stub, source)
                uploaded = time.perf_counter()
                download(stub, digest, target)
                downloaded = time.perf_counter()
                times["local"].append(copied - begin)
                times["up"].append(uploaded - copied)
                times["down"].append(downloaded - uploaded)
            _report(size, times, server.growth, client.growth)


def _report(
    size: int, times: dict[str, list[float]], server_growth: float, client_growth: float
) -> None:
    table = Table(title=f"{size} MiB, {len(times['up'])} rounds, medians")
    for column in ("", "MB/s", "ratio to local", "slowest ratio"):
        table.add_column(column, justify="right" if column else "left")
    for label, key in (("write + sync + hash locally", "local"), ("up", "up"), ("down", "down")):
        ratios = [local / own for local, own in zip(times["local"], times[key], strict=True)]
        table.add_row(
            label,
            f"{size * MIB / 1e6 / median(times[key]):.0f}",
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"memory above idle: registry {server_growth:.0f} MiB, client {client_growth:.0f} MiB"
    )


if __name__ == "__main__":
    main()
