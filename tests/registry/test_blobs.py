"""Blobs on every backend: interrupted, contested, damaged, abandoned and swept."""

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from obstore.store import from_url
from sqlalchemy import func, select, update

from servax_registry.artifact import Blob
from servax_registry.errors import (
    DigestMismatch,
    OffsetOutOfRange,
    UploadConflict,
)
from servax_registry.store.blobs import BlobStore
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.models import BlobRow, ChunkRow, SegmentRow

SIZE = 20 * CHUNK_SIZE + 3
DATA = np.random.default_rng(0).bytes(SIZE)
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", SIZE)


@pytest.fixture
def url(backend):
    """The database of each backend."""
    return backend.database


@pytest.fixture
def blobs(database, backend):
    """The blobs of each backend."""
    return BlobStore(database, backend.blobs)


@pytest.fixture
def kept(database, backend):
    """Count what is kept of blobs: rows of any kind, and objects."""

    def kept():
        with database.read() as session:
            rows = sum(
                session.scalars(select(func.count()).select_from(table)).one()
                for table in (BlobRow, ChunkRow, SegmentRow)
            )
        if backend.blobs is None:
            return rows, 0
        return rows, sum(map(len, from_url(backend.blobs).list("sha256")))

    return kept


class Broken(Exception):
    """The stream broke."""


def parts(begin=0, end=SIZE, *, step=CHUNK_SIZE, breaks=False):
    """Yield the bytes from `begin` to `end`, and then break if told to."""
    yield begin, b""
    for offset in range(begin, end, step):
        yield offset, DATA[offset : min(offset + step, end)]
    if breaks:
        raise Broken


def committed(blobs):
    """Give the committed size of the unfinished upload."""
    (missing,) = blobs.find_missing([BLOB.digest])
    return missing.committed_size


@pytest.mark.parametrize(
    "end", [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, 8 * CHUNK_SIZE, 9 * CHUNK_SIZE + 7, SIZE]
)
def test_an_interrupted_upload_keeps_every_byte_and_goes_on(blobs, end):
    """After a stream broke anywhere, exactly what arrived is kept and the rest completes it."""
    with pytest.raises(Broken):
        blobs.write(BLOB, parts(0, end, breaks=True))
    assert committed(blobs) == end

    blobs.write(BLOB, parts(end))

    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_an_upload_can_break_many_times(blobs):
    """Small pieces over many streams give the blob, and reads find their way through the chunks."""
    ends = [0, 5, 5, 70_000, 3 * CHUNK_SIZE + 1, 11 * CHUNK_SIZE, SIZE - 1]
    for begin, end in zip([0, *ends], ends, strict=False):
        with pytest.raises(Broken):
            blobs.write(BLOB, parts(begin, end, step=300_000, breaks=True))

    blobs.write(BLOB, parts(ends[-1]))

    for offset in (0, 4, 5, 69_999, 70_000, 4 * CHUNK_SIZE):
        assert (
            b"".join(blobs.read(BLOB.digest, offset, CHUNK_SIZE))
            == (DATA[offset : offset + CHUNK_SIZE])
        )


def test_an_unfinished_blob_cannot_be_seen(blobs):
    """A blob is missing, and cannot be read, until its upload is complete."""
    with pytest.raises(Broken):
        blobs.write(BLOB, parts(breaks=True))

    assert committed(blobs) == SIZE
    with pytest.raises(Exception, match="no blob"):
        list(blobs.read(BLOB.digest))


def test_the_faster_of_two_uploads_wins(blobs):
    """An upload that another one overtook is refused, and harms nothing."""

    def overtaken():
        yield from parts(0, 4 * CHUNK_SIZE)
        with pytest.raises(Broken):
            blobs.write(BLOB, parts(0, 10 * CHUNK_SIZE, breaks=True))
        yield from list(parts(4 * CHUNK_SIZE))[1:]

    with pytest.raises(UploadConflict, match="moved on"):
        blobs.write(BLOB, overtaken())
    with pytest.raises(UploadConflict, match=f"stands at byte {10 * CHUNK_SIZE}"):
        blobs.write(BLOB, parts(CHUNK_SIZE))
    with pytest.raises(OffsetOutOfRange, match=f"stands at byte {10 * CHUNK_SIZE}"):
        blobs.write(BLOB, parts(11 * CHUNK_SIZE))
    blobs.write(BLOB, parts(10 * CHUNK_SIZE))

    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_an_upload_that_was_begun_anew_does_not_go_on(blobs):
    """A stream notices that another began anew, even where both have committed as much."""

    def replaced():
        yield from parts(0, 8 * CHUNK_SIZE)
        while committed(blobs) < 8 * CHUNK_SIZE:
            pass
        with pytest.raises(Broken):
            blobs.write(BLOB, parts(0, 8 * CHUNK_SIZE, breaks=True))
        yield from list(parts(8 * CHUNK_SIZE))[1:]

    with pytest.raises(UploadConflict):
        blobs.write(BLOB, replaced())

    assert committed(blobs) == 8 * CHUNK_SIZE


def test_overtaken_by_the_end_is_success(blobs):
    """An upload of what another has just completed succeeds."""

    def overtaken():
        yield from parts(0, 4 * CHUNK_SIZE)
        blobs.write(BLOB, parts())
        yield from list(parts(4 * CHUNK_SIZE))[1:]

    assert blobs.write(BLOB, overtaken()) == BLOB


def test_a_wrong_beginning_is_found_out_by_whoever_completes_it(blobs, kept):
    """Resuming hashes what is there, so that somebody's wrong bytes are discarded, not trusted."""
    wrong = ((offset, bytes(len(data))) for offset, data in parts(0, 9 * CHUNK_SIZE, breaks=True))
    with pytest.raises(Broken):
        blobs.write(BLOB, wrong)

    with pytest.raises(DigestMismatch):
        blobs.write(BLOB, parts(9 * CHUNK_SIZE))

    assert committed(blobs) == 0
    assert kept() == (0, 0)


def test_another_size_begins_anew(blobs):
    """An announced size that differs from that of the upload that is kept replaces it."""
    with pytest.raises(Broken):
        blobs.write(Blob(BLOB.digest, SIZE + 1), parts(0, CHUNK_SIZE, breaks=True))

    with pytest.raises(OffsetOutOfRange):
        blobs.write(BLOB, parts(CHUNK_SIZE))
    blobs.write(BLOB, parts())

    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_what_was_discarded_is_swept_later(blobs, database, kept):
    """A registry that died between discarding and deleting leaves no bytes behind for ever."""
    with pytest.raises(Broken):
        blobs.write(BLOB, parts(breaks=True))
    with database.write() as session:
        session.scalars(select(BlobRow)).one().digest = None

    blobs.sweep()

    assert kept() == (0, 0)


def test_an_abandoned_upload_expires(blobs, database, kept):
    """What has stood still for longer than the expiry goes; younger uploads and blobs stay."""
    young = b"young"
    digest = f"sha256:{hashlib.sha256(young).hexdigest()}"
    blobs.write(Blob(digest, len(young)), [(0, young)])
    with pytest.raises(Broken):
        blobs.write(BLOB, parts(0, 9 * CHUNK_SIZE, breaks=True))
    before = kept()
    blobs.expire(timedelta(hours=1))
    assert (committed(blobs), kept()) == (9 * CHUNK_SIZE, before)

    with database.write() as session:
        session.execute(update(BlobRow).values(update_time=datetime.now(UTC) - timedelta(hours=2)))
    blobs.expire(timedelta(hours=1))

    assert committed(blobs) == 0
    assert b"".join(blobs.read(digest)) == young
    assert kept()[0] == 2


def test_an_upload_that_expires_while_it_runs_ends_with_a_conflict(blobs, kept):
    """Nothing of a stream that outlived its upload is kept, and the blob can be sent anew."""

    def expiring():
        yield from parts(0, 9 * CHUNK_SIZE)
        blobs.expire(timedelta(0))
        yield from list(parts(9 * CHUNK_SIZE))[1:]

    with pytest.raises(UploadConflict):
        blobs.write(BLOB, expiring())
    blobs.sweep()

    assert kept() == (0, 0)
    blobs.write(BLOB, parts())
    assert b"".join(blobs.read(BLOB.digest)) == DATA
