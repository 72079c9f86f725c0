"""The client against the registry itself, in a process that can be killed."""

import json
import random
import socket
import subprocess
import sys
import time
import uuid
from datetime import date
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from jax import export

from servax import Batching, Client, Golden, InvalidArgument, NotFound, Unreachable
from servax.cli import main
from servax.hlo import retarget

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


@pytest.fixture(scope="module")
def doubling():
    """An exported x * 2 of float32[b,3]."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b,3"), "float32")
    return bytes(export.export(jax.jit(lambda x: x * 2))(spec).serialize())


@pytest.fixture
def named(connect, process):
    """A client that says who it is, and a model's name that nobody else uses."""
    client = connect(registry=process.address, actor="Ada Løvelace")
    return client, f"m-{uuid.uuid4()}"


def test_what_is_declared_arrives(named, doubling, file_of):
    """Batching, golden example, source revision and who published it come back as values."""
    client, model = named
    x = np.ones((2, 3), np.float32)
    golden = safetensors.numpy.save({"inputs/x": x, "outputs/output": 2 * x})

    version = client.push(
        model,
        doubling,
        source_revision="abc",
        batching=Batching("b", max_rows=8),
        golden=Golden(file_of(golden), rtol=0.5, atol=0.25),
    )

    (signature,) = version.signatures
    assert signature.batching == Batching("b", 8)
    assert signature.golden is not None
    assert client.read_blob(signature.golden.blob) == golden
    assert (signature.golden.rtol, signature.golden.atol) == (0.5, 0.25)
    assert version.source_revision == "abc"
    assert version.creator == r"Ada L\xf8velace"
    assert version.expires == signature.expires == signature.compatibility.expires


def test_declarations_name_their_signature(named, doubling):
    """With several programs, what is declared says of which; a wrong name is refused here."""
    client, model = named
    programs = {"one": doubling, "two": doubling}

    with pytest.raises(InvalidArgument, match="of which of one, two"):
        client.push(model, programs, batching=Batching("b"))
    with pytest.raises(InvalidArgument, match="'three', which is none of one, two"):
        client.push(model, programs, batching={"three": Batching("b")})
    version = client.push(model, programs, batching={"two": Batching("b")})

    assert [signature.batching for signature in version.signatures] == [None, Batching("b")]


def test_versions_are_deleted_copied_and_found(named, doubling):
    """Deleting, undeleting, copying and searching do what they say, and the log tells of it."""
    client, model = named
    copied = f"{model}-copy"
    client.push(model, doubling, labels={"of": model}, aliases=["live"])

    copy = client.copy_version(f"{model}@live", copied, aliases=["live"])
    client.delete_alias(model, "live")
    assert client.delete_version(f"{model}:1").delete_time is not None

    assert [v.model for v in client.versions(labels={"of": model})] == [copied]
    found = list(client.versions(model, labels={"of": model}, deleted=True, platform="cpu"))
    assert [v.number for v in found] == [1]
    expired = [v.model for v in client.versions(copied, expiring_before=date.max)]
    assert expired == [copied]
    assert not list(client.versions(copied, created_before=copy.create_time))
    assert client.undelete_version(f"{model}:1").delete_time is None
    changes = list(client.changes(model))
    assert [change.action.name for change in changes] == [
        *("PUBLISH", "SET_ALIAS", "DELETE_ALIAS", "DELETE", "UNDELETE")
    ]
    assert {change.actor for change in changes} == {r"Ada L\xf8velace"}
    assert list(client.changes(model, since=changes[-2].revision)) == changes[-1:]
    assert [change.version for change in client.changes(copied, "live")] == [1]


def test_encodings_are_added(named, doubling):
    """A program for other releases of JAX is added to the version, and to nothing else."""
    client, model = named
    client.push(model, doubling, aliases=["live"])

    version = client.add_encoding(f"{model}@live", retarget(doubling, "1.10.0"))

    (encoding,) = version.signatures[0].encodings
    assert encoding.stablehlo_version == "1.10.0"
    assert client.read_blob(encoding.program) == retarget(doubling, "1.10.0")
    assert client.version(model) == version
    with pytest.raises(NotFound, match="'decode'; it has serving_default"):
        client.add_encoding(model, doubling, signature="decode")


def test_the_command_line_adds_encodings(process, doubling, tmp_path):
    """encode takes a file, or writes the program anew for an older StableHLO."""
    program, older = tmp_path / "program", tmp_path / "older"
    program.write_bytes(doubling)
    older.write_bytes(retarget(doubling, "1.11.0"))
    model = f"m-{uuid.uuid4()}"

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, [*map(str, arguments), "--registry", process.address])
        assert result.exit_code == code, result.output
        return result

    run("push", model, program)
    run("encode", model, older)
    version = json.loads(run("encode", model, "--retarget", "1.10.0", "--json").stdout)

    (signature,) = version["signatures"]
    assert [each["stablehlo_version"] for each in signature["encodings"]] == ["1.11.0", "1.10.0"]
    assert "StableHLO 1.10.0" in run("show", model).stdout
    assert "add encoding" in run("log", model).stdout
    assert "either FILE or --retarget" in run("encode", model, code=2).stderr
    assert "cannot write" in run("encode", model, "--retarget", "0.1.0", code=1).stderr
    failed = run("encode", model, "--retarget", "1.10.0", "--signature", "x", code=3)
    assert "it has: serving_default" in failed.stderr


def test_the_command_line_does_all_of_that(process, doubling, tmp_path):
    """push, ls, cp, rm, undelete and log work together against the registry."""
    program, golden = tmp_path / "program", tmp_path / "golden"
    program.write_bytes(doubling)
    x = np.ones((2, 3), np.float32)
    golden.write_bytes(safetensors.numpy.save({"inputs/x": x, "outputs/output": 2 * x}))
    model = f"m-{uuid.uuid4()}"

    def run(*arguments, code=0):
        result = CliRunner().invoke(
            main, [*map(str, arguments), "--registry", process.address], terminal_width=200
        )
        assert result.exit_code == code, result.output
        return result.stdout

    run("push", model, program, "--batching", "b:8", "--golden", golden, "--label", f"of={model}")
    run("cp", f"{model}:1", f"{model}-b", "--alias", "live", "--actor", "ada")
    run("rm", f"{model}:1")
    assert run("ls", "--label", f"of={model}").count(f"{model}-b") == 1
    assert "1" in run("ls", model, "--deleted", "--platform", "cpu", "--since", "2020-01-01")
    run("undelete", f"{model}:1")
    log = run("log", f"{model}-b@live")
    assert "ada" in log
    assert "live: nowhere → 1" in log
    assert len(json.loads(run("log", model, "--json"))) == 3
    run("log", f"{model}-b:2", "--since", 1)
