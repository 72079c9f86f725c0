"""What a registry does on disks that are full or read-only, and afterwards. Real ones: as root."""

import hashlib
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from grpc import StatusCode

from servax_proto.v1 import registry_pb2

MIB = 1 << 20
DATA = np.random.default_rng(3).bytes(64 * MIB + 5)
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Disk:
    """A file system in memory."""

    def __init__(self, path):
        self.path = path

    def fill(self):
        """Leave no byte free."""
        with suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def remount(self, options):
        """Change its size, or whether it can be written."""
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True)


@pytest.fixture
def disk(tmp_path):
    """An empty disk of 40 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield Disk(path)
    # The registry, which is ended after this, may still have its files open.
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def url(disk):
    """A SQLite database on that disk."""
    return f"sqlite:///{disk.path / 'registry.db'}"


def servax_registry(*arguments):
    """Run a command of the registry."""
    return subprocess.run(
        [sys.executable, "-m", "servax_registry", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize("place", ["database", "directory"])
def test_a_full_disk_refuses_what_it_has_no_room_for(place, disk, url, process, connect, constant):
    """What was stored stays and is served; with more room, the upload goes on where it was."""
    options = ["--blobs", (disk.path / "blobs").as_uri()] if place == "directory" else []
    registry = connect(process.start(*options))
    published = registry.publish("m", constant, aliases=["live"])

    for _ in range(2):
        with registry.refuses(StatusCode.RESOURCE_EXHAUSTED, "is full|no room.*operator"):
            registry.write(DATA, registry.missing(DIGEST)[DIGEST])
    disk.fill()
    with registry.refuses(StatusCode.RESOURCE_EXHAUSTED, "is full|no room.*operator"):
        registry.write(DATA[: 8 * MIB])
    selector = registry_pb2.GetVersionRequest(model="m", alias="live")
    assert registry.api.GetVersion(selector) == published
    assert registry.read(published.signatures[0].program.digest) == constant

    disk.remount("size=300m")
    committed = registry.missing(DIGEST)[DIGEST]
    assert committed > 0
    registry.write(DATA, committed)
    assert registry.read(DIGEST) == DATA
    assert registry.publish("m", constant).number == published.number + 1
    process.stop()
    checked = servax_registry("check", "--db", url, *options)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_read_only_disk_is_told_at_the_start(disk, url, process, connect, constant):
    """A registry on a read-only disk ends with the reason, and changes nothing."""
    registry = connect(process.start())
    published = registry.publish("m", constant)
    process.stop()
    disk.remount("ro")

    refused = servax_registry("serve", "--db", url, "--listen", "127.0.0.1:0")

    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "the registry has to write the file and its folder" in refused.stderr
    disk.remount("rw")
    again = connect(process.start())
    assert again.api.GetVersion(registry_pb2.GetVersionRequest(model="m")) == published


class TestBlobsAlone:
    """Only the blobs lie on the disk."""

    @pytest.fixture
    def url(self, tmp_path):
        """A SQLite database elsewhere."""
        return f"sqlite:///{tmp_path / 'registry.db'}"

    def test_the_disk_becomes_read_only(self, disk, process, connect, constant):
        """Uploads are unavailable meanwhile and go on afterwards; what is stored can be read."""
        registry = connect(process.start("--blobs", (disk.path / "blobs").as_uri()))
        published = registry.publish("m", constant)
        disk.remount("ro")

        with registry.refuses(StatusCode.UNAVAILABLE, "cannot write an object"):
            registry.write(DATA[: 20 * MIB])
        assert registry.read(published.signatures[0].program.digest) == constant

        disk.remount("rw")
        digest = registry.write(DATA[: 20 * MIB])
        assert registry.read(digest) == DATA[: 20 * MIB]
