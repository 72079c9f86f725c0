"""The local side of a transfer: what is read to be sent, and the file that what arrives becomes."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from servax.errors import DataLoss, FileError
from servax.types import Blob, Content, FilePath, Progress, ProgressCallback

CHUNK_BYTES = 1 << 20
"""The API's limit for the data of one message."""


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Give the digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def reported(action: Literal["read", "write"], path: Path) -> Iterator[None]:
    """Raise FileError, with the path and the system's reason, in place of OSError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot {action} {str(path)!r}: {reason}", error.errno) from error


class Source(Protocol):
    """Bytes that can be read again from any offset."""

    def blob(self, report: ProgressCallback | None) -> Blob:
        """Hash the bytes."""
        ...

    def read(self, offset: int) -> Iterator[bytes]:
        """Give the bytes from `offset` on, by chunks of at most CHUNK_BYTES."""
        ...

    def check(self) -> None:
        """Raise FileError where the bytes are no longer those that were hashed."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...


class FileSource:
    """A file. Every method raises FileError where it is missing, unreadable or has changed."""

    def __init__(self, path: FilePath) -> None:
        self._path = Path(path)
        self.name = self._path.name
        self._state = self._stat()

    def _stat(self) -> tuple[int, int, int, int]:
        with reported("read", self._path):
            stat = self._path.stat()
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    def check(self) -> None:
        """Compare the file's identity, size and time of change with those at the beginning."""
        if self._stat() != self._state:
            raise self._changed()

    def _changed(self) -> FileError:
        return FileError(f"{str(self._path)!r} changed while it was being read; try again")

    def read(self, offset: int) -> Iterator[bytes]:
        """Read from `offset` on; the last chunk comes only if the file has not changed."""
        size = self._state[2]
        with reported("read", self._path), self._path.open("rb") as file:
            file.seek(offset)
            while offset < size:
                chunk = file.read(min(CHUNK_BYTES, size - offset))
                if not chunk:
                    raise self._changed()
                offset += len(chunk)
                if offset == size:
                    self.check()
                yield chunk

    def blob(self, report: ProgressCallback | None = None) -> Blob:
        """Hash the file, however large, in one pass."""
        size = self._state[2]
        sha256 = hashlib.sha256()
        done = 0
        for chunk in self.read(0):
            sha256.update(chunk)
            done += len(chunk)
            if report is not None:
                report(Progress("hash", self.name, done, size))
        return Blob(f"sha256:{sha256.hexdigest()}", size)


class BytesSource:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray, name: str) -> None:
        self._data = memoryview(data)
        self.name = name

    def check(self) -> None:
        """Bytes do not change."""

    def read(self, offset: int) -> Iterator[bytes]:
        """Cut the bytes."""
        for begin in range(offset, len(self._data), CHUNK_BYTES):
            yield bytes(self._data[begin : begin + CHUNK_BYTES])

    def blob(self, report: ProgressCallback | None = None) -> Blob:
        """Hash the bytes."""
        return Blob(digest_of(self._data), len(self._data))


def source(origin: Content, name: str) -> Source:
    """Give what is to be sent: a path's file, or bytes that people know as `name`."""
    if isinstance(origin, bytes | bytearray):
        return BytesSource(origin, name)
    return FileSource(origin)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, where they are not there yet."""
    with reported("write", path):
        path.mkdir(parents=True, exist_ok=True)


class PartFile:
    """Collects a blob in `<destination>.part`, which becomes the destination once it is whole.

    A part that is there already is continued. Not for two downloads to one destination at once.
    """

    def __init__(self, blob: Blob, destination: FilePath, report: ProgressCallback | None) -> None:
        self._blob = blob
        self._destination = Path(destination)
        self._part = self._destination.with_name(self._destination.name + ".part")
        self._report = report
        self._sha256 = hashlib.sha256()
        self.offset = 0
        with reported("write", self._destination):
            replaceable = self._destination.is_file() or not self._destination.exists()
        if not replaceable:
            # The part would take the place of a device, such as /dev/null.
            raise FileError(f"cannot write {str(self._destination)!r}: it is no regular file")
        with reported("write", self._part):
            self._file: BinaryIO = self._part.open("a+b")
            self._take_up()
        self.resumed = self.offset > 0

    def _take_up(self) -> None:
        self._file.seek(0)
        if os.fstat(self._file.fileno()).st_size > self._blob.size:
            self._file.truncate()
        while chunk := self._file.read(CHUNK_BYTES):
            self._sha256.update(chunk)
            self.offset += len(chunk)

    def restart(self) -> None:
        """Drop what there is."""
        with reported("write", self._part):
            self._file.truncate(0)
        self._sha256 = hashlib.sha256()
        self.offset = 0
        self.resumed = False

    def write(self, data: bytes) -> None:
        """Append what arrived; raises DataLoss when it is more than the blob's size."""
        if self.offset + len(data) > self._blob.size:
            self._discard()
            raise DataLoss(f"{self._blob.digest}: more than its {self._blob.size} bytes arrived")
        with reported("write", self._part):
            self._file.write(data)
        self._sha256.update(data)
        self.offset += len(data)
        if self._report is not None:
            name = self._destination.name
            self._report(Progress("download", name, self.offset, self._blob.size))

    @property
    def intact(self) -> bool:
        """Whether what there is has the blob's digest."""
        return f"sha256:{self._sha256.hexdigest()}" == self._blob.digest

    def finish(self) -> Path:
        """Make the part the destination, atomically and durably.

        Raises DataLoss where the bytes do not match the digest; the part is deleted then.
        """
        if not self.intact:
            self._discard()
            raise DataLoss(f"the bytes that arrived are not those of {self._blob.digest}")
        with reported("write", self._destination):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._part.replace(self._destination)
            directory = os.open(self._destination.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # the new name must survive a crash too
            finally:
                os.close(directory)
        return self._destination

    def _discard(self) -> None:
        with reported("write", self._part):
            self._part.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; what there is stays, to be continued."""
        with reported("write", self._part):
            self._file.close()
