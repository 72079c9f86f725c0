"""The client against the registry itself, in a process that can be killed."""

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servax import Client, InvalidArgument, NotFound, Unreachable

MIB = 1 << 20


class Process:
    """A registry on a port of its own; what it has stored survives its restarts."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start it; it answers a moment later."""
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "servax_registry", "serve"),
                    *("--db", f"sqlite:///{self._folder / 'registry.db'}"),
                    *("--listen", self.address),
                ],
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        end = time.monotonic() + 60
        with Client(registry=self.address) as client:
            while True:
                try:
                    list(client.models())
                    return
                except Unreachable:
                    if time.monotonic() > end:
                        raise

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """A registry that answers."""
    process = Process(tmp_path_factory.mktemp("registry"))
    process.wait()
    yield process
    process.kill()


@pytest.fixture
def real(connect, process):
    """A client of either kind, connected to the registry."""
    return connect(registry=process.address)


def test_an_upload_survives_a_kill(real, process, file_of, tmp_path):
    """Killed and started again in the middle of an upload, the registry ends up with the file."""
    data = random.Random(str(real)).randbytes(5 * MIB)
    killed: list[bool] = []

    def kill(progress):
        if progress.action == "upload" and progress.done == 3 * MIB and not killed:
            killed.append(True)
            process.kill()
            process.start()

    blob = real.upload(file_of(data), progress=kill)

    assert killed
    assert real.download(blob, tmp_path / "back").read_bytes() == data


@pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB + 1])
def test_the_registry_keeps_what_it_is_sent(real, file_of, size):
    """Blobs of any size come back byte by byte, and are not asked for again."""
    data = bytes(size)

    blob = real.upload(file_of(data))

    assert real.upload(file_of(data)) == blob
    assert real.read_blob(blob) == data


def test_the_registry_speaks_through_the_client(real):
    """Its refusals arrive as exceptions with its words."""
    with pytest.raises(NotFound, match="nope"):
        real.version("nope:3")
    with pytest.raises(InvalidArgument, match=r"jax\.export"):
        real.push("lm", b"not a program")
