"""The serving process: serves until it is told to stop, under a supervisor or by itself.

Started by a supervisor, it reads its task from standard input.
"""

import asyncio
import os
import pickle
import signal
import sys
import threading
from dataclasses import dataclass

import structlog

from servax_worker.activity import Activity
from servax_worker.errors import StartupError
from servax_worker.logs import configure_logging
from servax_worker.settings import Settings
from servax_worker.supervisor import end_with_parent

log = structlog.get_logger("servax_worker")


@dataclass(frozen=True)
class ServingTask:
    """What a supervised serving process is given; descriptors are those that it inherits."""

    settings: Settings
    quarantined: frozenset[str]
    activity: int
    lifeline: int


def main() -> None:
    """Performs the task of a supervisor."""
    task: ServingTask = pickle.load(sys.stdin.buffer)
    end_with_parent(task.lifeline)
    configure_logging()
    _take_share(task.settings)
    try:
        run(task.settings, Activity(task.activity), task.quarantined)
    except StartupError as error:
        sys.exit(f"Error: {error}")


def _take_share(settings: Settings) -> None:
    """Keeps to a share of the processors, if there are enough: JAX makes as many threads."""
    if settings.processes > 1 and sys.platform == "linux":
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) >= settings.processes:
            os.sched_setaffinity(0, processors[settings.process :: settings.processes])


def run(
    settings: Settings,
    activity: Activity | None = None,
    quarantined: frozenset[str] = frozenset(),
) -> None:
    """Serves until SIGTERM or SIGINT. Raises StartupError."""
    asyncio.run(_serve(settings, activity, quarantined))
    _leave()


async def _serve(
    settings: Settings, activity: Activity | None, quarantined: frozenset[str]
) -> None:
    # Imports JAX, which nobody who only asks for help should wait for.
    from servax_worker.server import WorkerServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with WorkerServer(settings, activity, quarantined) as server:
        which = {"process": settings.process} if settings.processes > 1 else {}
        log.info("serving", address=server.address, http=server.http_address, **which)
        await stop.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second signal ends the process at once
    log.info("stopped")


def _leave() -> None:
    """Ends the process although a call may hang: neither JAX nor a download can be interrupted."""
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in others:
        thread.join(timeout=0.5)
    stuck = [thread.name for thread in others if thread.is_alive()]
    if stuck:
        log.warning("left while threads were busy", threads=stuck)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
