"""The child process: what it may do, and that nothing it does harms its parent."""

import dataclasses
import functools
import io
import json
import os
import random
import resource
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.export import serialization_generated as schema

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import Limits, answer, cage, inspect_program
from servax_registry.inspection.exported import read_program


@functools.cache
def blob() -> bytes:
    """A small export."""
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    made = export.export(jax.jit(lambda tokens, *, scale: tokens * scale))(vector, scale=vector)
    return bytes(made.serialize())


def inspect(data: bytes, **limits) -> Program:
    """Inspects bytes as a file."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        return inspect_program(file, limits=Limits(**limits))


@pytest.fixture
def child(monkeypatch):
    """Replaces what the child runs by the given lines, which have `child` and `read` to replace."""

    def replace(*lines: str) -> None:
        program = (
            "import sys; sys.path.append(sys.argv.pop(1))",
            "import os, resource, signal, time",
            "import servax_registry.inspection.__main__ as child",
            "from servax_registry.errors import InvalidProgram",
            *lines,
        )
        monkeypatch.setattr(cage, "_BOOT", "\n".join(program))

    return replace


def told_by_child(replace, expression: str) -> str:
    """What an expression gives in the child at the time when it reads the program."""
    replace(
        f"def read(blob): raise InvalidProgram(str({expression}))",
        "child.read_program = read",
        "child.main()",
    )
    with pytest.raises(InvalidProgram) as told:
        inspect(blob())
    return str(told.value)


def test_the_child_reads_what_its_parent_would():
    """The program that comes out of the cage is the one that was read in it."""
    assert read_program(blob()) == inspect(blob())


def test_a_file_is_read_from_its_beginning():
    """Where the file stands is of no importance, and it may not have been flushed."""
    with tempfile.TemporaryFile() as file:
        file.write(blob())

        assert read_program(blob()) == inspect_program(file)


def test_the_package_is_found_without_being_installed(monkeypatch):
    """Neither the working directory nor PYTHONPATH is what lets the child find its code."""
    monkeypatch.chdir("/")
    monkeypatch.delenv("PYTHONPATH", raising=False)

    assert read_program(blob()) == inspect(blob())


def test_many_inspections_at_once():
    """Inspections do not disturb each other."""
    with ThreadPoolExecutor(4) as pool:
        programs = set(pool.map(inspect, [blob()] * 8))

    assert programs == {read_program(blob())}


@pytest.mark.parametrize("data", [b"", b"no program", b"\0" * 4096])
def test_reasons_pass_the_cage(data):
    """A blob that is refused in the cage is refused with the same words outside."""
    with pytest.raises(InvalidProgram) as directly:
        read_program(data)
    with pytest.raises(InvalidProgram) as caged:
        inspect(data)

    assert str(directly.value) == str(caged.value)


def test_mutated_blobs_pass_or_are_refused():
    """Damaged blobs come to the same end in the cage as outside."""
    randomness = random.Random(1)
    for _ in range(10):
        mutated = bytearray(blob())
        mutated[randomness.randrange(len(mutated))] ^= 0xFF
        try:
            expected: object = read_program(bytes(mutated))
        except InvalidProgram as invalid:
            expected = str(invalid)
        try:
            caged: object = inspect(bytes(mutated))
        except InvalidProgram as invalid:
            caged = str(invalid)

        assert expected == caged


def test_no_memory_is_taken_for_the_module():
    """A program of 1 GiB is inspected within 128 MiB, names and all."""
    with tempfile.TemporaryFile() as file:
        write_sparse(file, 1 << 30)

        assert file.tell() > 1 << 30
        assert read_program(blob()) == inspect_program(file, limits=Limits(memory=128 << 20))


def write_sparse(file: BinaryIO, size: int) -> None:
    """Writes `blob` with a module that is larger by `size` bytes of section, most never written."""
    small = bytearray(blob())
    table = schema.Exported.GetRootAs(small)._tab
    field = table.Pos + table.Offset(4 + 2 * 13)
    start = table.Vector(table.Offset(4 + 2 * 13))
    module = bytes(small[start : start + table.VectorLen(table.Offset(4 + 2 * 13))])
    header = module[: module.index(b"\0") + 1]
    unknown_section = b"\x7f\0" + struct.pack("<Q", size)
    struct.pack_into("<I", small, field, len(small) - field)
    file.write(small)
    file.write(struct.pack("<I", len(module) + len(unknown_section) + size))
    file.write(header + unknown_section)
    file.seek(size, io.SEEK_CUR)
    file.write(module[len(header) :])
    file.write(b"\0" * (-file.tell() % 4))


def test_the_child_inherits_no_secrets(monkeypatch, child):
    """The environment of the registry does not reach the child."""
    monkeypatch.setenv("SERVAX_DB", "postgresql://user:secret@host")

    assert "secret" not in told_by_child(child, "dict(os.environ)")


def test_the_child_has_no_files_but_its_own(child):
    """Of the registry's open files, the child has the program alone."""
    with tempfile.TemporaryFile() as secret:
        os.set_inheritable(secret.fileno(), True)
        inherited = secret.fileno()
        still_open = told_by_child(child, f"os.path.exists('/dev/fd/{inherited}')")

    assert still_open == "False"


def test_the_child_is_limited_before_it_reads(child):
    """Memory, CPU time, files and cores are limited when the first byte is read."""
    kinds = ["RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE"]
    if sys.platform == "linux":
        kinds.append("RLIMIT_AS")
    hard = "resource.getrlimit(getattr(resource, kind))[1]"
    limits = json.loads(told_by_child(child, f"[{hard} for kind in {kinds}]"))

    assert all(limit != resource.RLIM_INFINITY for limit in limits)
    assert limits[2:4] == [0, 0]


def test_the_child_leads_its_own_session(child):
    """What signals the registry's group does not reach the child, and the reverse."""
    assert told_by_child(child, "os.getsid(0) == os.getpid()") == "True"


def test_the_child_loads_neither_jax_nor_numpy(child):
    """The child gets by with the standard library."""
    modules = json.loads(told_by_child(child, "sorted(sys.modules)").replace("'", '"'))

    assert "servax_registry.inspection.exported" in modules
    assert not {"jax", "numpy", "flatbuffers", "sqlalchemy"} & set(modules)


@pytest.mark.parametrize(
    ("lines", "limits", "message"),
    [
        (["os.kill(os.getpid(), signal.SIGSEGV)"], {}, "ended by SIGSEGV"),
        (["os.kill(os.getpid(), signal.SIGKILL)"], {}, "ended by SIGKILL"),
        (["raise KeyError('a bug')"], {}, "met what it does not understand"),
        (["time.sleep(60)"], {"wall_seconds": 1}, "more than 1 s"),
        (["while True: pass"], {"cpu_seconds": 1}, "more than 1 s of CPU time"),
        (["bytearray(1 << 40)"], {}, "268435456 bytes of memory"),
        (["os.write(1, b'x' * (1 << 16))"] * 3, {"answer_size": 1 << 17}, "exceeds 131072 bytes"),
        (["os.close(1); time.sleep(60)"], {"wall_seconds": 1}, "more than 1 s"),
        (["os._exit(0)"], {}, "malformed"),
        (["os.write(1, b'[' * 100000); os._exit(0)"], {}, "malformed"),
        (["os.write(1, b'{\"program\": {}}'); os._exit(0)"], {}, "malformed"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the signals and limits are those of Linux")
def test_whatever_the_child_does_the_program_is_refused(child, lines, limits, message):
    """A reader that crashes, hangs, overeats or babbles costs its program, and says so."""
    body = (f"    {line}" for line in lines)
    child("def read(blob):", *body, "child.read_program = read", "child.main()")

    with pytest.raises(InvalidProgram, match=rf"while it was inspected: .*{message}"):
        inspect(blob(), **limits)


def test_a_child_that_cannot_start_is_no_fault_of_the_program(child):
    """A broken installation is told apart from a broken program."""
    child("raise SystemExit(1)")

    with pytest.raises(RuntimeError, match="exit status 1"):
        inspect(blob())


def changed(**changes: object) -> bytes:
    """An answer with some of the program's fields replaced."""
    program = dataclasses.asdict(read_program(blob()))
    return json.dumps({"program": program | changes}).encode()


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"null",
        b"{}",
        b'{"invalid": 1}',
        b'{"invalid": "\\ud800"}',
        b'{"invalid": "x", "program": {}}',
        b'{"program": null}',
        b"[" * 100_000,
        b"\xff",
        changed(function_name=1),
        changed(device_count="1"),
        changed(device_count=True),
        changed(device_count=1.0),
        changed(platforms="cpu"),
        changed(platforms=[1]),
        changed(arguments=[{}]),
        changed(unknown=1),
    ],
)
def test_malformed_answers_are_refused(malformed):
    """Nothing is taken from the child that is not exactly an answer."""
    with pytest.raises(answer.MalformedAnswer):
        answer.decode(malformed)


def test_answers_come_back_unchanged():
    """What is encoded decodes to itself; a reason comes back as an exception."""
    program = read_program(blob())

    assert program == answer.decode(answer.encode(program))
    with pytest.raises(InvalidProgram, match="a reason: é"):
        answer.decode(answer.encode(InvalidProgram("a reason: é")))
