"""Blobs by content, with uploads that can be resumed.

A digest is the identity of its upload. Bytes are committed group by group, each in a short
transaction, and a compare-and-swap on the committed size lets exactly one of several concurrent
uploads of the same blob move on. A blob exists once its length and digest were verified.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from servax_registry.artifact import Blob, MissingBlob
from servax_registry.errors import (
    BlobDamaged,
    BlobNotFound,
    BlobsUnusable,
    DigestMismatch,
    InvalidRequest,
    OffsetOutOfRange,
    StorageUnavailable,
    UploadConflict,
)
from servax_registry.store.chunks import Chunks
from servax_registry.store.contents import Contents, Place
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow
from servax_registry.store.upload import Upload

if TYPE_CHECKING:
    from servax_registry.store.objects import Objects

# That somebody was told that a blob is stored is noted at most as often as this, to save writes.
_NOTED = timedelta(hours=1)

_log = structlog.get_logger(__name__)


class BlobStore:
    """Reads and writes blobs; safe to use from any number of threads and processes.

    New blobs lie at `url`, a bucket or a directory, or in the database when that is None; those
    that are stored already stay where they are. Raises BlobsUnusable.
    """

    def __init__(self, database: Database, url: str | None = None) -> None:
        self._database = database
        self._chunks = Chunks(database)
        self._objects = _open_objects(database, url)

    def get(self, digest: str) -> Blob:
        """Find a stored blob. Raises BlobNotFound."""
        with self._database.read() as session:
            row = _stored(session, digest)
        if row is None:
            raise BlobNotFound(f"no blob {digest!a} is stored")
        return Blob(digest, row.size)

    def find_missing(self, digests: Sequence[str]) -> tuple[MissingBlob, ...]:
        """Tell which blobs are not stored, in the order of `digests`, each once.

        That the others were asked for is noted, to the hour: they are not collected for a while.
        """
        with self._database.read() as session:
            rows = session.scalars(select(BlobRow).where(BlobRow.digest.in_(digests)))
            found = {row.digest: row for row in rows}
        complete = {digest: row for digest, row in found.items() if row.complete_time is not None}
        stored = complete.keys() - self._collected(complete.values())
        return tuple(
            MissingBlob(
                digest,
                found[digest].committed_size if digest in found and digest not in complete else 0,
            )
            for digest in dict.fromkeys(digests)
            if digest not in stored
        )

    def _collected(self, rows: Iterable[BlobRow]) -> set[str | None]:
        """Note that stored blobs were asked for; give those that were collected just before."""
        now = datetime.now(UTC)
        stale = {row.id: row.digest for row in rows if row.update_time < now - _NOTED}
        if not stale:
            return set()
        with self._database.write(durable=False, alone=False) as session:
            noted = session.scalars(
                update(BlobRow)
                .where(BlobRow.id.in_(stale), BlobRow.digest.is_not(None))
                .values(update_time=now)
                .returning(BlobRow.id)
            )
            return {stale[key] for key in stale.keys() - set(noted)}

    def read(self, digest: str, offset: int = 0, limit: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a blob in order, at most `limit` of them unless that is 0.

        No transaction is open between two items. Raises BlobNotFound, also where it is collected
        meanwhile, and OffsetOutOfRange, and BlobDamaged where bytes are missing; whether they are
        the right ones is for the reader to verify.
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
        place = _place(row)
        try:
            yield from self._contents(place).read(place, offset, end)
        except BlobDamaged as error:
            if self.holds(place):
                raise
            raise BlobNotFound(
                f"blob {digest} was collected while it was read: no version needed it"
            ) from error

    def read_kept(self, place: Place, size: int) -> Iterator[bytes]:
        """Yield the first bytes of a blob, or of an unfinished upload. Raises BlobDamaged."""
        return self._contents(place).read(place, 0, size)

    def strays(self) -> Iterator[str]:
        """Yield objects outside of the database that nobody knows or works on."""
        return iter(()) if self._objects is None else self._objects.strays()

    def holds(self, place: Place) -> bool:
        """Tell whether what lies at a place was not discarded or collected meanwhile."""
        with self._database.read() as session:
            held = select(BlobRow.id).where(BlobRow.id == place.key, BlobRow.digest.is_not(None))
            return session.scalar(held) is not None

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
        begun = self._begin(blob, first[0])
        if begun is None:
            return blob
        place, resumed = begun
        contents = self._contents(place)
        try:
            with Upload(self._database, contents, place, blob, first[0]) as upload:
                for data in contents.read(place, 0, upload.size):
                    upload.sha256.update(data)
                for offset, data in chain([first], parts):
                    upload.add(offset, data)
                upload.finish()
        except UploadConflict:
            if self.find_missing([blob.digest]):
                raise
        except DigestMismatch:
            self._discard(place)
            raise
        except BlobDamaged as error:
            if not self._discard(place):
                raise upload.conflict() from error
            raise
        if resumed:
            self._later(contents.tidy, place)
        return blob

    def expire(self, age: timedelta) -> None:
        """Discard uploads that have not moved on for as long as `age`, and sweep.

        An upload that is under way after all ends with UploadConflict, and can begin anew.
        """
        with self._database.write(durable=False) as session:
            session.execute(
                update(BlobRow)
                .where(
                    BlobRow.digest.is_not(None),
                    BlobRow.complete_time.is_(None),
                    BlobRow.update_time < datetime.now(UTC) - age,
                )
                .values(digest=None)
            )
        self.sweep()

    def sweep(self) -> None:
        """Delete what was discarded, in short transactions."""
        with self._database.read() as session:
            rows = session.scalars(select(BlobRow).where(BlobRow.digest.is_(None))).all()
        for row in rows:
            self._later(self._clear, _place(row))

    def _contents(self, place: Place) -> Contents:
        if place.folder is None:
            return self._chunks
        if self._objects is None:
            raise StorageUnavailable(
                f"blob {place.digest} lies outside of the database, where this registry was not "
                "told to look; tell the operator"
            )
        return self._objects

    def _begin(self, blob: Blob, offset: int) -> tuple[Place, bool] | None:
        """Begin or resume an upload; None when the blob is stored already."""
        replaced = None
        with self._database.write(durable=False) as session:
            row = session.scalar(select(BlobRow).where(BlobRow.digest == blob.digest))
            if row is not None and row.complete_time is not None:
                if row.size != blob.size:
                    raise DigestMismatch(
                        f"blob {blob.digest} is stored and has {row.size} bytes, not {blob.size}"
                    )
                row.update_time = datetime.now(UTC)
                return None
            committed = row.committed_size if row is not None and row.size == blob.size else 0
            if offset not in (0, committed):
                message = (
                    f"blob {blob.digest}: the upload stands at byte {committed}, not {offset}; "
                    "ask FindMissingBlobs where to go on"
                )
                raise (UploadConflict if offset < committed else OffsetOutOfRange)(message)
            if row is not None and (offset < committed or row.size != blob.size):
                replaced = _place(row)
                row.digest = None
                session.flush()
                row = None
            now = datetime.now(UTC)
            resumed = row is not None
            if row is None:
                row = BlobRow(
                    digest=blob.digest,
                    size=blob.size,
                    committed_size=0,
                    folder=self._objects and self._objects.new_folder(blob.digest),
                )
                session.add(row)
            row.update_time = now
            session.flush()
            place = _place(row)
        if replaced is not None:
            self._later(self._clear, replaced)
        return place, resumed

    def _discard(self, place: Place) -> bool:
        """Discard an upload; False when another stream did so, or completed it, before."""
        with self._database.write(durable=False) as session:
            discarded = session.scalar(
                update(BlobRow)
                .where(
                    BlobRow.id == place.key,
                    BlobRow.digest.is_not(None),
                    BlobRow.complete_time.is_(None),
                )
                .values(digest=None)
                .returning(BlobRow.id)
            )
        if discarded is not None:
            self._later(self._clear, place)
        return discarded is not None

    def _clear(self, place: Place) -> None:
        """Delete what was discarded; nothing where another stream completed it first."""
        with self._database.read() as session:
            if session.scalar(select(BlobRow.digest).where(BlobRow.id == place.key)) is not None:
                return
        self._contents(place).clear(place)
        with self._database.write(durable=False) as session:
            session.execute(delete(BlobRow).where(BlobRow.id == place.key))

    def _later(self, deletion: Callable[[Place], None], place: Place) -> None:
        """Delete something that nobody waits for."""
        try:
            deletion(place)
        except StorageUnavailable as error:
            _log.warning("cannot delete now", digest=place.digest, reason=str(error))


def _stored(session: Session, digest: str) -> BlobRow | None:
    return session.scalar(
        select(BlobRow).where(BlobRow.digest == digest, BlobRow.complete_time.is_not(None))
    )


def _place(row: BlobRow) -> Place:
    return Place(row.id, row.digest or "that was discarded", row.folder)


def _open_objects(database: Database, url: str | None) -> "Objects | None":
    with database.read() as session:
        some = select(BlobRow.id).where(BlobRow.folder.is_not(None)).limit(1)
        used = session.scalar(some) is not None
    if url is None:
        if used:
            raise BlobsUnusable(
                "blobs of this registry lie outside of its database; tell where with --blobs"
            )
        return None
    try:
        from servax_registry.store.bucket import open_bucket
        from servax_registry.store.objects import Objects
    except ImportError as error:
        raise BlobsUnusable(
            f"cannot keep blobs at {url}: {error}; pip install 'servax[objects]'"
        ) from error
    return Objects(database, open_bucket(url, used=used))
