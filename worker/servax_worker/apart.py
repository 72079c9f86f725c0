"""Loads a version in a process of its own first, apart from those that serve.

    serving process                    loader process
    assemble(version) ---- starts ---> assembles it: compiles every size into the cache that both
                      <-- progress --- share, runs every size, and the golden example
                      <-- result ----- ends
    assembles it, from the cache

A program that crashes or hangs the compiler, or takes all memory, costs its own rollout and nothing
else. The loader process also yields the processor to the one that serves.
"""

import asyncio
import json
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import structlog

from servax.types import ServedState, Version
from servax_worker.assembly import Assembler, LoadedVersion, Report
from servax_worker.errors import CannotServe
from servax_worker.proofs import Proofs
from servax_worker.settings import Settings

log = structlog.get_logger(__name__)

_COMMAND = (
    # Of an accelerator's memory, only what it needs: the serving process has the rest.
    *("env", "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    *(sys.executable, "-m", "servax_worker.loader_process"),
)
_LOOK = 0.2  # seconds between two looks at its memory
_PAUSES = (1.0, 5.0)  # before a loader process that crashed is started again
_TAIL = 500  # characters of what it wrote last


@dataclass(frozen=True)
class LoadingTask:
    """What a loader process is given."""

    settings: Settings
    version: Version
    files: Mapping[str, Path]


class VersionAssembler(Protocol):
    """Makes versions callable: `ApartAssembler`."""

    async def assemble(
        self, version: Version, files: Mapping[str, Path], report: Report
    ) -> LoadedVersion:
        """Loads, compiles and tries every signature."""
        ...

    async def release(self) -> None:
        """Gives memory back."""
        ...

    def choose_encodings(self, version: Version) -> Version:
        """Gives the version with the encodings of its programs that are to be run here."""
        ...

    def is_proved(self, version: Version) -> bool:
        """Whether a version, of such encodings, was assembled here before."""
        ...


class _Crashed(Exception):
    """The loader process ended without a result; the message tells how."""


class ApartAssembler:
    """An assembler that has a loader process prove a version before it assembles it."""

    def __init__(
        self,
        assembler: Assembler,
        settings: Settings,
        proofs: Proofs,
    ):
        self._assembler = assembler
        self._settings = settings
        self._proofs = proofs
        self._turn = asyncio.Semaphore(2)

    async def assemble(
        self, version: Version, files: Mapping[str, Path], report: Report
    ) -> LoadedVersion:
        """As `Assembler.assemble`; raises CannotServe also where the loader process failed."""
        if self._settings.load_apart and not self._proofs.has(version):
            report(ServedState.COMPILING, "waiting for a loader process")
            async with self._turn, self._proofs.claimed(version):
                if not self._proofs.has(version):
                    await self._prove(version, files, report)
                    self._proofs.keep(version)
        proved = self._settings.load_apart
        return await self._assembler.assemble(version, files, report, proved=proved)

    async def release(self) -> None:
        """Gives the memory of versions that are not referred to any more back to the system."""
        await self._assembler.release()

    def choose_encodings(self, version: Version) -> Version:
        """Gives the version with the encodings of its programs that are to be run here."""
        return self._assembler.choose_encodings(version)

    def is_proved(self, version: Version) -> bool:
        """Whether a loader process has proved the version."""
        return self._proofs.has(version)

    async def _prove(self, version: Version, files: Mapping[str, Path], report: Report) -> None:
        settings = replace(self._settings, load_apart=False)
        task = pickle.dumps(LoadingTask(settings, version, dict(files)))
        for pause in (*_PAUSES, None):
            try:
                return await self._run(task, report)
            except _Crashed as crash:
                log.warning("loader process failed", model=version.model, why=str(crash))
                if pause is None:
                    raise CannotServe(str(crash)) from crash
                report(ServedState.COMPILING, f"{crash}; trying again in {pause:.0f} s")
            await asyncio.sleep(pause)

    async def _run(self, task: bytes, report: Report) -> None:
        with tempfile.TemporaryFile() as stderr:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
            watch = asyncio.create_task(self._watch(process))
            last = ""
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                with suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(task)
                    await process.stdin.drain()
                # It stays open: the loader process ends when this one does, however that ends.
                async for line in process.stdout:
                    message: dict[str, Any] = json.loads(line)
                    if "done" in message:
                        return
                    if "refused" in message:
                        raise CannotServe(message["refused"])
                    last = message["detail"]
                    report(ServedState[message["state"]], last)
                status = await process.wait()
            finally:
                watch.cancel()
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            if watch.done() and not watch.cancelled() and (limit := watch.result()):
                raise CannotServe(f"loading was ended: {limit}{_while(last)}")
            raise _Crashed(
                f"the loader process ended by {_meaning(status)}{_while(last)}{_tail(stderr)}"
            )

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Kills the process when it exceeds a limit; tells which."""
        settings, began = self._settings, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            if time.monotonic() - began > settings.load_timeout:
                limit = f"it took more than {settings.load_timeout:.0f} s (--load-timeout)"
            elif settings.load_memory and _memory(process.pid) > settings.load_memory:
                limit = f"it took more than {settings.load_memory} bytes (--load-memory)"
            else:
                continue
            with suppress(ProcessLookupError):
                process.kill()
            return limit


def _memory(pid: int) -> int:
    """How many bytes a process has to itself, mapped files left out; 0 where that is not told.

    A limit on address space would not do: JAX takes gigabytes of that for itself.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1024 if found else 0


def _meaning(status: int) -> str:
    try:
        return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _while(detail: str) -> str:
    return f", while {detail}" if detail else ""


def _tail(stderr: BinaryIO) -> str:
    stderr.seek(max(stderr.seek(0, 2) - _TAIL, 0))
    lines = stderr.read().decode(errors="replace").split("\n")
    last = [line.strip() for line in lines if line.strip()][-2:]
    return f": {' '.join(last)}" if last else ""
