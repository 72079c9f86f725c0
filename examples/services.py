"""Runs the registry and the worker as processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What the worker must not need.
MODEL_CODE = ("flax", "optax", "orbax", "examples")

_START_TIMEOUT_SECONDS = 120.0
_STOP_TIMEOUT_SECONDS = 20.0


class ServiceFailed(Exception):
    """A service ended, or did not start; the message holds the end of its log."""


class Service:
    """A running service; `started` is of time.perf_counter().

    `address` is where it serves gRPC, `http` where HTTP, if it does.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path, started: float):
        self._process = process
        self._log = log
        self.started = started
        self.address = ""
        self.http = ""

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def check(self) -> None:
        """Raise ServiceFailed if the process has ended."""
        if (status := self._process.poll()) is not None:
            raise ServiceFailed(f"{self._log.stem} ended with status {status}\n{self._tail()}")

    def wait_for_address(self) -> None:
        """Wait until the service has logged where it serves; raises ServiceFailed."""
        while not self._find_addresses():
            self.check()
            if time.perf_counter() - self.started > _START_TIMEOUT_SECONDS:
                raise ServiceFailed(f"{self._log.stem} does not start\n{self._tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _find_addresses(self) -> bool:
        # Away from a terminal, the services log a JSON object a line.
        for line in self._log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and line.startswith("{"):
                entry = json.loads(line)
                if entry.get("event") == "serving":
                    self.address, self.http = entry["address"], entry.get("http", "")
                    return True
        return False

    def _tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-20:])


@contextmanager
def service(
    module: str, arguments: Sequence[str], directory: Path, environment: dict[str, str]
) -> Iterator[Service]:
    """Run `python -m module arguments` while the block runs, in and with a log in `directory`.

    Raises ServiceFailed if it does not come to serve.
    """
    log = directory / f"{module}.log"
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches only the demo, which then ends its services in order.
            start_new_session=True,
        )
    running = Service(process, log, started)
    try:
        running.wait_for_address()
        yield running
    finally:
        running.stop()


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of Servax."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SERVAX_")}


def environment_without_model_code(directory: Path) -> dict[str, str]:
    """Return an environment in which importing any of MODEL_CODE fails.

    The interpreter finds modules in `directory` first; there, each of these names is a module that
    refuses to be imported. Where the directory with `examples` is the working directory, that
    would come before; so run elsewhere.
    """
    directory.mkdir()
    for name in MODEL_CODE:
        message = f"{name} is not to be had in this environment"
        (directory / f"{name}.py").write_text(f"raise ModuleNotFoundError({message!r})\n")
    environment = clean_environment()
    paths = [str(directory), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def importable(names: Sequence[str], directory: Path, environment: dict[str, str]) -> list[str]:
    """Return those of the modules that `python -m` can import in a directory and environment."""
    script = (
        "import importlib, sys\n"
        "sys.path.insert(0, '')\n"  # where python -m puts the working directory
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError:\n"
        "        continue\n"
        "    print(name)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *names],
        cwd=directory,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.split()
