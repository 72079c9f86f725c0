"""Inspects a program in a child process, so that no blob can harm the registry.

The child runs on the standard library and this package alone. It limits itself before it reads;
the parent limits its time and its answer, and believes nothing of it that is not well-formed.
"""

import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import answer

# Isolated (-I) and without site packages (-S), the child sees neither PYTHONPATH nor what else is
# installed. It is given the package's own folder, which works wherever that is: installed,
# editable, or a checkout.
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from servax_registry.inspection.__main__ import main; main()"
)
_CHUNK = 1 << 16

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one inspection may use.

    `memory` is in bytes, beyond the mapped blob, and holds where the system has RLIMIT_AS;
    `cpu_seconds` and `wall_seconds` are per inspection; `answer_size` is in bytes.
    """

    memory: int = 256 << 20
    cpu_seconds: int = 30
    wall_seconds: float = 60.0
    answer_size: int = 32 << 20


class _Babble(Exception):
    """The child writes more than an answer can be."""


_DEFAULT_LIMITS = Limits()


def inspect_program(file: BinaryIO, *, limits: Limits = _DEFAULT_LIMITS) -> Program:
    """Reads what a serialized jax.export.Exported says of itself.

    `file` is a regular file, read from its beginning whatever its position.
    Raises InvalidProgram when it is not a consistent export, or cannot be read within `limits`.
    """
    file.flush()
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGE_ROOT)),
            *(str(limits.memory), str(limits.cpu_seconds)),
        ],
        stdin=file,
        stdout=subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    stdout = cast(IO[bytes], process.stdout)
    deadline = time.monotonic() + limits.wall_seconds
    try:
        output = _read(stdout, limits.answer_size, deadline)
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise InvalidProgram(
            f"stopped while it was inspected: that took more than {limits.wall_seconds:g} s"
        ) from None
    except _Babble:
        raise InvalidProgram(
            f"stopped while it was inspected: its description exceeds {limits.answer_size} bytes"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        stdout.close()
    if status:
        raise _failure(status, limits)
    try:
        return answer.decode(output)
    except answer.ReaderFailure as failure:
        _logger.error("The program reader failed:\n%s", failure)
        raise InvalidProgram(
            "failed while it was inspected: its reader met what it does not understand"
        ) from failure
    except answer.MalformedAnswer as error:
        raise InvalidProgram(
            f"failed while it was inspected: the reader's answer is malformed: {error}"
        ) from error


def _read(stream: IO[bytes], limit: int, deadline: float) -> bytes:
    """All that the child writes; raises TimeoutError or _Babble."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                return bytes(output)
            output += chunk
            if len(output) > limit:
                raise _Babble


def _failure(status: int, limits: Limits) -> Exception:
    """What a child that ended without an answer means."""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal
            name = f"signal {-status}"
        cause = f"its reader was ended by {name}"
        if name == "SIGXCPU":
            cause = f"that took more than {limits.cpu_seconds} s of CPU time"
    elif status == answer.OUT_OF_MEMORY:
        cause = f"that took more than {limits.memory} bytes of memory"
    else:
        return RuntimeError(f"the program reader could not start: exit status {status}")
    return InvalidProgram(f"failed while it was inspected: {cause}")
