"""The loaded versions, each once, however many references point to it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from servax.types import Blob, Progress, ServedState, Version, VersionName
from servax_worker.apart import VersionAssembler
from servax_worker.assembly import LoadedVersion, Report
from servax_worker.blobs import BlobCache
from servax_worker.errors import CannotServe
from servax_worker.patience import Sleep, persist
from servax_worker.quarantine import Quarantine


class LoadedVersions:
    """Fetches and assembles versions, and counts who uses them.

    The last one to leave a version gives its memory back. All methods belong to one event loop.
    """

    def __init__(
        self,
        blobs: BlobCache,
        assembler: VersionAssembler,
        quarantine: Quarantine,
        *,
        sleep: Sleep = asyncio.sleep,
    ):
        """`sleep` is called between attempts at what may pass."""
        self._blobs = blobs
        self._assembler = assembler
        self._quarantine = quarantine
        self._sleep = sleep
        self._shared: dict[VersionName, _Shared] = {}
        self._freeing: set[asyncio.Task[None]] = set()

    async def acquire(self, version: Version, report: Report) -> LoadedVersion:
        """The version, loaded; whoever gets it has to `release` it once.

        Several who want the same version wait for one loading, which ends when the last of them
        leaves. `report` is told each state on the way, and how far it is. Raises CannotServe for
        what is quarantined, and what fetching and assembling raise.
        """
        name = VersionName(version.model, version.number)
        self._quarantine.check(name)
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _Shared()
            shared.loading = asyncio.create_task(self._load(version, shared))
        shared.users += 1
        try:
            with shared.reporting_to(report):
                return await asyncio.shield(shared.loading)
        except BaseException:
            self._leave(name, shared)
            raise

    def release(self, version: Version) -> None:
        """Gives a version back; its memory is free soon after."""
        name = VersionName(version.model, version.number)
        self._leave(name, self._shared[name])

    def is_proved(self, version: Version) -> bool:
        """Whether the version was loaded here before, so that it will be soon."""
        try:
            return self._assembler.is_proved(self._assembler.choose_encodings(version))
        except CannotServe:
            return False

    def pardon(self, name: VersionName) -> None:
        """Lets a version be loaded again that may be quarantined."""
        self._quarantine.pardon(name)

    async def close(self) -> None:
        """Does not give back any more what was released."""
        for task in self._freeing:
            task.cancel()
        await asyncio.gather(*self._freeing, return_exceptions=True)

    def _leave(self, name: VersionName, shared: "_Shared") -> None:
        shared.users -= 1
        if shared.users:
            return
        # Where loading failed, its last user has heard of it now; who comes next tries anew.
        del self._shared[name]
        loading = shared.loading
        loading.cancel()
        task = asyncio.create_task(self._free(loading))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _free(self, loading: "asyncio.Task[LoadedVersion]") -> None:
        await asyncio.wait([loading])
        del loading  # it holds what was loaded
        await self._assembler.release()

    async def _load(self, version: Version, shared: "_Shared") -> LoadedVersion:
        shared.report(ServedState.DOWNLOADING, "")
        version = self._assembler.choose_encodings(version)
        files = await self._download(version, shared)
        return await self._assembler.assemble(version, files, shared.report)

    async def _download(self, version: Version, shared: "_Shared") -> dict[str, Path]:
        blobs = {signature.program for signature in version.signatures}
        blobs |= {signature.golden.blob for signature in version.signatures if signature.golden}
        blobs |= {shard.blob for shard in version.weights}
        total, before = sum(blob.size for blob in blobs), 0
        files = {}
        name = VersionName(version.model, version.number)
        loop = asyncio.get_running_loop()
        # Downloads block, and may do so for long: each version waits on a thread of its own.
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"fetch-{name}")

        def fetch(blob: Blob, before: int) -> Path:
            def report(progress: Progress) -> None:
                text = f"{before + progress.done} of {total} bytes"
                with suppress(RuntimeError):  # the loop has ended, the thread does not know
                    loop.call_soon_threadsafe(shared.note, text)

            return self._blobs.fetch(blob, report)

        try:
            for blob in sorted(blobs, key=lambda blob: blob.digest):
                step = partial(loop.run_in_executor, executor, fetch, blob, before)
                files[blob.digest] = await persist(name, step, shared.note, sleep=self._sleep)
                before += blob.size
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        return files


class _Shared:
    """One version's loading, how far it is, and how many wait for it or use what came of it."""

    loading: "asyncio.Task[LoadedVersion]"

    def __init__(self) -> None:
        self.users = 0
        self._state = ServedState.DOWNLOADING
        self._detail = ""
        self._reports: list[Report] = []

    @contextmanager
    def reporting_to(self, report: Report) -> Iterator[None]:
        """Tells `report` where the loading is, and, while the block runs, where it gets."""
        report(self._state, self._detail)
        self._reports.append(report)
        try:
            yield
        finally:
            self._reports.remove(report)

    def report(self, state: ServedState, detail: str) -> None:
        """Tells all who wait."""
        self._state, self._detail = state, detail
        for report in self._reports:
            report(state, detail)

    def note(self, detail: str) -> None:
        """Tells all who wait of progress or trouble within a state."""
        self.report(self._state, detail)
