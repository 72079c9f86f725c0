"""Blobs in the database: interrupted, contested, damaged and swept."""

import hashlib
import sqlite3

import numpy as np
import pytest
from sqlalchemy import func, select

from servax_registry.artifact import Blob
from servax_registry.errors import (
    BlobDamaged,
    DigestMismatch,
    OffsetOutOfRange,
    UploadConflict,
)
from servax_registry.store.blobs import CHUNK_SIZE
from servax_registry.store.models import BlobRow, ChunkRow

SIZE = 20 * CHUNK_SIZE + 3
DATA = np.random.default_rng(0).bytes(SIZE)
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", SIZE)


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


def test_a_wrong_beginning_is_found_out_by_whoever_completes_it(blobs, database):
    """Resuming hashes what is there, so that somebody's wrong bytes are discarded, not trusted."""
    wrong = ((offset, bytes(len(data))) for offset, data in parts(0, 9 * CHUNK_SIZE, breaks=True))
    with pytest.raises(Broken):
        blobs.write(BLOB, wrong)

    with pytest.raises(DigestMismatch):
        blobs.write(BLOB, parts(9 * CHUNK_SIZE))

    assert committed(blobs) == 0
    with database.read() as session:
        assert session.scalar(select(func.count(ChunkRow.id))) == 0
        assert session.scalar(select(func.count(BlobRow.id))) == 0


def test_another_size_begins_anew(blobs):
    """An announced size that differs from that of the upload that is kept replaces it."""
    with pytest.raises(Broken):
        blobs.write(Blob(BLOB.digest, SIZE + 1), parts(0, CHUNK_SIZE, breaks=True))

    with pytest.raises(OffsetOutOfRange):
        blobs.write(BLOB, parts(CHUNK_SIZE))
    blobs.write(BLOB, parts())

    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_what_was_discarded_is_swept_later(blobs, database):
    """A registry that died between discarding and deleting leaves no bytes behind for ever."""
    with pytest.raises(Broken):
        blobs.write(BLOB, parts(breaks=True))
    with database.write() as session:
        session.scalars(select(BlobRow)).one().digest = None

    blobs.sweep()

    with database.read() as session:
        assert session.scalar(select(func.count(ChunkRow.id))) == 0


@pytest.mark.parametrize("position", [0, 5 * CHUNK_SIZE, 20 * CHUNK_SIZE])
def test_a_lost_chunk_is_noticed(blobs, database, position):
    """Reading a blob that lost bytes in the database fails and tells which."""
    blobs.write(BLOB, parts())
    with database.write() as session:
        session.delete(session.scalars(select(ChunkRow).filter_by(position=position)).one())

    with pytest.raises(BlobDamaged, match=f"byte {position} is missing"):
        list(blobs.read(BLOB.digest))


def test_a_cut_chunk_is_noticed(blobs, database):
    """Reading a blob of which a chunk is shorter than it was fails."""
    blobs.write(BLOB, parts())
    with database.write() as session:
        chunk = session.scalars(select(ChunkRow).filter_by(position=CHUNK_SIZE)).one()
        chunk.data = chunk.data[:-1]

    with pytest.raises(BlobDamaged, match=f"byte {2 * CHUNK_SIZE - 1} is missing"):
        list(blobs.read(BLOB.digest))


def test_a_flipped_bit_is_left_to_the_reader(blobs, database):
    """Bytes that rotted in the database come out with another digest than they went in with."""
    blobs.write(BLOB, parts())
    with database.write() as session:
        chunk = session.scalars(select(ChunkRow).filter_by(position=CHUNK_SIZE)).one()
        chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]

    data = b"".join(blobs.read(BLOB.digest))

    assert (len(data), data != DATA) == (SIZE, True)


def test_a_reader_does_not_hold_back_the_log(blobs, database, tmp_path):
    """While a download is paused, everything that others wrote can leave the write-ahead log."""
    blobs.write(BLOB, parts())
    download = blobs.read(BLOB.digest)
    next(download)
    other = bytes(3 * CHUNK_SIZE)
    digest = f"sha256:{hashlib.sha256(other).hexdigest()}"
    blobs.write(
        Blob(digest, len(other)),
        ((i * CHUNK_SIZE, other[:CHUNK_SIZE]) for i in range(3)),
    )

    with sqlite3.connect(tmp_path / "registry.db") as connection:
        busy, logged, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    connection.close()

    assert (busy, moved) == (0, logged)
    assert sum(map(len, download)) == SIZE - CHUNK_SIZE
