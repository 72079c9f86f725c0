"""Bytes of blobs as objects outside of the database, which remembers where each segment lies.

A blob is a row of immutable objects, one for each group of bytes that its upload committed. No two
of them ever have the same name, so nothing is overwritten and no store needs conditional writes;
the transaction that commits a group decides whether its object counts.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from sqlalchemy import func, insert, or_, select
from sqlalchemy.orm import Session

from servax_registry.errors import BlobDamaged, RegistryError
from servax_registry.store.bucket import Bucket
from servax_registry.store.contents import CHUNK_SIZE, Place
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow, SegmentRow

# How many objects of one transfer are on their way at once: it hides the latency of a store.
_IN_FLIGHT = 3

# How many bytes of an object one request reads at most.
_FETCHED = 4 * CHUNK_SIZE

# How many segments are looked up at once.
_LOOKED_UP = 256


@dataclass(frozen=True)
class _StagedObject:
    bucket: Bucket
    row: dict[str, object]
    name: str

    def add(self, session: Session) -> None:
        """Refer to it."""
        session.execute(insert(SegmentRow), self.row)

    def drop(self) -> None:
        """Delete it; where that fails, tidying or clearing does so later."""
        with suppress(RegistryError):
            self.bucket.delete([self.name])


class Objects:
    """Contents in a bucket; what they promise is said there."""

    in_flight = _IN_FLIGHT

    def __init__(self, database: Database, bucket: Bucket) -> None:
        self._database = database
        self._bucket = bucket

    @staticmethod
    def new_folder(digest: str) -> str:
        """Name the folder of a new upload of this blob; no other has the same."""
        algorithm, _, value = digest.partition(":")
        return f"{algorithm}/{value[:2]}/{value}/{secrets.token_hex(8)}"

    def stage(self, place: Place, begin: int, parts: Sequence[bytes]) -> _StagedObject:
        """See Contents."""
        # Listed by name, the objects of a folder are in the order of their bytes.
        name = f"{place.folder}/{begin:020d}-{secrets.token_hex(4)}"
        self._bucket.put(name, parts)
        row = {
            "blob_id": place.key,
            "position": begin,
            "size": sum(map(len, parts)),
            "name": name,
        }
        return _StagedObject(self._bucket, row, name)

    def read(self, place: Place, begin: int, end: int) -> Iterator[bytes]:
        """See Contents."""
        pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="fetch")
        ahead: deque[Future[memoryview]] = deque()
        try:
            for name, start, stop in self._ranges(place, begin, end):
                if len(ahead) == _IN_FLIGHT:
                    yield from _pieces(ahead.popleft())
                ahead.append(pool.submit(self._bucket.get, name, start, stop))
            while ahead:
                yield from _pieces(ahead.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def tidy(self, place: Place) -> None:
        """See Contents."""
        with self._database.read() as session:
            query = select(SegmentRow.name).where(SegmentRow.blob_id == place.key)
            known = set(session.scalars(query))
        names = self._bucket.names(_folder(place))
        self._bucket.delete([name for name in names if name not in known])

    def clear(self, place: Place) -> None:
        """See Contents; the rows go with that of the blob."""
        self._bucket.clear(_folder(place))

    def strays(self) -> Iterator[str]:
        """Yield objects that belong to no blob, no upload, and nothing that waits for sweeping."""
        for names in self._bucket.everything():
            folders = {name: PurePosixPath(name).parent for name in names}
            digests = {f"sha256:{folder.parent.name}" for folder in folders.values()}
            with self._database.read() as session:
                rows = session.scalars(
                    select(BlobRow).where(
                        BlobRow.folder.is_not(None),
                        or_(BlobRow.digest.in_(digests), BlobRow.digest.is_(None)),
                    )
                ).all()
                segments = select(SegmentRow.name).where(
                    SegmentRow.blob_id.in_([row.id for row in rows])
                )
                known = set(session.scalars(segments))
            # Whoever works in these may put and delete objects meanwhile.
            unsettled = {
                row.folder for row in rows if row.digest is None or row.complete_time is None
            }
            for name, folder in folders.items():
                if name not in known and str(folder) not in unsettled:
                    yield name

    def _ranges(self, place: Place, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the objects that hold these bytes, each with the range of bytes to read of it."""
        position = begin
        while position < end:
            first = (
                select(func.max(SegmentRow.position))
                .where(SegmentRow.blob_id == place.key, SegmentRow.position <= position)
                .scalar_subquery()
            )
            some = (
                select(SegmentRow.name, SegmentRow.position, SegmentRow.size)
                .where(
                    SegmentRow.blob_id == place.key,
                    SegmentRow.position >= first,
                    SegmentRow.position < end,
                )
                .order_by(SegmentRow.position)
                .limit(_LOOKED_UP)
            )
            with self._database.read() as session:
                rows = session.execute(some).all()
            for name, start, size in rows:
                if not start <= position < start + size:
                    break
                stop = min(start + size, end)
                while position < stop:
                    reach = min(position + _FETCHED, stop)
                    yield name, position - start, reach - start
                    position = reach
            else:
                if rows:
                    continue
            raise BlobDamaged(
                f"blob {place.digest} is damaged in the registry's database: byte {position} is "
                "missing; restore a backup"
            )


def _pieces(fetched: "Future[memoryview]") -> Iterator[bytes]:
    data = fetched.result()
    for begin in range(0, len(data), CHUNK_SIZE):
        yield bytes(data[begin : begin + CHUNK_SIZE])


def _folder(place: Place) -> str:
    assert place.folder is not None, "only what has a folder lies in a bucket"
    return place.folder
