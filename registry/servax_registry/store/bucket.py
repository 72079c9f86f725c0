"""Objects by name in a bucket of S3, Google Cloud Storage or Azure, or in a directory."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from servax_registry.errors import (
    BlobDamaged,
    BlobsUnusable,
    RegistryError,
    StorageFull,
    StorageUnavailable,
)

_SCHEMES = ("file", "s3", "gs", "az")

# Lies at the top of every bucket that a registry uses. A directory that is not mounted lacks it.
_MARKER = "servax-registry.txt"
_MARKER_TEXT = (
    b"The blobs of a Servax registry. Its database knows what belongs together; change nothing "
    b"here by hand.\n"
)

# Within these, an outage of the store goes unnoticed.
_RETRIES = 5
_RETRY_TIMEOUT = timedelta(seconds=60)

# How many objects are listed at once.
_LISTED = 1000

_log = structlog.get_logger(__name__)


def open_bucket(url: str, *, used: bool) -> "Bucket":
    """Open the bucket or directory at a URL; `used` says that it must have blobs already.

    Credentials come from where the store's own tools take them, such as AWS_ACCESS_KEY_ID. Raises
    BlobsUnusable when it cannot be written and read.
    """
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES or (scheme == "file" and not url.startswith("file:///")):
        raise BlobsUnusable(
            f"{url!r} is no place for blobs; give file:///DIRECTORY, s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX"
        )
    try:
        if scheme == "file":
            root = Path(unquote(urlsplit(url).path))
            bucket: Bucket = Directory(LocalStore(root, mkdir=not used), url, root)
        else:
            retries = {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT}
            bucket = Bucket(from_url(url, retry_config=retries), url)  # type: ignore[call-overload]
        bucket.check(used=used)
    except (BaseError, OSError, ValueError, RegistryError) as error:
        raise BlobsUnusable(f"cannot keep blobs at {url}: {_first_line(error)}") from error
    return bucket


class Bucket:
    """Objects in a bucket: durable once they are put, and put as a whole or not at all."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    def check(self, *, used: bool) -> None:
        """Raise a RegistryError unless objects can be written and read.

        If `used`, also unless a registry has used it before.
        """
        if used:
            try:
                self.get(_MARKER, 0, len(_MARKER_TEXT))
            except BlobDamaged as error:
                raise BlobsUnusable(
                    f"{_MARKER} is missing, so this is not where the registry's blobs are; is it "
                    "mounted, and the URL the same as before?"
                ) from error
        self.put(_MARKER, [_MARKER_TEXT])
        self.get(_MARKER, 0, len(_MARKER_TEXT))

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """Write an object. Raises StorageUnavailable and StorageFull."""
        with self._reporting("write", name):
            self._store.put(name, parts, use_multipart=False)

    def get(self, name: str, begin: int, end: int) -> memoryview:
        """Read bytes of an object. Raises StorageUnavailable, and BlobDamaged if they are gone."""
        damaged = f"object {name} in {self._url}"
        with self._reporting("read", name):
            try:
                data = memoryview(self._store.get_range(name, start=begin, end=end))
            except FileNotFoundError as error:
                raise BlobDamaged(f"{damaged} is gone; restore a backup") from error
            except BaseError:
                # Stores do not agree on how they refuse a range that an object is too short for.
                size = self._store.head(name)["size"]
                if size >= end:
                    raise
                data = memoryview(b"")
        if len(data) != end - begin:
            raise BlobDamaged(f"{damaged} ends before byte {end}; restore a backup")
        return data

    def names(self, folder: str) -> list[str]:
        """List the objects of a folder. Raises StorageUnavailable."""
        with self._reporting("list", folder):
            return [item["path"] for page in self._store.list(folder) for item in page]

    def everything(self) -> Iterator[Sequence[str]]:
        """List all objects of blobs, some at a time. Raises StorageUnavailable."""
        with self._reporting("list", "all"):
            for page in self._store.list(chunk_size=_LISTED):
                yield [item["path"] for item in page if item["path"] != _MARKER]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, if they exist. Raises StorageUnavailable."""
        if not names:
            return
        with self._reporting("delete", names[0]):
            try:
                self._store.delete(list(names))
            except FileNotFoundError:
                # Some stores stop at an object that somebody else has deleted.
                for name in names:
                    with suppress(FileNotFoundError):
                        self._store.delete(name)

    def clear(self, folder: str) -> None:
        """Delete all objects of a folder. Raises StorageUnavailable."""
        self.delete(self.names(folder))

    @contextmanager
    def _reporting(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            reason = _first_line(error)
            _log.warning(f"cannot {action} an object", name=name, store=self._url, reason=reason)
            if "os error 28" in reason or getattr(error, "errno", None) == 28:
                raise StorageFull("no room is left for blobs; tell the operator") from error
            raise StorageUnavailable(
                f"cannot {action} an object where the registry keeps its blobs; try again later"
            ) from error


class Directory(Bucket):
    """Files in a directory, synced to the disk, which obstore by itself leaves to the system."""

    def __init__(self, store: ObjectStore, url: str, root: Path) -> None:
        super().__init__(store, url)
        self._root = root

    def check(self, *, used: bool) -> None:
        """See Bucket; from then on, the directory itself outlives the machine's crash."""
        super().check(used=used)
        with suppress(PermissionError):
            _sync(self._root.parent)

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """See Bucket."""
        super().put(name, parts)
        with self._reporting("write", name):
            path = self._root / name
            while True:
                _sync(path)
                if path == self._root:
                    return
                path = path.parent

    def names(self, folder: str) -> list[str]:
        """See Bucket; it lists unfinished files as well."""
        path = self._root / folder
        with self._reporting("list", folder), suppress(FileNotFoundError):
            return [f"{folder}/{item.name}" for item in path.iterdir()]
        return []

    def everything(self) -> Iterator[Sequence[str]]:
        """See Bucket; it lists unfinished files as well."""
        with self._reporting("list", "all"):
            for folder, _, files in os.walk(self._root, onerror=_unless_gone):
                path = Path(folder).relative_to(self._root)
                yield [name for file in files if (name := str(path / file)) != _MARKER]

    def delete(self, names: Sequence[str]) -> None:
        """See Bucket."""
        for name in names:
            with self._reporting("delete", name):
                (self._root / name).unlink(missing_ok=True)

    def clear(self, folder: str) -> None:
        """See Bucket; the folder goes, and those around it that it leaves empty."""
        with self._reporting("delete", folder), suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)
        with suppress(OSError):
            for parent in Path(folder).parents:
                (self._root / parent).rmdir()


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
