"""Kills the serving process, the loader process and the registry at random moments, under load.

    python tests/faults/worker_kills.py --kills 200 --seed 1

A worker follows an alias that moves to a new version in every round, while callers check every
answer. After each kill the new version must be served in the end. Meanwhile

* no answer is wrong: each is that of a version that the alias has pointed to;
* a killed loader process or registry fails no call;
* a killed serving process fails calls with Unavailable alone, and no caller for longer than from
  the kill until a model is READY again, and until its client has connected again.

Linux only. A failure prints the seed and exits with 1.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from servax import Client
from servax.errors import ServaxError, Unavailable

CALLERS = 4
MODEL = "killed"
REFERENCE = f"{MODEL}@production"
X = np.array([[1, 0, 2], [0, 3, 1]], np.float32)
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)
# How long a client may take to connect again: its longest pause, and the attempt itself.
RECONNECTING = 3.0
PATIENCE = 120.0


def expected(number: int) -> np.ndarray:
    """What version `number` answers to X; every value is exact in float32."""
    return X @ KERNEL + number


class Service:
    """A process of a service that comes back at the address that it had."""

    def __init__(self, module: str, log: Path, *options: str) -> None:
        self._module = module
        self._options = options
        self._log = log
        self.address = "127.0.0.1:0"

    def launch(self) -> None:
        """Start it, and wait until it serves."""
        with self._log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", self._module, "serve"),
                    *(*self._options, "--listen", self.address),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "serving":
                self.address = event["address"]
                break
        else:
            raise AssertionError(f"{self._module} did not start: {self._log.read_text()}")
        threading.Thread(target=self._drain, args=(self.process,), daemon=True).start()

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with self._log.open("a") as log:
            for line in process.stdout:
                log.write(line)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(60)


def child(pid: int) -> int | None:
    """The only child of a process."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for found in children.read_text().split():
                return int(found)
    return None


class Caller(threading.Thread):
    """Calls without a pause, checks each answer, and notes when calls failed and when again not."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._client = Client(worker=address, timeout=PATIENCE)
        self.stopped = False
        self.answers = 0
        self.outages: list[tuple[float, float]] = []
        self.fault = ""

    def run(self) -> None:
        """Call until told to stop, or until something is wrong."""
        failing_since = None
        with self._client as client:
            while not self.stopped and not self.fault:
                began = time.monotonic()
                try:
                    scores = client.predict(REFERENCE, {"x": X})["scores"]
                except Unavailable:
                    failing_since = failing_since or began
                    time.sleep(0.02)
                    continue
                except ServaxError as error:
                    self.fault = f"a call failed with {error!r}"
                    break
                if not np.array_equal(scores, expected(int(scores[0, 0] - expected(0)[0, 0]))):
                    self.fault = f"a wrong answer: {scores}"
                self.latest = int(scores[0, 0] - expected(0)[0, 0])
                self.answers += 1
                if failing_since is not None:
                    self.outages.append((failing_since, time.monotonic()))
                    failing_since = None


class Kills:
    """Rounds of a new version, a kill, and a check."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._number = 0
        self._registry = Service(
            "servax_registry", folder / "registry.log", "--db", f"sqlite:///{folder}/r.db"
        )
        self._program = exported()
        self.counts: Counter[str] = Counter()
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._registry.launch()
        self._stack.callback(lambda: self._registry.process.kill())
        self._client = self._stack.enter_context(Client(registry=self._registry.address))
        self._move()
        self._worker = Service(
            "servax_worker",
            self._folder / "worker.log",
            *("--registry", self._registry.address, "--model", REFERENCE, "--poll", "0.2"),
            *("--http", "127.0.0.1:0", "--cache-dir", str(self._folder / "cache")),
        )
        self._worker.launch()
        self._stack.callback(lambda: self._worker.process.kill())
        self._status = self._stack.enter_context(Client(worker=self._worker.address))
        self._await_served(self._number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, kills: int) -> None:
        """Do so many rounds; raises AssertionError when the worker broke its promise."""
        callers = [Caller(self._worker.address) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            for _ in track(range(kills), "kills", console=Console(stderr=True)):
                self._round(callers)
        finally:
            for caller in callers:
                caller.stopped = True
            for caller in callers:
                caller.join()
        self.counts["answers checked"] = sum(caller.answers for caller in callers)
        assert self._worker.end(signal.SIGTERM) == 0

    def _round(self, callers: list[Caller]) -> None:
        victim = self._rng.choice(["serving process", "serving process", "loader", "registry"])
        before = [len(caller.outages) for caller in callers]
        self._move()
        killed, back = self._kill(victim)
        self._await_served(self._number)
        for caller in callers:  # so that whoever still fails notices that it need not
            answers = caller.answers
            self._wait(lambda: caller.fault or caller.answers > answers + 1, "an answer")  # noqa: B023
            assert not caller.fault, caller.fault
            assert caller.latest <= self._number
        for caller, known in zip(callers, before, strict=True):
            for began, ended in caller.outages[known:]:
                assert victim == "serving process", f"calls failed when the {victim} was killed"
                self.longest = max(self.longest, ended - began)
                allowed = back - killed + RECONNECTING
                assert ended - began <= allowed, f"{ended - began:.1f} s without an answer"
        self.counts[f"{victim} killed"] += 1

    def _kill(self, victim: str) -> tuple[float, float]:
        """Kill, and give when that was and when all was back."""
        serving = child(self._worker.process.pid)
        assert serving is not None
        if victim == "registry":
            time.sleep(self._rng.uniform(0, 1.5))
            killed = time.monotonic()
            self._registry.end(signal.SIGKILL)
            time.sleep(self._rng.uniform(0, 0.5))
            self._registry.launch()
            return killed, time.monotonic()
        if victim == "loader":
            self._wait(lambda: child(serving), "a loader process")
            time.sleep(self._rng.uniform(0, 1.5))
            if (loader := child(serving)) is None:
                self.counts["loader had ended"] += 1
                return 0.0, 0.0
            os.kill(loader, signal.SIGKILL)
            return 0.0, 0.0
        time.sleep(self._rng.uniform(0, 3))
        killed = time.monotonic()
        os.kill(serving, signal.SIGKILL)
        self._wait(lambda: child(self._worker.process.pid) not in (None, serving), "a process")
        self._status.wait_until_ready(REFERENCE, timeout=PATIENCE)
        return killed, time.monotonic()

    def _move(self) -> None:
        from safetensors.numpy import save_file

        self._number += 1
        path = self._folder / "weights.safetensors"
        bias = np.full(4, self._number, np.float32)
        save_file({"kernel": KERNEL, "bias": bias}, path)
        version = self._client.push(MODEL, self._program, weights=[path], aliases=["production"])
        assert version.number == self._number

    def _await_served(self, number: int) -> None:
        def served() -> bool:
            try:
                versions = self._status.status(MODEL).versions
            except Unavailable:
                return False
            assert not any(each.state.name == "FAILED" for each in versions), versions
            return [(each.version, each.state.name) for each in versions] == [(number, "READY")]

        self._wait(served, f"version {number}")

    def _wait(self, condition, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what} did not come in {PATIENCE:.0f} s"
            assert self._worker.process.poll() is None, "the worker has ended"
            time.sleep(0.01)


def exported() -> bytes:
    """Make a program."""
    import jax
    from jax import export

    def linear(params, x):
        return {"scores": x @ params["kernel"] + params["bias"]}

    (b,) = export.symbolic_shape("b")
    params = {
        "kernel": jax.ShapeDtypeStruct((3, 4), "float32"),
        "bias": jax.ShapeDtypeStruct((4,), "float32"),
    }
    function = export.export(jax.jit(linear))(params, jax.ShapeDtypeStruct((b, 3), "float32"))
    return bytes(function.serialize())


@click.command()
@click.option("--kills", default=200, show_default=True, help="How many rounds to do.")
@click.option("--seed", type=int, help="Repeats a run, as far as timing allows.")
def main(kills: int, seed: int | None) -> None:
    """Kill a worker's processes and its registry at random moments, and check what callers see."""
    if seed is None:
        seed = random.randrange(1 << 30)
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with Kills(folder, seed) as run:
                run.run(kills)
        except AssertionError as error:
            log = (folder / "worker.log").read_text().splitlines()
            raise click.ClickException("\n".join([*log[-40:], str(error)])) from error
    for what, count in sorted(run.counts.items()):
        click.echo(f"{count:6} {what}")
    click.echo(f"{run.longest:6.1f} seconds without an answer, at most")


if __name__ == "__main__":
    main()
