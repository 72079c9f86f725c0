"""Checks that everything is there that should be, byte by byte; changes nothing.

Registries may go on meanwhile: what they have changed since it was listed is looked at once more
before it counts as a problem.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import and_, exists, func, or_, select, union
from sqlalchemy.orm import Session

from servax_registry.errors import BlobDamaged, StorageUnavailable, listed
from servax_registry.store.blobs import BlobStore
from servax_registry.store.contents import Place
from servax_registry.store.database import Database
from servax_registry.store.models import (
    AliasRow,
    BlobRow,
    ChunkRow,
    ModelRow,
    SegmentRow,
    SignatureRow,
    VersionRow,
)
from servax_registry.store.needs import NEEDS

_RESTORE = "restore a backup"
_BUG = "this is a bug of Servax: please report it; restore a backup"

# How many blobs are looked up at once.
_BATCH = 100


@dataclass(frozen=True)
class Problem:
    """What is wrong with what, and what to do; `harmless` where it only takes up room."""

    what: str
    problem: str
    remedy: str
    harmless: bool = False


@dataclass(frozen=True)
class _Kept:
    """What the row of a blob or an upload says, and how many bytes its chunks and segments have."""

    place: Place
    size: int
    complete: bool
    chunks: int
    segments: int


class Check:
    """One check; `count` blobs of together `bytes` bytes were read.

    `blobs_url` is as in BlobStore. `report` is told how many of how many bytes are read.
    """

    def __init__(
        self, database: Database, blobs_url: str | None, report: Callable[[int, int], None]
    ) -> None:
        self._database = database
        self._blobs_url = blobs_url
        self._report = report
        self.count = 0
        self.bytes = 0

    def run(self) -> Iterator[Problem]:
        """Yield every problem; that it cannot go on is the last one. Raises BlobsUnusable."""
        try:
            yield from self._problems()
        except StorageUnavailable as error:
            yield Problem("check", f"cannot go on: {error}", "mend that, and check again")

    def _problems(self) -> Iterator[Problem]:
        for fault in self._database.faults():
            yield Problem("database", fault, _RESTORE)
        with self._database.read() as session:
            yield from _wrong_references(session)
            total = session.scalar(
                select(func.sum(BlobRow.committed_size)).where(BlobRow.digest.is_not(None))
            )
        # Only now, since a damaged database may not even tell whether there are objects.
        blobs = BlobStore(self._database, self._blobs_url)
        for kept in self._kept():
            yield from self._wrong_contents(blobs, kept, int(total or 0))
        for name in blobs.strays():
            yield Problem(
                f"object {name}", "belongs to no blob", "delete it to free its room", harmless=True
            )

    def _kept(self) -> Iterator[_Kept]:
        chunks = select(func.sum(func.length(ChunkRow.data))).where(ChunkRow.blob_id == BlobRow.id)
        segments = select(func.sum(SegmentRow.size)).where(SegmentRow.blob_id == BlobRow.id)
        last, count = 0, _BATCH
        while count == _BATCH:
            query = (
                select(BlobRow, chunks.scalar_subquery(), segments.scalar_subquery())
                .where(BlobRow.id > last, BlobRow.digest.is_not(None))
                .order_by(BlobRow.id)
                .limit(_BATCH)
            )
            with self._database.read() as session:
                rows = session.execute(query).all()
            for row, in_chunks, in_segments in rows:
                yield _Kept(
                    Place(row.id, str(row.digest), row.folder),
                    row.committed_size,
                    row.complete_time is not None,
                    int(in_chunks or 0),
                    int(in_segments or 0),
                )
                last = row.id
            count = len(rows)

    def _wrong_contents(self, blobs: BlobStore, kept: _Kept, total: int) -> Iterator[Problem]:
        place = kept.place
        what = f"{'blob' if kept.complete else 'upload of'} {place.digest}"
        expected = (0, kept.size) if place.folder else (kept.size, 0)
        if (kept.chunks, kept.segments) != expected:
            yield self._of_blob(
                what,
                kept,
                f"{kept.size} bytes are recorded, and {kept.chunks} in chunks and {kept.segments} "
                "in segments",
            )
        sha256 = hashlib.sha256()
        try:
            for data in blobs.read_kept(place, kept.size):
                sha256.update(data)
                self.bytes += len(data)
                self._report(self.bytes, max(total, self.bytes))
        except BlobDamaged as error:
            if blobs.holds(place):
                yield self._of_blob(what, kept, str(error))
            return
        self.count += 1
        digest = f"sha256:{sha256.hexdigest()}"
        if kept.complete and digest != place.digest:
            yield self._of_blob(what, kept, f"its bytes have the digest {digest}")

    def _of_blob(self, what: str, kept: _Kept, problem: str) -> Problem:
        if not kept.complete:
            return Problem(what, problem, "none: whoever resumes the upload begins anew")
        needing = union(
            *(
                select(ModelRow.name, VersionRow.number)
                .join(VersionRow.model)
                .where(*need, BlobRow.id == kept.place.key)
                for need in NEEDS
            )
        )
        with self._database.read() as session:
            versions = [f"{model}:{number}" for model, number in session.execute(needing)]
        if not versions:
            return Problem(what, problem, "no version needs it: gc will collect it")
        return Problem(what, f"{problem}; {listed(versions)} need it", _RESTORE)


def _wrong_references(session: Session) -> Iterator[Problem]:
    for need in NEEDS:
        query = (
            select(ModelRow.name, VersionRow.number, BlobRow.id)
            .join(VersionRow.model)
            .where(*need, or_(BlobRow.digest.is_(None), BlobRow.complete_time.is_(None)))
        )
        for model, number, key in session.execute(query):
            yield Problem(
                f"version {model}:{number}", f"needs blob {key}, which is not whole", _BUG
            )
    aliases = (
        select(ModelRow.name, AliasRow.name)
        .join(ModelRow, AliasRow.model_id == ModelRow.id)
        .outerjoin(
            VersionRow,
            and_(VersionRow.model_id == AliasRow.model_id, VersionRow.number == AliasRow.number),
        )
        .where(or_(VersionRow.id.is_(None), VersionRow.delete_time.is_not(None)))
    )
    for model, alias in session.execute(aliases):
        yield Problem(f"alias {model}@{alias}", "points to a version that is deleted", _BUG)
    versions = select(ModelRow.name, VersionRow.number).join(VersionRow.model)
    unsigned = versions.where(~exists().where(SignatureRow.version_id == VersionRow.id))
    for model, number in session.execute(unsigned):
        yield Problem(f"version {model}:{number}", "has no program", _BUG)
    unnumbered = versions.where(VersionRow.number > ModelRow.last_number)
    for model, number in session.execute(unnumbered):
        yield Problem(f"version {model}:{number}", "has a number that was never given", _BUG)
