"""Blobs outside of the database: what their objects may suffer, and where they are looked for."""

import hashlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from servax_registry.artifact import Blob
from servax_registry.errors import (
    BlobDamaged,
    BlobsUnusable,
    StorageFull,
    StorageUnavailable,
    UploadConflict,
)
from servax_registry.store import bucket
from servax_registry.store.blobs import BlobStore
from servax_registry.store.bucket import open_bucket
from servax_registry.store.contents import CHUNK_SIZE
from servax_registry.store.database import Database
from servax_registry.store.models import BlobRow, SegmentRow

SIZE = 20 * CHUNK_SIZE + 3
DATA = np.random.default_rng(0).bytes(SIZE)
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", SIZE)


def parts(begin=0, end=SIZE):
    """Yield the bytes from `begin` to `end`."""
    for offset in range(begin, end, CHUNK_SIZE):
        yield offset, DATA[offset : min(offset + CHUNK_SIZE, end)]


def interrupted(begin, end):
    """Yield the bytes from `begin` to `end`, and then break."""
    yield from parts(begin, end)
    raise ConnectionError


@pytest.fixture
def folder(tmp_path):
    """Where the blobs lie, as a folder."""
    return tmp_path / "blobs"


@pytest.fixture
def blobs(database, folder):
    """Blobs in a directory."""
    return BlobStore(database, folder.as_uri())


def files(folder):
    """List the files of all blobs, in the order of their bytes."""
    return sorted(path for path in folder.glob("sha256/**/*") if path.is_file())


def test_the_files_of_a_blob_in_order_are_the_blob(blobs, folder):
    """Whoever lost the database still finds every blob, by its digest, in the names of files."""
    blobs.write(BLOB, parts())

    found = files(folder)

    assert b"".join(path.read_bytes() for path in found) == DATA
    assert {path.parents[1].name for path in found} == {BLOB.digest.removeprefix("sha256:")}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_object_that_is_gone_is_data_loss(blobs, folder, number):
    """Reading a blob that lost an object fails and names it."""
    blobs.write(BLOB, parts())
    lost = files(folder)[number]
    lost.unlink()

    with pytest.raises(BlobDamaged, match=f"{lost.name} in file://.* is gone; restore a backup"):
        list(blobs.read(BLOB.digest))


@pytest.mark.parametrize("size", [0, 1, 3 * CHUNK_SIZE])
def test_an_object_that_is_short_is_data_loss(blobs, folder, size):
    """Reading a blob of which an object was cut fails, wherever the reading begins."""
    blobs.write(BLOB, parts())
    cut = files(folder)[1]
    cut.write_bytes(cut.read_bytes()[:size])

    for offset in (0, 9 * CHUNK_SIZE, 12 * CHUNK_SIZE):
        with pytest.raises(BlobDamaged, match=f"{cut.name} in file://.* ends before byte"):
            list(blobs.read(BLOB.digest, offset))


def test_a_lost_row_is_data_loss(blobs, database):
    """Reading a blob of which the database forgot an object fails and tells which bytes."""
    blobs.write(BLOB, parts())
    with database.write() as session:
        row = select(SegmentRow).filter_by(position=8 * CHUNK_SIZE)
        session.delete(session.scalars(row).one())

    with pytest.raises(BlobDamaged, match=f"byte {8 * CHUNK_SIZE} is missing"):
        list(blobs.read(BLOB.digest))


def test_a_damaged_upload_begins_anew(blobs, folder):
    """An interrupted upload that lost an object is discarded by whoever resumes it."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 10 * CHUNK_SIZE))
    files(folder)[0].unlink()

    with pytest.raises(BlobDamaged):
        blobs.write(BLOB, parts(10 * CHUNK_SIZE))

    assert (blobs.find_missing([BLOB.digest])[0].committed_size, files(folder)) == (0, [])
    blobs.write(BLOB, parts())
    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_what_a_dead_process_left_is_tidied_by_whoever_completes_the_upload(blobs, folder):
    """Files that no transaction added, and unfinished ones, are gone when the blob is complete."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 10 * CHUNK_SIZE))
    left = files(folder)[0].parent
    (left / f"{10 * CHUNK_SIZE:020d}-00000000").write_bytes(b"staged, and never added")
    (left / f"{10 * CHUNK_SIZE:020d}-00000001#1").write_bytes(b"half writ")

    blobs.write(BLOB, parts(10 * CHUNK_SIZE))

    assert b"".join(path.read_bytes() for path in files(folder)) == DATA


def test_a_discarded_folder_goes_as_a_whole(blobs, folder):
    """An upload that is begun anew leaves nothing of the first attempt, half-written files too."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 10 * CHUNK_SIZE))
    (files(folder)[0].parent / "half#1").write_bytes(b"half writ")

    blobs.write(BLOB, parts())

    assert b"".join(path.read_bytes() for path in files(folder)) == DATA


def test_a_store_that_cannot_be_written_keeps_what_was_committed(blobs, folder, monkeypatch):
    """While the store fails, uploads are UNAVAILABLE, or FULL, and go on from there afterwards."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 10 * CHUNK_SIZE))

    for code, error in ((5, StorageUnavailable), (28, StorageFull)):

        def fail(path, code=code):
            raise OSError(code, "injected")

        monkeypatch.setattr(bucket, "_sync", fail)
        with pytest.raises(error):
            blobs.write(BLOB, parts(10 * CHUNK_SIZE))
        assert blobs.find_missing([BLOB.digest])[0].committed_size == 10 * CHUNK_SIZE
    monkeypatch.undo()
    blobs.write(BLOB, parts(10 * CHUNK_SIZE))

    assert b"".join(path.read_bytes() for path in files(folder)) == DATA


def overtake(blobs, monkeypatch, other):
    """Resume an upload, during whose only write another one does something to the same blob."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 15 * CHUNK_SIZE))
    sync = bucket._sync

    def overtaken(path):
        monkeypatch.setattr(bucket, "_sync", sync)
        other()
        sync(path)

    monkeypatch.setattr(bucket, "_sync", overtaken)
    blobs.write(BLOB, parts(15 * CHUNK_SIZE))


def test_a_file_that_vanishes_because_another_upload_began_anew_is_no_outage(blobs, monkeypatch):
    """An upload whose files were deleted under its hands learns that it was overtaken."""

    def begin_anew():
        with pytest.raises(ConnectionError):
            blobs.write(BLOB, interrupted(0, CHUNK_SIZE))

    with pytest.raises(UploadConflict):
        overtake(blobs, monkeypatch, begin_anew)

    assert blobs.find_missing([BLOB.digest])[0].committed_size == CHUNK_SIZE


def test_a_file_that_vanishes_because_another_upload_came_first_is_success(blobs, monkeypatch):
    """An upload whose last file was tidied away by another one that completed the blob succeeds."""
    overtake(blobs, monkeypatch, lambda: blobs.write(BLOB, parts(15 * CHUNK_SIZE)))

    assert b"".join(blobs.read(BLOB.digest)) == DATA


def test_sweeping_goes_on_when_the_store_does_not_answer(blobs, database, folder, monkeypatch):
    """What cannot be deleted now is deleted by a later sweep."""
    with pytest.raises(ConnectionError):
        blobs.write(BLOB, interrupted(0, 10 * CHUNK_SIZE))
    with database.write() as session:
        session.scalars(select(BlobRow)).one().digest = None

    def fail(path):
        raise OSError(5, "injected")

    monkeypatch.setattr(bucket.shutil, "rmtree", fail)
    blobs.sweep()
    assert files(folder)
    monkeypatch.undo()
    blobs.sweep()

    assert files(folder) == []


def test_blobs_of_the_database_can_be_read_beside_a_directory(database, folder):
    """A registry that is told to use a directory from now on still has all blobs it had."""
    small = b"in the database"
    digest = f"sha256:{hashlib.sha256(small).hexdigest()}"
    BlobStore(database).write(Blob(digest, len(small)), [(0, small)])
    with pytest.raises(ConnectionError):
        BlobStore(database).write(BLOB, interrupted(0, 3 * CHUNK_SIZE))
    blobs = BlobStore(database, folder.as_uri())

    blobs.write(BLOB, parts(3 * CHUNK_SIZE))

    assert b"".join(blobs.read(digest)) == small
    assert b"".join(blobs.read(BLOB.digest)) == DATA
    assert files(folder) == []


def test_blobs_outside_cannot_be_forgotten(blobs, database):
    """A registry with blobs in a directory does not start without one."""
    blobs.write(BLOB, parts())

    with pytest.raises(BlobsUnusable, match="--blobs"):
        BlobStore(database)


def test_a_directory_that_is_not_mounted_is_refused(blobs, database, folder):
    """A registry with blobs in a directory does not start on an empty or absent one."""
    blobs.write(BLOB, parts())
    folder.rename(folder.with_name("elsewhere"))

    with pytest.raises(BlobsUnusable, match=str(folder)):
        BlobStore(database, folder.as_uri())
    folder.mkdir()
    with pytest.raises(BlobsUnusable, match="is it mounted"):
        BlobStore(database, folder.as_uri())

    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["", "blobs", "/blobs", "file:blobs", "file://host/x", "ftp://x/y", "http://x/y", "s3://"],
)
def test_a_place_that_cannot_be_used_is_named(url):
    """A URL that is wrong gives one sentence with the URL and what would do."""
    with pytest.raises(BlobsUnusable, match=r"(?s)^(?!.*\n)") as caught:
        open_bucket(url, used=False)

    assert url in str(caught.value)


def test_a_directory_that_cannot_be_made_is_named():
    """A directory that cannot be written is refused at once, with the reason."""
    with pytest.raises(BlobsUnusable, match="file:///proc/blobs: "):
        open_bucket("file:///proc/blobs", used=False)


def test_an_s3_server_that_does_not_answer_is_named(monkeypatch):
    """A bucket that cannot be reached is refused at the start."""
    monkeypatch.setattr(bucket, "_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    with pytest.raises(BlobsUnusable, match="s3://bucket/blobs"):
        open_bucket("s3://bucket/blobs", used=False)


def test_a_url_with_odd_characters_names_that_directory(url, tmp_path):
    """Spaces and percent signs of a path survive being a URL."""
    folder = tmp_path / "a b%20c"
    with closing(Database(url)) as database:
        database.migrate()
        BlobStore(database, folder.as_uri()).write(Blob(BLOB.digest, SIZE), parts())

    assert [Path(path).name for path in folder.iterdir() if path.is_dir()] == ["sha256"]
