"""One stream of bytes on its way into a blob."""

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import select, update

from servax_registry.artifact import Blob
from servax_registry.errors import (
    DigestMismatch,
    InvalidRequest,
    OffsetOutOfRange,
    RegistryError,
    StorageUnavailable,
    UploadConflict,
    UploadIncomplete,
)
from servax_registry.store.contents import CHUNK_SIZE, Contents, Place, Staged
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow

# How many bytes an upload commits at once. It bounds what the registry's own death can lose, how
# long others wait for the write lock (tens of milliseconds), and the memory of an upload.
_GROUP_SIZE = 8 * CHUNK_SIZE


class Upload:
    """One stream's hold on the upload at a place, from its byte `committed` on.

    While groups of bytes are staged and committed, in order, by threads of its own, the next is
    received and hashed. Leaving the block commits what is left, also when an exception ends the
    upload.
    """

    def __init__(
        self, database: Database, contents: Contents, place: Place, blob: Blob, committed: int
    ) -> None:
        self._database = database
        self._contents = contents
        self._place = place
        self._blob = blob
        self._group: list[bytes] = []
        self._group_begin = committed
        self._committers = ThreadPoolExecutor(contents.in_flight, thread_name_prefix="commit")
        self._commits: deque[Future[None]] = deque(maxlen=contents.in_flight)
        self.size = committed
        self.sha256 = hashlib.sha256()

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ended the upload tells more than what goes wrong now would.
        with self._committers, suppress(RegistryError):
            if kind is not None and self._group:
                self._commit()
                self._settle()

    def add(self, offset: int, data: bytes) -> None:
        """Take the next bytes; begin to commit them when there are enough for a group."""
        if offset != self.size:
            raise OffsetOutOfRange(
                f"blob {self._blob.digest}: bytes from {offset} on were sent where those from "
                f"{self.size} on are due"
            )
        if len(data) > CHUNK_SIZE:
            raise InvalidRequest(
                f"blob {self._blob.digest}: {len(data)} bytes were sent in one message; "
                f"send at most {CHUNK_SIZE}"
            )
        if self.size + len(data) > self._blob.size:
            raise DigestMismatch(
                f"blob {self._blob.digest}: more than the announced {self._blob.size} bytes were "
                "sent; the upload is discarded"
            )
        self.sha256.update(data)
        if data:
            self._group.append(data)
        self.size += len(data)
        if self.size - self._group_begin >= _GROUP_SIZE:
            self._commit()

    def finish(self) -> None:
        """Verify length and digest, and make the blob exist."""
        if self.size != self._blob.size:
            # Not a mismatch: gRPC ends a stream whose connection broke in the same way.
            raise UploadIncomplete(
                f"blob {self._blob.digest}: the stream ended after {self.size} of the announced "
                f"{self._blob.size} bytes; they are kept, go on from there"
            )
        digest = f"sha256:{self.sha256.hexdigest()}"
        if digest != self._blob.digest:
            raise DigestMismatch(
                f"the uploaded {self.size} bytes have the digest {digest}, not "
                f"{self._blob.digest}; the upload is discarded"
            )
        self._commit(complete=True)
        self._settle()

    def _commit(self, *, complete: bool = False) -> None:
        """Begin to commit the group, once the oldest of the commits under way is done."""
        if len(self._commits) == self._commits.maxlen:
            self._commits[0].result()
        previous = self._commits[-1] if self._commits else None
        group, begin, end = self._group, self._group_begin, self.size
        self._group, self._group_begin = [], end
        self._commits.append(
            self._committers.submit(self._append, group, begin, end, complete, previous)
        )

    def _settle(self) -> None:
        """Wait for the commits under way; raises what the last one raised."""
        if self._commits:
            self._commits[-1].result()

    def conflict(self) -> UploadConflict:
        """Make the error that tells that another stream has taken the upload over."""
        return UploadConflict(
            f"another upload of blob {self._blob.digest} moved on meanwhile; ask FindMissingBlobs "
            "where to go on"
        )

    def _stage(self, begin: int, group: Sequence[bytes]) -> Staged:
        try:
            return self._contents.stage(self._place, begin, group)
        except StorageUnavailable as error:
            # Where another stream began anew, or came first, what this one writes is deleted under
            # its hands.
            with self._database.read() as session:
                held = select(BlobRow.id).where(
                    BlobRow.id == self._place.key,
                    BlobRow.digest.is_not(None),
                    BlobRow.complete_time.is_(None),
                )
                if session.scalar(held) is None:
                    raise self.conflict() from error
            raise

    def _append(
        self,
        group: Sequence[bytes],
        begin: int,
        end: int,
        complete: bool,
        previous: Future[None] | None,
    ) -> None:
        staged = self._stage(begin, group) if group else None
        try:
            if previous is not None:
                previous.result()
            with self._database.write(durable=complete, alone=False) as session:
                now = datetime.now(UTC)
                moved = session.scalar(
                    update(BlobRow)
                    .where(
                        BlobRow.id == self._place.key,
                        BlobRow.digest == self._blob.digest,
                        BlobRow.committed_size == begin,
                        BlobRow.complete_time.is_(None),
                    )
                    .values(
                        committed_size=end,
                        update_time=now,
                        complete_time=now if complete else None,
                    )
                    .returning(BlobRow.id)
                )
                if moved is None:
                    raise self.conflict()
                if staged is not None:
                    staged.add(session)
        except UploadConflict:
            # After any other error, such as a lost connection, it may have been added for all
            # that is known here.
            if staged is not None:
                staged.drop()
            raise
