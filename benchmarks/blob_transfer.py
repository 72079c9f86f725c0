"""How fast a blob of weights goes up to a registry and down again, and what memory that takes.

    python -m benchmarks.blob_transfer [--size MIB] [--rounds N] [--directory DIR]
                                       [--db URL] [--blobs directory|URL]

`servax.Client` and a real registry process, on a fresh SQLite database unless told otherwise, are
measured against writing, syncing and hashing the same bytes locally, round by round in one run,
because the speed of a disk drifts. The targets, each way: 0.6 of the local speed on SQLite, 0.8 on
a directory (`--blobs directory`), and at most 64 MiB of memory above idle on either side, also at
4 GiB (`--size 4096`).
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
from rich.console import Console
from rich.table import Table

from servax import Client

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
def registry(database: str, blobs: str | None) -> Iterator[tuple[str, int]]:
    """Run a registry process; gives its address and process id."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "servax_registry", "serve"),
            *("--db", database, "--listen", "127.0.0.1:0", "--no-trials"),
            *(("--blobs", blobs) if blobs else ()),
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


@contextmanager
def timed(times: list[float], folder: Path, size: int) -> Iterator[None]:
    """Append how many seconds the block takes, which writes so many MiB below the folder.

    A file of that size is written and removed first, so that its memory is at hand. A virtual
    machine otherwise gets every page from its host, which was measured to take ten times as long as
    filling it, and would count against whoever needs new pages, at random.
    """
    scratch = folder / "scratch"
    with scratch.open("wb") as file:
        for _ in range(size * 5 // 4):
            file.write(bytes(MIB))
    scratch.unlink()
    begin = time.perf_counter()
    yield
    times.append(time.perf_counter() - begin)


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
@click.option("--db", help="The registry's database; a SQLite file on that disk by default.")
@click.option("--blobs", help="Where its blobs lie; `directory` makes one on that disk.")
def main(size: int, rounds: int, directory: Path | None, db: str | None, blobs: str | None) -> None:
    """Measure uploads and downloads against the local disk."""
    times: dict[str, list[float]] = {"local": [], "up": [], "down": []}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = Path(name)
        db = db or f"sqlite:///{folder / 'registry.db'}"
        if blobs == "directory":
            blobs = (folder / "blobs").as_uri()
        with registry(db, blobs) as (address, pid), Client(registry=address) as client:
            list(client.models())
            memories = PeakMemory(pid), PeakMemory(os.getpid())
            for _ in range(rounds):
                _make(source := folder / "source", size)
                copy, target = folder / "copy", folder / "target"
                with timed(times["local"], folder, size):
                    copy_locally(source, copy)
                with timed(times["up"], folder, size):
                    blob = client.upload(source)
                with timed(times["down"], folder, size):
                    client.download(blob, target)
                for path in (source, copy, target):
                    path.unlink()
            _report(size, times, *(memory.growth for memory in memories))


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
