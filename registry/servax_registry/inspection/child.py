"""Runs a child process on a file, and outlives whatever the child does."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

# Isolated (-I), the child does not see PYTHONPATH. It is given the package's own folder, which
# works wherever that is: installed, editable, or a checkout.
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_CHUNK = 1 << 16
# How many seconds a cancelled child lives on at most.
_HEED = 0.1

# How a child ends when there is no memory left to answer.
OUT_OF_MEMORY = 81


class Stopped(Exception):
    """The child was ended before it answered; the message tells why, as "that took too long"."""


def boot(module: str) -> str:
    """Python code that runs `main` of a module of this package; appended to `python -c`."""
    return (
        "import sys; sys.path.append(sys.argv.pop(1)); "
        f"from servax_registry.inspection.{module} import main; main()"
    )


def run_child(
    options: Sequence[str],
    code: str,
    arguments: Sequence[object],
    file: BinaryIO,
    *,
    environment: Mapping[str, str],
    cpu_seconds: int,
    wall_seconds: float,
    answer_size: int,
    quiet: bool = False,
    cancelled: threading.Event | None = None,
) -> tuple[int, bytes]:
    """Runs `python -I options -c code arguments` on `file`; returns exit status and output.

    `cpu_seconds` is what the child limits itself to; `quiet` drops what it says on standard error.
    Raises Stopped when a signal, `wall_seconds`, more than `answer_size` bytes of output or
    `cancelled` ended it.
    """
    file.flush()
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", *options, "-c", code, str(_PACKAGE_ROOT)),
            *map(str, arguments),
        ],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        env=dict(environment),
        start_new_session=True,
    )
    stdout = cast(IO[bytes], process.stdout)
    deadline = time.monotonic() + wall_seconds
    try:
        output = _read(stdout, answer_size, deadline, cancelled)
        status = _wait(process, deadline, cancelled)
    except TimeoutError:
        raise Stopped(f"that took more than {wall_seconds:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        stdout.close()
    if status < 0:
        raise Stopped(_cause(-status, cpu_seconds))
    return status, output


def _read(
    stream: IO[bytes], limit: int, deadline: float, cancelled: threading.Event | None
) -> bytes:
    """All that the child writes; raises TimeoutError or Stopped."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(_patience(deadline, cancelled)):
                continue
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                return bytes(output)
            output += chunk
            if len(output) > limit:
                raise Stopped(f"what it says exceeds {limit} bytes")


def _wait(
    process: subprocess.Popen[bytes], deadline: float, cancelled: threading.Event | None
) -> int:
    """The child's exit status; raises TimeoutError or Stopped."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_patience(deadline, cancelled))


def _patience(deadline: float, cancelled: threading.Event | None) -> float:
    """For how many seconds to wait next; raises TimeoutError or Stopped instead of waiting."""
    if cancelled and cancelled.is_set():
        raise Stopped("nobody waits for it any more")
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, _HEED) if cancelled else left


def _cause(number: int, cpu_seconds: int) -> str:
    """What the signal that ended a child means."""
    if number == signal.SIGXCPU:
        return f"that took more than {cpu_seconds} s of CPU time"
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    return f"its process was ended by {name}"
