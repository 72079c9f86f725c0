"""Garbage collection: versions that were deleted long ago, and blobs that no version needs.

Nothing that a caller was promised is collected. A version keeps what it names, by foreign keys; a
blob that no version names yet is kept for as long after somebody was last told that it is stored as
publishing may take. Units of work are short, and what they find stays true while they are alone, so
registries, and their callers, go on beside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Select, delete, exists, or_, select, true, update

from servax_registry.artifact import Action, VersionName
from servax_registry.store.blobs import BlobStore
from servax_registry.store.changes import Changes
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow, InspectionRow, ModelRow, TrialRow, VersionRow
from servax_registry.store.needs import NEEDS

ACTOR = "servax-registry gc"

# How many versions or blobs one unit of work takes.
_BATCH = 50


@dataclass(frozen=True)
class Collected:
    """What was collected, or would be; `size` is that of the blobs together, in bytes."""

    versions: tuple[VersionName, ...]
    blobs: int
    size: int


class Collector:
    """Collects versions and blobs that nobody had a claim on any more when it was made.

    Such a version was deleted longer than `retention` ago. Such a blob is needed by no other
    version, and nobody completed it, or was told that it is stored, within `grace`.
    """

    def __init__(
        self, database: Database, blobs: BlobStore, *, retention: timedelta, grace: timedelta
    ) -> None:
        self._database = database
        self._blobs = blobs
        now = datetime.now(UTC)
        self._deleted_before = now - retention
        self._told_before = now - grace

    def measure(self) -> Collected:
        """Tell what there is to collect."""
        with self._database.read() as session:
            rows = session.execute(self._expired()).all()
        stays = or_(
            VersionRow.delete_time.is_(None), VersionRow.delete_time >= self._deleted_before
        )
        sizes = [size for batch in self._unneeded(stays) for _, size in batch]
        return Collected(_names(rows), len(sizes), sum(sizes))

    def collect(self) -> Collected:
        """Collect it. Raises StorageUnavailable; whoever tries again goes on."""
        versions = tuple(name for batch in self._collect_versions() for name in batch)
        sizes = [
            size
            for batch in self._unneeded(true())
            for size in self._discard([key for key, _ in batch])
        ]
        self._blobs.sweep()
        return Collected(versions, len(sizes), sum(sizes))

    def _collect_versions(self) -> Iterator[Sequence[VersionName]]:
        count = _BATCH
        while count == _BATCH:
            with self._database.write() as session:
                rows = session.execute(self._expired().limit(_BATCH)).all()
                keys = [key for key, _, _ in rows]
                session.execute(delete(VersionRow).where(VersionRow.id.in_(keys)))
                names = _names(rows)
                for name in names:
                    Changes(session).record(ACTOR, Action.COLLECT, name.model, name.number)
            yield names
            count = len(names)

    def _expired(self) -> Select[int, str, int]:
        return (
            select(VersionRow.id, ModelRow.name, VersionRow.number)
            .join(VersionRow.model)
            .where(VersionRow.delete_time < self._deleted_before)
            .order_by(VersionRow.delete_time, VersionRow.id)
        )

    def _unneeded(self, stays: ColumnElement[bool]) -> Iterator[Sequence[tuple[int, int]]]:
        """Yield the keys and sizes of blobs that no version needs of which `stays` is true."""
        last, count = 0, _BATCH
        while count == _BATCH:
            query = (
                select(BlobRow.id, BlobRow.size)
                .where(BlobRow.id > last, *self._collectable(stays))
                .order_by(BlobRow.id)
                .limit(_BATCH)
            )
            with self._database.read() as session:
                rows = [(key, size) for key, size in session.execute(query)]
            yield rows
            count = len(rows)
            last = rows[-1][0] if rows else last

    def _discard(self, keys: Sequence[int]) -> Sequence[int]:
        """Discard those of the blobs that are still to be collected; give their sizes."""
        with self._database.write() as session:
            rows = session.execute(
                update(BlobRow)
                .where(BlobRow.id.in_(keys), *self._collectable(true()))
                .values(digest=None)
                .returning(BlobRow.id, BlobRow.size)
            ).all()
            discarded = [key for key, _ in rows]
            for table in (InspectionRow, TrialRow):
                session.execute(delete(table).where(table.blob_id.in_(discarded)))
        return [size for _, size in rows]

    def _collectable(self, stays: ColumnElement[bool]) -> Sequence[ColumnElement[bool]]:
        return (
            BlobRow.digest.is_not(None),
            BlobRow.complete_time.is_not(None),
            BlobRow.update_time < self._told_before,
            *(~exists().where(*need, stays) for need in NEEDS),
        )


def _names(rows: Sequence[tuple[int, str, int]]) -> tuple[VersionName, ...]:
    return tuple(VersionName(model, number) for _, model, number in rows)
