"""Chunks of blobs in the database: damaged, and read while others write."""

import hashlib
import sqlite3

import numpy as np
import pytest
from sqlalchemy import select

from servax_registry.artifact import Blob
from servax_registry.errors import BlobDamaged
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.models import ChunkRow

SIZE = 20 * CHUNK_SIZE + 3
DATA = np.random.default_rng(0).bytes(SIZE)
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", SIZE)


def parts():
    """Yield the bytes of the blob."""
    for offset in range(0, SIZE, CHUNK_SIZE):
        yield offset, DATA[offset : offset + CHUNK_SIZE]


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
