"""Bytes of blobs as chunks in the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from servax_registry.errors import BlobDamaged
from servax_registry.store.contents import CHUNK_SIZE, Place
from servax_registry.store.database import Database
from servax_registry.store.models import ChunkRow

# How many chunks one read, and one step of clearing, takes.
_READ_CHUNKS = 2
_CLEARED_CHUNKS = 8


@dataclass(frozen=True)
class _StagedChunks:
    """Parts that wait in memory for their transaction."""

    key: int
    begin: int
    parts: Sequence[bytes]

    def add(self, session: Session) -> None:
        """Insert them."""
        session.execute(insert(ChunkRow), _rows(self.key, self.begin, self.parts))

    def drop(self) -> None:
        """Nothing was kept."""


class Chunks:
    """Contents in the database; what they promise is said there."""

    in_flight = 1

    def __init__(self, database: Database) -> None:
        self._database = database

    def stage(self, place: Place, begin: int, parts: Sequence[bytes]) -> _StagedChunks:
        """See Contents."""
        return _StagedChunks(place.key, begin, parts)

    def read(self, place: Place, begin: int, end: int) -> Iterator[bytes]:
        """See Contents."""
        position = begin
        while position < end:
            first = (
                select(func.max(ChunkRow.position))
                .where(ChunkRow.blob_id == place.key, ChunkRow.position <= position)
                .scalar_subquery()
            )
            some = (
                select(ChunkRow.position, ChunkRow.data)
                .where(ChunkRow.blob_id == place.key, ChunkRow.position >= first)
                .order_by(ChunkRow.position)
                .limit(_READ_CHUNKS)
                .execution_options(servax_bytes=True)
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
                    f"blob {place.digest} is damaged in the registry's database: byte {position} "
                    "is missing; restore a backup"
                )

    def tidy(self, place: Place) -> None:
        """Nothing is staged outside of transactions."""

    def clear(self, place: Place) -> None:
        """See Contents."""
        some = select(ChunkRow.id).where(ChunkRow.blob_id == place.key).limit(_CLEARED_CHUNKS)
        count = _CLEARED_CHUNKS
        while count == _CLEARED_CHUNKS:
            with self._database.write(durable=False, alone=False) as session:
                keys = session.scalars(some).all()
                session.execute(delete(ChunkRow).where(ChunkRow.id.in_(keys)))
            count = len(keys)


def _rows(key: int, begin: int, parts: Sequence[bytes]) -> list[dict[str, object]]:
    """Make chunks out of contiguous parts, joining small ones up to CHUNK_SIZE."""
    runs: list[list[bytes]] = []
    room = 0
    for data in parts:
        if len(data) > room:
            runs.append([])
            room = CHUNK_SIZE
        runs[-1].append(data)
        room -= len(data)
    rows: list[dict[str, object]] = []
    for run in runs:
        data = run[0] if len(run) == 1 else b"".join(run)
        rows.append({"blob_id": key, "position": begin, "data": data})
        begin += len(data)
    return rows
