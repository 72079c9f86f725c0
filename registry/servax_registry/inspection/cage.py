"""Inspects a program in a child process, so that no blob can harm the registry.

The child runs on the standard library and this package alone. It limits itself before it reads;
the parent limits its time and its answer, and believes nothing of it that is not well-formed.
"""

import logging
from dataclasses import dataclass
from typing import BinaryIO

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import answer
from servax_registry.inspection.child import OUT_OF_MEMORY, Stopped, boot, run_child

_BOOT = boot("__main__")
_NO_SITE_PACKAGES = ("-S",)

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


_DEFAULT_LIMITS = Limits()


def inspect_program(file: BinaryIO, *, limits: Limits = _DEFAULT_LIMITS) -> Program:
    """Reads what a serialized jax.export.Exported says of itself.

    `file` is a regular file, read from its beginning whatever its position.
    Raises InvalidProgram when it is not a consistent export, or cannot be read within `limits`.
    """
    try:
        status, output = run_child(
            _NO_SITE_PACKAGES,
            _BOOT,
            (limits.memory, limits.cpu_seconds),
            file,
            environment={},
            cpu_seconds=limits.cpu_seconds,
            wall_seconds=limits.wall_seconds,
            answer_size=limits.answer_size,
        )
    except Stopped as stopped:
        raise InvalidProgram(f"stopped while it was inspected: {stopped}") from None
    if status == OUT_OF_MEMORY:
        raise InvalidProgram(
            f"stopped while it was inspected: that took more than {limits.memory} bytes of memory"
        )
    if status:  # it never came to reading, which is no fault of the blob's
        raise RuntimeError(f"the program reader could not start: exit status {status}")
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
