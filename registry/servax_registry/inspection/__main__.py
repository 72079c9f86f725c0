"""The child: reads one program from standard input, and writes an answer to standard output."""

import mmap
import os
import sys
import traceback

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import answer
from servax_registry.inspection.child import OUT_OF_MEMORY
from servax_registry.inspection.confinement import confine
from servax_registry.inspection.exported import read_program

_STDIN = 0
_OPEN_FILES = 16


def main() -> None:
    """Confines itself, reads, answers; takes its limits on memory and CPU time as arguments."""
    memory, cpu_seconds = map(int, sys.argv[1:])
    size = os.fstat(_STDIN).st_size
    confine(memory=memory + size, cpu_seconds=cpu_seconds, open_files=_OPEN_FILES)
    try:
        sys.stdout.buffer.write(answer.encode(_inspect(size)))
        sys.stdout.flush()
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)


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


if __name__ == "__main__":
    main()
