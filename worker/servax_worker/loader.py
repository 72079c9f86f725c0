"""Takes one version from the registry to READY, state by state, and to its end.

    RESOLVING -> DOWNLOADING -> COMPILING -> VERIFYING -> READY -> DRAINING -> unloaded
                         any of them -> FAILED

A loader never changes its version: where a reference moves, its follower starts another loader
beside it. What may pass by itself (the registry is away, the version is not published yet, the
disk is full) is waited for, with growing pauses, and told in the state's detail. Everything else is
FAILED.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from servax.errors import DeadlineExceeded, NotFound, ServaxError, Unavailable
from servax.reference import ModelReference
from servax.types import DEFAULT, ServedState, ServedVersion, Timeout, Version
from servax_worker.assembly import LoadedVersion
from servax_worker.errors import WorkerError
from servax_worker.known import KnownVersions
from servax_worker.patience import Sleep, persist
from servax_worker.signature import callers_view
from servax_worker.versions import LoadedVersions

# Seconds that the registry has to answer where there is a version to serve without it.
_PATIENCE = 5.0

log = structlog.get_logger(__name__)


class VersionSource(Protocol):
    """Where versions are looked up: `servax.Client`."""

    def version(self, reference: ModelReference, *, timeout: Timeout = ...) -> Version:
        """Gets a version by number or alias, or the latest."""
        ...


class Loader:
    """One version on its way to answering requests, and how far it is."""

    def __init__(
        self,
        reference: ModelReference,
        registry: VersionSource,
        known: KnownVersions,
        versions: LoadedVersions,
        changed: Callable[["Loader"], None],
        *,
        version: Version | None = None,
        followed: bool = False,
        sleep: Sleep = asyncio.sleep,
    ):
        """`changed` is called after every change of state, `sleep` between attempts.

        Without `version`, the registry is asked to which one the reference points. Where it does
        not answer, the version is taken of which `known` says that it was served last; and so it is
        where the reference has moved to one that was never loaded here, if it is `followed`: what
        was served serves until the new one is ready.
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
        self._known = known
        self._versions = versions
        self._changed = changed
        self._sleep = sleep
        self._followed = followed
        self._doubt = ""
        self.stands_in = False
        """Whether this is the version that was served last, though the reference may have moved."""
        self._log = log.bind(reference=str(reference))

    async def run(self) -> None:
        """Loads until READY or FAILED; never raises but when cancelled."""
        try:
            if self._version is None:
                self._version = await self._resolve()
            self._tell(self._version)
            self.loaded = await self._versions.acquire(self._version, self._enter)
            self._tell(self.loaded.version)  # with the encodings that run
            self._known.keep(self.reference, self._version)
            self._enter(ServedState.READY, self._doubt)
        except (WorkerError, ServaxError) as error:
            self._enter(ServedState.FAILED, str(error))
        except Exception:
            self._log.exception("loading failed unexpectedly")
            self._enter(ServedState.FAILED, "unexpected error; the worker's log tells more")

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
        """Waits until the last request has ended, then lets go of what was loaded, if anything.

        From before the call on, nobody may `use` it anew, and `run` has ended or was cancelled.
        """
        await self._unused.wait()
        if self.loaded is not None:
            self._versions.release(self.loaded.version)
            self.loaded = None
            self._log.info("unloaded", version=self.status.version)

    def note(self, detail: str) -> None:
        """Tells progress or trouble within a state."""
        self.status = replace(self.status, detail=detail)

    async def _resolve(self) -> Version:
        self._enter(ServedState.RESOLVING)
        loop = asyncio.get_running_loop()
        known = self._known.find(self.reference)
        timeout = DEFAULT if known is None else _PATIENCE
        # Calls to the registry block: each loader waits on a thread of its own.
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"load-{self.reference}")

        async def ask() -> Version:
            question = partial(self._registry.version, self.reference, timeout=timeout)
            try:
                version = await loop.run_in_executor(executor, question)
            except (Unavailable, DeadlineExceeded) as error:
                if known is None:
                    raise
                self._doubt = f"served as before, for {self.reference} is not known: {error}"
                self._log.warning("served as before", version=known.number, why=str(error))
                self.stands_in = True
                return known
            if known is None or known.number == version.number or not self._followed:
                return version
            self.stands_in = not self._versions.is_proved(version)
            return known if self.stands_in else version

        try:
            return await persist(self.reference, ask, self.note, NotFound, sleep=self._sleep)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _tell(self, version: Version) -> None:
        signatures = tuple(map(callers_view, version.signatures))
        self.status = replace(self.status, version=version.number, signatures=signatures)

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
