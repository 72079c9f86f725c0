"""The local cache of blobs: fetched once, verified in every process, named by their digest.

The files of a directory are `<hex>` for a whole blob and `<hex>.part` for one whose download was
interrupted. Several workers may share a directory: a lock per blob keeps them apart.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import structlog

from servax.errors import DataLoss, FileError
from servax.types import Blob, ProgressCallback
from servax_worker.errors import CannotServe, Delayed

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)

log = structlog.get_logger(__name__)


class BlobSource(Protocol):
    """Where blobs come from: `servax.Client`."""

    def download(
        self, blob: Blob, destination: Path, *, progress: ProgressCallback | None = None
    ) -> Path:
        """Brings a verified blob to `destination`, atomically, and goes on with a partial file."""
        ...


class BlobCache:
    """Blobs in a private directory."""

    def __init__(self, directory: Path, source: BlobSource):
        """Makes the directory, readable by its owner only."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.chmod(0o700)
        self._directory = directory
        self._source = source
        self._verified: set[str] = set()

    def fetch(self, blob: Blob, report: ProgressCallback | None = None) -> Path:
        """The path of the whole blob; downloads what is missing or damaged.

        Memory stays bounded whatever the blob's size. Raises Delayed where the disk is full,
        CannotServe where the cache cannot be written or the digest is none, and what the source
        raises where the registry is away or its bytes are not the blob's.
        """
        if not _DIGEST.fullmatch(blob.digest):
            raise CannotServe(f"'{blob.digest}' is not a digest; expected sha256:<64 hex digits>")
        path = self._directory / blob.digest.removeprefix("sha256:")
        try:
            with _locked(path.with_suffix(".lock")):
                return self._fetch_locked(blob, path, report)
        except OSError as error:
            if error.errno in _FULL:
                raise Delayed(f"no room in {self._directory}: {error}") from error
            raise CannotServe(f"the cache {self._directory} cannot be used: {error}") from error

    def _fetch_locked(self, blob: Blob, path: Path, report: ProgressCallback | None) -> Path:
        if path.exists():
            if blob.digest in self._verified or _matches(path, blob):
                self._verified.add(blob.digest)
                return path
            log.warning("cached blob is damaged; fetching it anew", digest=blob.digest)
            path.unlink()
        self._download(blob, path, report)
        self._verified.add(blob.digest)
        return path

    def _download(self, blob: Blob, path: Path, report: ProgressCallback | None) -> None:
        part = path.with_name(path.name + ".part")
        missing = blob.size - (part.stat().st_size if part.exists() else 0)
        free = shutil.disk_usage(self._directory).free
        full = Delayed(
            f"no room for blob {blob.digest}: {missing} bytes are missing, {self._directory} has "
            f"{free} left; free some or point --cache-dir elsewhere"
        )
        if missing > free:
            raise full
        try:
            self._source.download(blob, path, progress=report)
        except FileError as error:
            if error.errno in _FULL:
                raise full from error
            raise CannotServe(str(error)) from error
        path.chmod(0o400)
        if path.stat().st_size != blob.size:
            path.unlink()
            raise DataLoss(f"blob {blob.digest} is not {blob.size} bytes long")


def open_mapped(path: Path) -> memoryview:
    """The file's bytes, read-only, in pages that the system shares and drops as it sees fit."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")  # the system refuses to map nothing
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _matches(path: Path, blob: Blob) -> bool:
    if path.stat().st_size != blob.size:
        return False
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
    return f"sha256:{sha256.hexdigest()}" == blob.digest


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock against every other thread and process."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
