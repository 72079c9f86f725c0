"""Takes one version from the registry to READY, state by state, and to its end.

    RESOLVING -> DOWNLOADING -> COMPILING -> VERIFYING -> READY -> DRAINING -> unloaded
                         any of them -> FAILED

A loader never changes its version: where a reference moves, its follower starts another loader
beside it. What may pass by itself (the registry is away, the version is not published yet, the
disk is full) is waited for, with growing pauses, and told in the state's detail. Everything else is
FAILED.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from servax.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Internal,
    NotFound,
    ResourceExhausted,
    ServaxError,
    Unavailable,
)
from servax.reference import ModelReference
from servax.types import Blob, Progress, ServedState, ServedVersion, Version
from servax_worker.apart import VersionAssembler
from servax_worker.assembly import LoadedVersion
from servax_worker.blobs import BlobCache
from servax_worker.errors import Delayed, WorkerError
from servax_worker.signature import callers_view

T = TypeVar("T")

_PASSING = (
    Unavailable,
    DeadlineExceeded,
    ResourceExhausted,
    Internal,
    Cancelled,  # proxies end calls so when they restart
    DataLoss,
    Delayed,
)
_DAMAGED_DOWNLOADS = 3

log = structlog.get_logger(__name__)


class VersionSource(Protocol):
    """Where versions are looked up: `servax.Client`."""

    def version(self, reference: ModelReference) -> Version:
        """Gets a version by number or alias, or the latest."""
        ...


class Loader:
    """One version on its way to answering requests, and how far it is."""

    def __init__(
        self,
        reference: ModelReference,
        registry: VersionSource,
        blobs: BlobCache,
        assembler: VersionAssembler,
        changed: Callable[["Loader"], None],
        *,
        version: Version | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        """`changed` is called after every change of state, `sleep` between attempts.

        Without `version`, the registry is asked to which one the reference points.
        """
        self.reference = reference
        self.loaded: LoadedVersion | None = None
        """What can be called from READY to the end of DRAINING."""
        self.status = ServedVersion(
            reference.name,
            version=version.number if version else 0,
            alias=reference.alias or "",
            state=ServedState.RESOLVING,
            detail="",
            signatures=(),
        )
        self._version = version
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._registry = registry
        self._blobs = blobs
        self._assembler = assembler
        self._changed = changed
        self._sleep = sleep
        # Calls to the registry block; each loader waits on a thread of its own.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"load-{reference}")
        self._log = log.bind(reference=str(reference))

    async def run(self) -> None:
        """Loads until READY or FAILED; never raises but when cancelled."""
        try:
            version = self._assembler.choose_encodings(self._version or await self._resolve())
            self.status = replace(
                self.status,
                version=version.number,
                signatures=tuple(map(callers_view, version.signatures)),
            )
            self._enter(ServedState.DOWNLOADING)
            files = await self._download(version)
            self.loaded = await self._assembler.assemble(version, files, self._enter)
            self._enter(ServedState.READY)
        except (WorkerError, ServaxError) as error:
            self._enter(ServedState.FAILED, str(error))
        except Exception:
            self._log.exception("loading failed unexpectedly")
            self._enter(ServedState.FAILED, "unexpected error; the worker's log tells more")
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> int:
        """The version's number; 0 while it is not known."""
        return self.reference.version or self.status.version

    @contextmanager
    def use(self) -> Iterator[LoadedVersion]:
        """Keeps what is loaded while a request runs; only for READY."""
        assert self.loaded is not None
        self._users += 1
        self._unused.clear()
        try:
            yield self.loaded
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    def drain(self) -> None:
        """Turns READY to DRAINING."""
        if self.status.state is ServedState.READY:
            self._enter(ServedState.DRAINING)

    async def unload(self) -> None:
        """Waits until the last request has ended, then lets go of what was loaded.

        From before the call on, nobody may `use` it anew.
        """
        await self._unused.wait()
        self.loaded = None
        self._log.info("unloaded", version=self.status.version)

    def note(self, detail: str) -> None:
        """Tells progress or trouble within a state; called from any thread."""
        self.status = replace(self.status, detail=detail)

    async def _resolve(self) -> Version:
        self._enter(ServedState.RESOLVING)
        return await self._persist(lambda: self._registry.version(self.reference), NotFound)

    async def _download(self, version: Version) -> dict[str, Path]:
        blobs = {signature.program for signature in version.signatures}
        blobs |= {signature.golden.blob for signature in version.signatures if signature.golden}
        blobs |= {shard.blob for shard in version.weights}
        total, before = sum(blob.size for blob in blobs), 0
        files = {}
        for blob in sorted(blobs, key=lambda blob: blob.digest):

            def report(progress: Progress, before: int = before) -> None:
                self.note(f"{before + progress.done} of {total} bytes")

            def fetch(blob: Blob = blob, report: Callable[[Progress], None] = report) -> Path:
                return self._blobs.fetch(blob, report)

            files[blob.digest] = await self._persist(fetch)
            before += blob.size
        return files

    async def _persist(self, step: Callable[[], T], *passing: type[Exception]) -> T:
        """Repeats a blocking step until it succeeds or fails in a way that will not pass."""
        damaged = 0
        loop = asyncio.get_running_loop()
        for pause in _pauses():
            try:
                return await loop.run_in_executor(self._executor, step)
            except (WorkerError, ServaxError) as error:
                damaged += isinstance(error, DataLoss)
                if not isinstance(error, (*_PASSING, *passing)) or damaged == _DAMAGED_DOWNLOADS:
                    raise
                reason = str(error)
            self._log.warning("waiting", state=self.status.state.name, reason=reason)
            self.note(f"{reason}; trying again in {pause:.0f} s")
            await self._sleep(pause)
        raise AssertionError("the pauses never end")

    def _enter(self, state: ServedState, detail: str = "") -> None:
        if state is not self.status.state:
            level = self._log.error if state is ServedState.FAILED else self._log.info
            level(
                state.name.lower(),
                version=self.status.version,
                **({"why": detail} if detail else {}),
            )
        self.status = replace(self.status, state=state, detail=detail)
        self._changed(self)


def _pauses() -> Iterator[float]:
    """Seconds between attempts: from half a second up to half a minute, spread by a fifth."""
    pause = 0.5
    while True:
        yield pause * random.uniform(0.8, 1.2)
        pause = min(pause * 2, 30.0)
