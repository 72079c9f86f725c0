"""Uploads and downloads over connections that break, with either client."""

import errno
import os
import random
import re

import grpc
import pytest

from servax import (
    Blob,
    DataLoss,
    FailedPrecondition,
    FileError,
    NotFound,
    Progress,
    ResourceExhausted,
    Unavailable,
    Unreachable,
    _files,
)
from servax._calls import transfers

MIB = 1 << 20
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def no_pauses(monkeypatch):
    """Retries do not wait."""
    monkeypatch.setattr(transfers, "_pause", lambda failures: 0.0)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_files_of_any_size_go_up_and_down(client, registry, file_of, tmp_path, size):
    """A file comes back byte by byte, be it empty or on the edge of a message."""
    data = random.Random(size).randbytes(size)

    blob = client.upload(file_of(data))

    assert registry.blobs == {blob.digest: data}
    assert blob.size == size
    assert client.download(blob, tmp_path / "back").read_bytes() == data
    assert client.read_blob(blob) == data


def test_what_is_stored_is_not_sent_again(client, registry, file_of, large):
    """A second upload of the same bytes sends none of them."""
    client.upload(file_of(large))
    client.upload(file_of(large))

    assert registry.received == len(large)


@pytest.mark.parametrize("seed", range(3))
def test_a_broken_upload_goes_on_where_it_ended(client, registry, file_of, large, seed, no_pauses):
    """Broken off at any messages, an upload ends well, and no byte is sent twice."""
    draw = random.Random(seed)
    registry.cuts = [(draw.randint(0, 3), UNAVAILABLE) for _ in range(6)]

    blob = client.upload(file_of(large))

    assert registry.blobs[blob.digest] == large
    assert registry.received == len(large)


@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.OUT_OF_RANGE])
def test_an_upload_follows_another_of_the_same_blob(client, registry, file_of, large, code):
    """When another upload moved on, the client asks again from where to continue."""
    registry.cuts = [(2, code), (0, code)]

    blob = client.upload(file_of(large))

    assert registry.blobs[blob.digest] == large


def test_an_upload_without_progress_is_given_up(client, registry, file_of, large, no_pauses):
    """After a bounded number of attempts that get nowhere, the last error is raised."""
    registry.cuts = [(0, UNAVAILABLE)] * 100

    with pytest.raises(Unavailable, match="broken off"):
        client.upload(file_of(large))

    assert len(registry.cuts) == 100 - (transfers.MAX_FAILURES + 1)


def test_a_refused_upload_is_not_repeated(client, registry, file_of, large):
    """What another attempt cannot mend is raised at once."""
    registry.cuts = [(1, grpc.StatusCode.RESOURCE_EXHAUSTED)] * 3

    with pytest.raises(ResourceExhausted):
        client.upload(file_of(large))

    assert len(registry.cuts) == 2


def test_bad_bytes_of_an_earlier_upload_are_replaced(client, registry, file_of, large, no_pauses):
    """Where what the registry kept is not the beginning of the file, all of it is sent."""
    blob = client.upload(file_of(large))
    registry.blobs.clear()
    registry.partial[blob.digest] = bytearray(2 * MIB)

    client.upload(file_of(large))

    assert registry.blobs[blob.digest] == large


def test_more_bytes_kept_than_there_are_begin_anew(client, registry, file_of, large):
    """An upload never begins beyond the end of the file."""
    blob = client.upload(file_of(large))
    registry.blobs.clear()
    registry.partial[blob.digest] = bytearray(len(large) + 1)

    client.upload(file_of(large))

    assert registry.blobs[blob.digest] == large


def test_a_file_that_changes_while_it_is_sent_is_refused(client, registry, file_of, large):
    """A change between hashing and sending is told as such, and no blob appears."""
    path = file_of(large)

    def change(progress):
        if progress.action == "upload" and progress.done == 2 * MIB:
            path.write_bytes(b"x" + large[1:])

    with pytest.raises(FileError, match=r"file-0\.bin' changed while it was being read"):
        client.upload(path, progress=change)

    assert registry.blobs == {}


def test_a_file_that_shrinks_while_it_is_sent_is_refused(client, registry, file_of, large):
    """A file that ends early is told as such."""
    path = file_of(large)

    def cut(progress):
        if progress.action == "upload" and progress.done == 2 * MIB:
            path.write_bytes(large[:MIB])

    with pytest.raises(FileError, match="changed"):
        client.upload(path, progress=cut)

    assert registry.blobs == {}


def test_a_missing_file_is_named(client, tmp_path):
    """A file that is not there is named before anything is sent."""
    with pytest.raises(FileError, match=re.escape("missing.bin': No such file")) as caught:
        client.upload(tmp_path / "missing.bin")

    assert caught.value.errno == errno.ENOENT


def test_a_folder_is_no_file(client, tmp_path):
    """A folder is refused by name."""
    with pytest.raises(FileError, match="directory"):
        client.upload(tmp_path)


def test_progress_is_told(client, file_of, large, tmp_path):
    """Hashing, sending and fetching tell how far they are, up to the end."""
    steps: list[Progress] = []
    path = file_of(large)

    blob = client.upload(path, progress=steps.append)
    client.download(blob, tmp_path / "back", progress=steps.append)

    for action, name in (("hash", path.name), ("upload", path.name), ("download", "back")):
        done = [s.done for s in steps if (s.action, s.name, s.total) == (action, name, len(large))]
        assert done == [*range(MIB, len(large), MIB), len(large)]


def test_an_error_in_a_progress_function_ends_the_upload(client, registry, file_of, large):
    """What a progress function raises reaches the caller."""

    def fail(progress):
        if progress.action == "upload":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.upload(file_of(large), progress=fail)

    assert registry.blobs == {}


def test_nobody_there_is_told_at_once(connect, file_of):
    """An upload to where nothing listens fails before it begins to retry."""
    client = connect(registry="127.0.0.1:1")

    with pytest.raises(Unreachable, match=r"registry at 127\.0\.0\.1:1 does not answer"):
        client.upload(file_of(b"x"))


def test_a_broken_download_goes_on_where_it_ended(client, registry, file_of, large, tmp_path):
    """Broken off after some messages, a download fetches only the rest."""
    blob = client.upload(file_of(large))
    registry.offsets.clear()
    registry.read_cuts = [2, 1]

    client.download(blob, tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == large
    assert registry.offsets == [0, 2 * MIB, 3 * MIB]


def test_a_part_is_continued(client, registry, file_of, large, tmp_path):
    """What an earlier process fetched is not fetched again."""
    blob = client.upload(file_of(large))
    registry.offsets.clear()
    (tmp_path / "back.part").write_bytes(large[: MIB + 7])

    client.download(blob, tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == large
    assert registry.offsets == [MIB + 7]
    assert not (tmp_path / "back.part").exists()


def test_a_whole_part_only_gets_its_name(client, registry, file_of, large, tmp_path):
    """A part that lacks nothing is verified and not fetched."""
    blob = client.upload(file_of(large))
    registry.offsets.clear()
    (tmp_path / "back.part").write_bytes(large)

    client.download(blob, tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == large
    assert registry.offsets == []


@pytest.mark.parametrize("part", [b"of something else", b"x" * (6 * MIB)])
def test_a_part_of_something_else_is_replaced(client, file_of, large, tmp_path, part):
    """A part that does not belong to the blob costs a second fetch and nothing else."""
    blob = client.upload(file_of(large))
    (tmp_path / "back.part").write_bytes(part)

    client.download(blob, tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == large


def test_corrupted_bytes_are_not_kept(client, registry, file_of, large, tmp_path):
    """Bytes that do not match the digest leave no part, and an older file as it was."""
    blob = client.upload(file_of(large))
    (tmp_path / "back").write_bytes(b"old")
    registry.corrupt = True

    with pytest.raises(DataLoss, match=blob.digest):
        client.download(blob, tmp_path / "back")
    with pytest.raises(DataLoss, match=blob.digest):
        client.read_blob(blob)

    assert (tmp_path / "back").read_bytes() == b"old"
    assert not (tmp_path / "back.part").exists()


@pytest.mark.parametrize("size", [5, 7])
def test_a_blob_of_another_length_is_data_loss(client, file_of, tmp_path, size):
    """More or fewer bytes than the blob has are told as such."""
    stored = client.upload(file_of(b"sixsix"))

    with pytest.raises(DataLoss):
        client.download(Blob(stored.digest, size), tmp_path / "back")
    with pytest.raises(DataLoss):
        client.read_blob(Blob(stored.digest, size))

    assert not (tmp_path / "back").exists()


def test_an_unknown_blob_is_not_found(client, tmp_path):
    """A blob that is not stored is not found, and leaves no file."""
    with pytest.raises(NotFound):
        client.download(Blob("sha256:" + "0" * 64, 3), tmp_path / "back")

    assert not (tmp_path / "back").exists()


def test_a_destination_that_cannot_be_written_is_named(client, file_of, tmp_path):
    """A folder that does not exist is told with the path."""
    blob = client.upload(file_of(b"x"))

    with pytest.raises(FileError, match=re.escape("nowhere/back.part': No such file")):
        client.download(blob, tmp_path / "nowhere" / "back")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_left_alone(client, registry, file_of, tmp_path, make):
    """A destination such as a device or a folder is refused before anything is fetched."""
    blob = client.upload(file_of(b"x"))
    make(tmp_path / "special")
    before = (tmp_path / "special").stat()

    with pytest.raises(FileError, match="special': it is no regular file"):
        client.download(blob, tmp_path / "special")

    assert (tmp_path / "special").stat() == before
    assert not (tmp_path / "special.part").exists()


def test_a_closed_client_says_so(connect, registry_address):
    """A call after closing is refused by name."""
    client = connect(registry=registry_address)
    client.close()

    with pytest.raises(FailedPrecondition, match="this client is closed"):
        client.model("m")


def test_chunks_are_as_large_as_a_message_may_hold(file_of, large):
    """Files are read in pieces of the API's limit, so that memory stays bounded."""
    source = _files.FileSource(file_of(large))

    assert [len(chunk) for chunk in source.read(0)] == [MIB] * 5 + [12345]
