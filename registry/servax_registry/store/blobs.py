"""Blobs by content, kept in chunks, with uploads that can be resumed.

A digest is the identity of its upload. Bytes are committed group by group, each in a short
transaction, and a compare-and-swap on the committed size lets exactly one of several concurrent
uploads of the same blob move on. A blob exists once its length and digest were verified.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from servax_registry.artifact import Blob, MissingBlob
from servax_registry.errors import (
    BlobDamaged,
    BlobNotFound,
    DigestMismatch,
    InvalidRequest,
    OffsetOutOfRange,
    UploadConflict,
    UploadIncomplete,
)
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow, ChunkRow

# The most bytes that one part of an upload, and thus one chunk, may have.
CHUNK_SIZE = 1 << 20

# How many bytes an upload commits at once. It bounds what the registry's own death can lose, how
# long others wait for the write lock (tens of milliseconds), and the memory of an upload.
_GROUP_SIZE = 8 * CHUNK_SIZE

# How many chunks one read or one step of sweeping takes.
_READ_CHUNKS = 2
_SWEEP_CHUNKS = 8


class BlobStore:
    """Reads and writes blobs; safe to use from any number of threads and processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, digest: str) -> Blob:
        """Find a stored blob. Raises BlobNotFound."""
        with self._database.read() as session:
            row = _stored(session, digest)
        if row is None:
            raise BlobNotFound(f"no blob {digest!a} is stored")
        return Blob(digest, row.size)

    def find_missing(self, digests: Sequence[str]) -> tuple[MissingBlob, ...]:
        """Tell which blobs are not stored, in the order of `digests`, each once."""
        with self._database.read() as session:
            rows = session.scalars(select(BlobRow).where(BlobRow.digest.in_(digests)))
            found = {row.digest: row for row in rows}
        return tuple(
            MissingBlob(digest, found[digest].committed_size if digest in found else 0)
            for digest in dict.fromkeys(digests)
            if digest not in found or found[digest].complete_time is None
        )

    def read(self, digest: str, offset: int = 0, limit: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a blob in order, at most `limit` of them unless that is 0.

        No transaction is open between two items. Raises BlobNotFound and OffsetOutOfRange, and
        BlobDamaged where bytes are missing; whether they are the right ones is for the reader to
        verify.
        """
        with self._database.read() as session:
            row = _stored(session, digest)
        if row is None:
            raise BlobNotFound(f"no blob {digest!a} is stored")
        if not 0 <= offset <= row.size:
            raise OffsetOutOfRange(
                f"offset {offset} is not within the {row.size} bytes of {digest}"
            )
        if limit < 0:
            raise InvalidRequest(f"limit {limit} is negative; give 0 for all that follow")
        end = min(offset + limit, row.size) if limit else row.size
        yield from self._chunks(row.id, digest, offset, end)

    def write(self, blob: Blob, parts: Iterable[tuple[int, bytes]]) -> Blob:
        """Store a blob from (offset, bytes) pairs that follow one another without a gap.

        The first offset is 0, which begins anew, or the committed size of an interrupted upload.
        What arrived is kept when `parts` raises, or ends early, which is UploadIncomplete. Raises
        OffsetOutOfRange; UploadConflict when another upload of the same blob moved on meanwhile;
        and DigestMismatch when the bytes are not those of the digest: they are discarded.
        """
        if blob.size < 0:
            raise InvalidRequest(f"blob {blob.digest}: its size {blob.size} is negative")
        parts = iter(parts)
        first = next(parts, (0, b""))
        key = self._begin(blob, first[0])
        if key is None:
            return blob
        try:
            with _Upload(self._database, key, blob, first[0]) as upload:
                for data in self._chunks(key, blob.digest, 0, upload.size):
                    upload.sha256.update(data)
                for offset, data in chain([first], parts):
                    upload.add(offset, data)
                upload.finish()
        except UploadConflict:
            if self.find_missing([blob.digest]):
                raise
        except (DigestMismatch, BlobDamaged):
            self._discard(key)
            raise
        return blob

    def sweep(self) -> None:
        """Delete what was discarded, in short transactions."""
        discarded = select(BlobRow.id).where(BlobRow.digest.is_(None)).scalar_subquery()
        some = select(ChunkRow.id).where(ChunkRow.blob_id.in_(discarded)).limit(_SWEEP_CHUNKS)
        while True:
            with self._database.write(durable=False) as session:
                keys = session.scalars(some).all()
                if not keys:
                    session.execute(delete(BlobRow).where(BlobRow.digest.is_(None)))
                    return
                session.execute(delete(ChunkRow).where(ChunkRow.id.in_(keys)))

    def _begin(self, blob: Blob, offset: int) -> int | None:
        """Begin or resume an upload and give its key; None when the blob is stored already."""
        with self._database.write(durable=False) as session:
            row = session.scalar(select(BlobRow).where(BlobRow.digest == blob.digest))
            if row is not None and row.complete_time is not None:
                if row.size != blob.size:
                    raise DigestMismatch(
                        f"blob {blob.digest} is stored and has {row.size} bytes, not {blob.size}"
                    )
                return None
            committed = row.committed_size if row is not None and row.size == blob.size else 0
            if offset not in (0, committed):
                message = (
                    f"blob {blob.digest}: the upload stands at byte {committed}, not {offset}; "
                    "ask FindMissingBlobs where to go on"
                )
                raise (UploadConflict if offset < committed else OffsetOutOfRange)(message)
            replaced = row is not None and (offset < committed or row.size != blob.size)
            if row is not None and replaced:
                row.digest = None
                session.flush()
            if row is None or replaced:
                row = BlobRow(
                    digest=blob.digest,
                    size=blob.size,
                    committed_size=0,
                    update_time=datetime.now(UTC),
                )
                session.add(row)
                session.flush()
            key = row.id
        if replaced:
            self.sweep()
        return key

    def _discard(self, key: int) -> None:
        with self._database.write(durable=False) as session:
            session.execute(
                update(BlobRow)
                .where(BlobRow.id == key, BlobRow.complete_time.is_(None))
                .values(digest=None)
            )
        self.sweep()

    def _chunks(self, key: int, digest: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `begin` to `end` of a blob or an unfinished upload."""
        position = begin
        while position < end:
            first = (
                select(func.max(ChunkRow.position))
                .where(ChunkRow.blob_id == key, ChunkRow.position <= position)
                .scalar_subquery()
            )
            some = (
                select(ChunkRow.position, ChunkRow.data)
                .where(ChunkRow.blob_id == key, ChunkRow.position >= first)
                .order_by(ChunkRow.position)
                .limit(_READ_CHUNKS)
            )
            with self._database.read() as session:
                rows = session.execute(some).all()
            advanced = position
            for start, data in rows:
                if not start <= position < start + len(data):
                    break
                yield data[position - start : end - start]
                position = min(start + len(data), end)
                if position == end:
                    return
            if position == advanced:
                raise BlobDamaged(
                    f"blob {digest} is damaged in the registry's database: byte {position} is "
                    "missing; restore a backup"
                )


class _Upload:
    """One stream's hold on the upload with this key, from its byte `committed` on.

    While a thread of its own commits one group of bytes, the next is received and hashed. Leaving
    the block commits what is left, also when an exception ends the upload.
    """

    def __init__(self, database: Database, key: int, blob: Blob, committed: int) -> None:
        self._database = database
        self._key = key
        self._blob = blob
        self._group: list[tuple[int, bytes]] = []
        self._group_begin = committed
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._committing: Future[None] | None = None
        self.size = committed
        self.sha256 = hashlib.sha256()

    def __enter__(self) -> "_Upload":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ended the upload tells more than a conflict now would.
        with self._committer, suppress(UploadConflict):
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
            self._group.append((offset, data))
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
        self._settle()
        group, begin, end = self._group, self._group_begin, self.size
        self._group, self._group_begin = [], end
        self._committing = self._committer.submit(self._append, group, begin, end, complete)

    def _settle(self) -> None:
        """Wait for the commit under way; raises what it raised."""
        if self._committing is not None:
            self._committing.result()

    def _append(self, group: list[tuple[int, bytes]], begin: int, end: int, complete: bool) -> None:
        now = datetime.now(UTC)
        with self._database.write(durable=complete) as session:
            moved = session.scalar(
                update(BlobRow)
                .where(
                    BlobRow.id == self._key,
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
                raise UploadConflict(
                    f"another upload of blob {self._blob.digest} moved on meanwhile; ask "
                    "FindMissingBlobs where to go on"
                )
            if group:
                session.execute(insert(ChunkRow), _rows(self._key, group))


def _stored(session: Session, digest: str) -> BlobRow | None:
    return session.scalar(
        select(BlobRow).where(BlobRow.digest == digest, BlobRow.complete_time.is_not(None))
    )


def _rows(key: int, parts: list[tuple[int, bytes]]) -> list[dict[str, object]]:
    """Make chunks out of contiguous parts, joining small ones up to CHUNK_SIZE."""
    runs: list[list[tuple[int, bytes]]] = []
    room = 0
    for part in parts:
        if len(part[1]) > room:
            runs.append([])
            room = CHUNK_SIZE
        runs[-1].append(part)
        room -= len(part[1])
    return [
        {
            "blob_id": key,
            "position": run[0][0],
            "data": run[0][1] if len(run) == 1 else b"".join(data for _, data in run),
        }
        for run in runs
    ]
