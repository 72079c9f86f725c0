"""The loader process: assembles one version, tells how far it is, and ends.

It is started by `apart`, reads its task from standard input, which stays open as long as somebody
wants the result, and writes a line of JSON an event to standard output.
"""

import asyncio
import json
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path

import structlog

from servax.types import ServedState
from servax_worker.apart import LoadingTask
from servax_worker.assembly import Assembler, Report
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import WorkerError
from servax_worker.memory import MemoryBudget
from servax_worker.metrics import Metrics
from servax_worker.plans import Plans
from servax_worker.runtime import Runtime
from servax_worker.supervisor import end_with_parent

# The process that serves comes first.
_NICENESS = 10


def main() -> None:
    """Performs the task."""
    os.nice(_NICENESS)
    with suppress(OSError):  # only Linux has it
        # Where memory runs out, the system is to end this process, and not the one that serves.
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Standard output is for events alone, whatever others print.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    def tell(**event: str) -> None:
        events.write(json.dumps(event) + "\n")

    def report(state: ServedState, detail: str) -> None:
        tell(state=state.name, detail=detail)

    task: LoadingTask = pickle.load(sys.stdin.buffer)
    end_with_parent(sys.stdin.fileno())
    try:
        asyncio.run(_assemble(task, report))
    except WorkerError as error:
        tell(refused=str(error))
    else:
        tell(done="")
    events.flush()
    # Threads that a program left behind cannot keep the process.
    os._exit(0)


async def _assemble(task: LoadingTask, report: Report) -> None:
    settings, directory = task.settings, task.settings.cache_directory
    runtime = Runtime(directory / "executables", allowed_custom_calls=settings.allowed_custom_calls)
    plans = Plans(directory / "plans")
    # The serving process knows what else is loaded, and refuses what does not fit beside it.
    memory = MemoryBudget(None)
    assembler = Assembler(runtime, Dispatcher(), Metrics(), plans, memory, settings)
    await assembler.assemble(task.version, task.files, report)


if __name__ == "__main__":
    main()
