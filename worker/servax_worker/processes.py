"""Keeps the serving processes of a worker running: one, or several that share its ports.

    servax-worker           never imports JAX; watches, and keeps the ports for its processes
    ├─ serving process 0    listens at both ports; has its share of the processors
    └─ serving process 1    the same: the system gives each connection to one of them

Several make more of a CPU where models are small, because one process runs Python on one processor.
They share the cache directory, and with it mapped weights, executables, plans and proofs.
"""

import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from servax_worker.handover import Handover
from servax_worker.serving_process import ServingTask
from servax_worker.settings import Settings
from servax_worker.sockets import kept_port
from servax_worker.supervisor import Limits, Quarantine, Supervisor, passing_signals

_COMMAND = (sys.executable, "-m", "servax_worker.serving_process")

# How long a process may take to stop beyond what the requests in flight may take.
_STOP_SECONDS = 15.0


def supervise(settings: Settings) -> int:
    """Keeps `settings.processes` running until told to stop; gives the exit status.

    Where one of them cannot start, all end. Raises StartupError where an address is taken.
    """
    limits = Limits(stop=settings.grace + _STOP_SECONDS)
    quarantine = Quarantine()
    with ExitStack() as stack:
        if settings.processes > 1:
            settings = stack.enter_context(_sharing(settings))
        supervisors = [
            stack.enter_context(
                Supervisor(
                    _COMMAND, partial(_task, replace(settings, process=number)), limits, quarantine
                )
            )
            for number in range(settings.processes)
        ]
        stopping = False

        def stop(number: int) -> None:
            nonlocal stopping
            stopping = True
            for each in supervisors:
                each.stop(number)

        stack.enter_context(passing_signals(stop))
        if len(supervisors) == 1:
            return supervisors[0].run()
        pool = stack.enter_context(ThreadPoolExecutor(len(supervisors)))
        runs = [pool.submit(each.run) for each in supervisors]
        wait(runs, return_when=FIRST_COMPLETED)
        if not stopping:
            stop(signal.SIGTERM)
        return max(run.result() for run in runs)


def _task(settings: Settings, supervisor: Supervisor) -> bytes:
    """What the next serving process is to do, in the place of the one before."""
    grpc, http = supervisor.activity.ports
    there = replace(settings, listen=_at(settings.listen, grpc), http=_at(settings.http, http))
    if memo := supervisor.activity.memo:
        left = Handover.decode(memo)
        there = replace(there, models=left.models)
        for version in left.pardoned:
            supervisor.quarantine.pardon(version)
    quarantined = frozenset(supervisor.quarantine.versions)
    return pickle.dumps(ServingTask(there, quarantined, *supervisor.descriptors))


@contextmanager
def _sharing(settings: Settings) -> Iterator[Settings]:
    """Keeps the ports, and a folder where the processes reach each other, while the block runs."""
    with (
        kept_port(settings.listen) as listen,
        kept_port(settings.http) as http,
        tempfile.TemporaryDirectory(prefix="servax-worker-") as folder,
    ):
        yield replace(
            settings,
            listen=listen,
            http=http,
            siblings=Path(folder),
            memory_limit=settings.memory_limit // settings.processes,
        )


def _at(address: str, port: int) -> str:
    """The address, with the port that the process before got where any was wanted."""
    host, _, wanted = address.rpartition(":")
    return f"{host}:{port}" if port and wanted == "0" else address
