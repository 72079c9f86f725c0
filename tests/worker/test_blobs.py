"""The blob cache gives verified bytes only, and fetches as little as it can."""

import errno
import hashlib
import stat
import threading

import pytest

from servax.errors import FileError, Unavailable
from servax.types import Blob
from servax_worker import blobs
from servax_worker.blobs import BlobCache, open_mapped
from servax_worker.errors import CannotServe, Delayed

DATA = b"some bytes" * 1000
BLOB = Blob(f"sha256:{hashlib.sha256(DATA).hexdigest()}", len(DATA))


class Source:
    """Stands in for the registry."""

    def __init__(self, error=None):
        self.downloads = 0
        self.error = error

    def download(self, blob, destination, *, progress=None):
        """Brings the blob, or fails."""
        self.downloads += 1
        if self.error:
            raise self.error
        destination.write_bytes(DATA)
        return destination


@pytest.fixture
def directory(tmp_path):
    """Where the cache is."""
    return tmp_path / "cache"


def test_a_blob_is_fetched_once(directory):
    """The second time, also in a later process, the file is used as it is."""
    source = Source()
    path = BlobCache(directory, source).fetch(BLOB)
    assert path.read_bytes() == DATA
    cache = BlobCache(directory, source)

    assert cache.fetch(BLOB) == cache.fetch(BLOB) == path
    assert source.downloads == 1


@pytest.mark.parametrize("damage", [b"", DATA[:-1], DATA + b"x", b"X" + DATA[1:]])
def test_a_damaged_file_is_fetched_anew(directory, damage):
    """A file whose bytes are not the blob's is replaced before anybody uses it."""
    source = Source()
    path = BlobCache(directory, source).fetch(BLOB)
    path.chmod(0o600)
    path.write_bytes(damage)

    assert BlobCache(directory, source).fetch(BLOB).read_bytes() == DATA
    assert source.downloads == 2


def test_it_is_private(directory):
    """Nobody else can put a blob in place of a verified one."""
    path = BlobCache(directory, Source()).fetch(BLOB)

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o400


def test_concurrent_callers_share_one_download(directory):
    """Several threads, even of several caches over one directory, download a blob once."""
    source = Source()
    threads = [
        threading.Thread(target=BlobCache(directory, source).fetch, args=(BLOB,)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert source.downloads == 1


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:0", "sha256:" + "G" * 64, ""])
def test_a_digest_never_leads_elsewhere(directory, digest):
    """What is no digest is refused before it becomes a path."""
    source = Source()
    with pytest.raises(CannotServe, match="is not a digest"):
        BlobCache(directory, source).fetch(Blob(digest, 3))

    assert source.downloads == 0


def test_a_full_disk_is_told_beforehand(directory, monkeypatch):
    """Where the blob cannot fit, nothing is downloaded and the error tells how much is missing."""
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(blobs.shutil, "disk_usage", lambda _: usage)
    source = Source()
    with pytest.raises(Delayed, match=r"10000 bytes are missing, .* has 100 left"):
        BlobCache(directory, source).fetch(BLOB)

    assert source.downloads == 0


def test_a_disk_that_fills_up_is_waited_for(directory):
    """No space during a download is a reason to wait; any other write error is final."""
    full = FileError("cannot write: No space left on device", errno.ENOSPC)
    with pytest.raises(Delayed, match="no room"):
        BlobCache(directory, Source(full)).fetch(BLOB)
    broken = FileError("cannot write: Input/output error", errno.EIO)
    with pytest.raises(CannotServe, match="Input/output error"):
        BlobCache(directory, Source(broken)).fetch(BLOB)


@pytest.mark.parametrize("name", ["{}", "{}.lock", "{}.part"])
def test_a_cache_in_disorder_is_told(directory, name):
    """Where the system refuses a file of the cache, the error tells which and why."""
    cache = BlobCache(directory, Source(FileError("cannot write: Is a directory")))
    (directory / name.format(BLOB.digest.removeprefix("sha256:"))).mkdir()
    with pytest.raises(CannotServe, match="Is a directory"):
        cache.fetch(BLOB)


def test_a_disk_without_room_for_a_lock_is_waited_for(directory, monkeypatch):
    """No space for anything at all is a reason to wait as well."""
    cache = BlobCache(directory, Source())

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs, "_locked", full)
    with pytest.raises(Delayed, match="No space left"):
        cache.fetch(BLOB)


def test_other_errors_pass(directory):
    """An unreachable registry is reported as the client reports it."""
    with pytest.raises(Unavailable, match="away"):
        BlobCache(directory, Source(Unavailable("away"))).fetch(BLOB)


def test_files_are_mapped(tmp_path):
    """A mapped file shows its bytes, an empty one none."""
    (tmp_path / "some").write_bytes(DATA)
    (tmp_path / "none").touch()

    assert open_mapped(tmp_path / "some") == DATA
    assert len(open_mapped(tmp_path / "none")) == 0
