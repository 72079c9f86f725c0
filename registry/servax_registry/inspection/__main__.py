"""The child: reads one program from standard input, and writes an answer to standard output."""

import contextlib
import mmap
import os
import resource
import sys
import traceback

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import answer
from servax_registry.inspection.exported import read_program

_STDIN = 0
_CPU_GRACE_SECONDS = 1
_OPEN_FILES = 16


def main() -> None:
    """Confines itself, reads, answers; takes its limits on memory and CPU time as arguments."""
    memory, cpu_seconds = map(int, sys.argv[1:])
    size = os.fstat(_STDIN).st_size
    _confine(memory + size, cpu_seconds)
    try:
        sys.stdout.buffer.write(answer.encode(_inspect(size)))
        sys.stdout.flush()
    except MemoryError:
        sys.exit(answer.OUT_OF_MEMORY)


def _inspect(size: int) -> Program | InvalidProgram | answer.ReaderFailure:
    try:
        if not size:  # an empty file cannot be mapped
            return read_program(b"")
        with mmap.mmap(_STDIN, size, access=mmap.ACCESS_READ) as blob:
            return read_program(blob)
    except InvalidProgram as invalid:
        return invalid
    except MemoryError:
        raise
    except Exception:
        # Told to the parent, which logs it: a log that is a file cannot be written to from here.
        return answer.ReaderFailure(traceback.format_exc())


def _confine(memory: int, cpu_seconds: int) -> None:
    """Gives up, for good, whatever reading a mapped file does not need."""
    _limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + _CPU_GRACE_SECONDS)
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux" and sys.version_info >= (3, 12):
        # A namespace without network. Many containers forbid it, and nothing that the blob says
        # is ever executed: worth having, not worth refusing to work without.
        with contextlib.suppress(OSError):
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    _, ceiling = resource.getrlimit(kind)
    wanted = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        wanted = [min(value, ceiling) for value in wanted]
    # macOS refuses RLIMIT_AS; there the time limits alone hold.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (wanted[0], wanted[1]))


if __name__ == "__main__":
    main()
