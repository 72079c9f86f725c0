"""Keeps one reference served: the version that it points to, through every move.

    reference      current        candidate      draining
    set            1 loading
                   1 READY
    moved to 2     1 READY        2 loading
    2 is ready     2 READY                       1, until its last request is answered
    2 has failed   1 READY        2 FAILED, until the reference points elsewhere

The change from one current version to the next is one step of the event loop: every request
before it runs on the old version to its end, every request after it on the new one.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from servax.errors import ServaxError
from servax.reference import ModelReference
from servax.types import ServedState, Version, VersionName
from servax_worker.known import KnownVersions
from servax_worker.loader import Loader, VersionSource
from servax_worker.patience import Sleep
from servax_worker.versions import LoadedVersions

_SETTLED = (ServedState.READY, ServedState.FAILED)

log = structlog.get_logger(__name__)


class Follower:
    """One thing that the worker was told to serve.

    A reference by number is loaded once. Any other is asked for again while it is served. All
    methods belong to one event loop.
    """

    def __init__(
        self,
        reference: ModelReference,
        registry: VersionSource,
        known: KnownVersions,
        versions: LoadedVersions,
        changed: Callable[["Follower"], None],
        *,
        poll: float,
        sleep: Sleep = asyncio.sleep,
    ):
        """`changed` is called after every change of a state or of a version.

        `poll` is how many seconds pass between questions to where the reference points; 0 for none.
        """
        self.reference = reference
        self.loaded = asyncio.Event()
        """Set once a version is READY or FAILED."""
        self._registry = registry
        self._known = known
        self._versions = versions
        self._changed = changed
        self._poll = 0.0 if reference.version is not None else poll
        self._sleep = sleep
        self._trouble = ""
        self._log = log.bind(reference=str(reference))
        # Questions to the registry block, and loaders may keep their own threads busy for long.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"poll-{reference}")
        self.current = self._loader(None)
        """The version that answers, or will as the first."""
        self.candidate: Loader | None = None
        """The version that the reference has moved to, until it is ready."""
        self._draining: list[Loader] = []

    @property
    def loaders(self) -> list[Loader]:
        """All versions: the current one, the candidate, and those that are draining."""
        candidates = [self.candidate] if self.candidate else []
        return [self.current, *candidates, *self._draining]

    async def run(self) -> None:
        """Loads and follows the reference; returns when it is loaded and not followed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._loading = self._tasks.create_task(self._load(self.current))
                while self._poll:
                    # Workers that were started together need not ask together.
                    await self._sleep(self._poll * random.uniform(0.9, 1.1))
                    await self._look()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def pardon(self) -> None:
        """Lets versions that have FAILED be tried again: those that it may still move to at once,
        those that it has nothing else to serve by another follower.
        """
        for loader in self.loaders:
            if loader.status.state is ServedState.FAILED and loader.version:
                self._versions.pardon(VersionName(self.reference.name, loader.version))
        if self.candidate and self.candidate.status.state is ServedState.FAILED:
            self.candidate = None

    def drain(self) -> None:
        """Turns what is READY to DRAINING; `run` must have ended or been cancelled."""
        self.current.drain()

    async def unload(self) -> None:
        """Waits for the last requests and lets go of everything; `drain` comes before."""
        await asyncio.gather(*(loader.unload() for loader in self.loaders))

    async def _look(self) -> None:
        version = await self._ask()
        if version is not None:
            self._turn_to(version)

    async def _ask(self) -> Version | None:
        """The version that the reference points to; None while that cannot be told."""
        if self.current.status.state is ServedState.RESOLVING:
            return None  # the loader is asking itself
        version, trouble = None, ""
        loop = asyncio.get_running_loop()
        try:
            version = await loop.run_in_executor(
                self._executor, self._registry.version, self.reference
            )
        except ServaxError as error:
            trouble = f"whether {self.reference} has moved is not known: {error}"
        except Exception:
            self._log.exception("asking the registry failed unexpectedly")
            trouble = "unexpected error in following; the worker's log tells more"
        if bool(trouble) is not bool(self._trouble):
            self._log.warning("cannot follow" if trouble else "following again", why=trouble)
        self._trouble = trouble
        if self.current.status.state is ServedState.READY:
            self.current.note(trouble)
        return version

    def _turn_to(self, version: Version) -> None:
        """Starts to load the version unless that is what is served, loading, or has failed."""
        if version.number == (self.candidate or self.current).version:
            return
        if self.current.stands_in and self.current.status.state not in _SETTLED:
            return  # what was served before the start comes first
        self._log.info("the reference has moved", version=version.number)
        self.pardon()  # what it moved away from is another try when it moves back
        if self.candidate is not None:
            self._abandon(self.candidate)
            self.candidate = None
        if version.number != self.current.version:
            loader = self._loader(version)
            if self.current.status.state is ServedState.READY:
                self.candidate = loader
            else:  # there is nothing to go on serving
                self._abandon(self.current)
                self.current = loader
            self._loading = self._tasks.create_task(self._load(loader))
        self._changed(self)

    async def _load(self, loader: Loader) -> None:
        await loader.run()
        self.loaded.set()
        if loader.stands_in and self._poll:
            self._tasks.create_task(self._look())
        if loader is self.candidate and loader.status.state is ServedState.READY:
            old, self.current, self.candidate = self.current, loader, None
            self._draining.append(old)
            old.drain()
            self._tasks.create_task(self._retire(old))

    async def _retire(self, loader: Loader) -> None:
        await loader.unload()
        self._draining.remove(loader)
        self._changed(self)

    def _abandon(self, loader: Loader) -> None:
        """Ends the loading of a version that nobody waits for any more."""
        self._log.info("abandoned", version=loader.version, state=loader.status.state.name)
        self._loading.cancel()

    def _loader(self, version: Version | None) -> Loader:
        return Loader(
            self.reference,
            self._registry,
            self._known,
            self._versions,
            lambda _: self._changed(self),
            version=version,
            followed=self._poll > 0,
            sleep=self._sleep,
        )
