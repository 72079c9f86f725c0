"""What the service does with programs that no test could export quickly."""

import hashlib
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import safetensors.numpy

from servax_registry.artifact import (
    Argument,
    Blob,
    Program,
    ProgramSource,
    Publication,
    Result,
    Selection,
)
from servax_registry.convert import size_of, version_to_proto
from servax_registry.errors import InvalidName, InvalidProgram, StorageFull, VersionTooLarge
from servax_registry.service import Registry

MIB = 1 << 20


def program(outputs=1, **fields):
    """Make a program of one input and many outputs."""
    return Program(
        function_name="f",
        arguments=(Argument("x", (), False, "float32", ("b", "2*b + 1")),),
        results=tuple(Result((f"{n:0100d}k",), "float32", ("b",)) for n in range(outputs)),
        platforms=("cpu", "cuda"),
        device_count=2,
        calling_convention_version=10,
        serialization_version=3,
        stablehlo_version="1.15.0",
        jax_version="0.12.0",
        disabled_checks=("a",),
        effects=(),
        custom_nodes=("c",),
        **fields,
    )


@pytest.fixture
def publish(database):
    """Publish a blob of these bytes that is inspected by a function of the test's."""

    def publish(inspect, data=b"program"):
        registry = Registry(database, size_of=size_of, inspect=inspect)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        parts = ((begin, data[begin : begin + MIB]) for begin in range(0, len(data), MIB))
        registry.write_blob(Blob(digest, len(data)), parts)
        return registry.publish_version(Publication("m", (ProgramSource("s", digest),)))

    return publish


def test_inspection_sees_the_blob_in_a_real_file(publish):
    """The inspector is given a file with all bytes, positioned at the beginning."""
    seen = []

    def inspect(file):
        assert file.fileno() > 0
        seen.append(file.read())
        return program()

    publish(inspect, b"x" * 3_000_000)

    assert seen == [b"x" * 3_000_000]


def test_a_program_is_inspected_once(publish, monkeypatch):
    """A blob is inspected again only after the reader has become another version."""
    calls = []

    def inspect(file):
        calls.append(file)
        return program()

    assert [publish(inspect).number for _ in range(2)] == [1, 2]
    assert len(calls) == 1
    monkeypatch.setattr("servax_registry.inspector.INSPECTION_VERSION", 99)
    assert publish(inspect).number == 3
    assert len(calls) == 2


def test_everything_that_was_inspected_is_kept(publish, database):
    """What comes out of the database is, field by field, what the inspector found."""
    published = publish(lambda file: program())

    found = Registry(database, size_of=size_of).get_version("m")

    assert found == published
    assert found.signatures[0].inspected == program()
    message = version_to_proto(found).signatures[0]
    assert (message.jax_version, list(message.platforms), message.device_count) == (
        "0.12.0",
        ["cpu", "cuda"],
        2,
    )


def test_a_failed_inspection_is_not_remembered(publish):
    """A program that was refused is inspected again, and the error names the signature."""

    def inspect(file):
        raise InvalidProgram("truncated")

    for _ in range(2):
        with pytest.raises(InvalidProgram, match=r"'s' \(sha256:.*truncated"):
            publish(inspect)
    assert publish(lambda file: program()).number == 1


def test_a_version_that_no_message_can_hold_is_refused(publish, database):
    """A version above 3.5 MiB is refused with its size, and takes no number."""
    with pytest.raises(VersionTooLarge, match=r"takes \d{7} bytes, and at most 3670016"):
        publish(lambda file: program(outputs=40_000))

    assert Registry(database, size_of=size_of).list_models().items == ()
    assert publish(lambda file: program(), b"smaller").number == 1


def test_what_is_too_large_for_a_program_is_not_inspected(publish, monkeypatch):
    """A blob above the size that a program can have is refused before it is copied anywhere."""
    monkeypatch.setattr("servax_registry.inspector.MAX_PROGRAM_SIZE", 100)

    with pytest.raises(InvalidProgram, match=r"'s' .* 101 bytes .* 100 at most"):
        publish(lambda file: pytest.fail("inspected"), b"x" * 101)
    assert publish(lambda file: program(), b"x" * 100).number == 1


def test_a_full_temporary_disk_is_told(publish, monkeypatch):
    """Where there is no room to inspect a program, the error says so and names the place."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev")
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "r+b"))

    with pytest.raises(StorageFull, match=r"no room in /dev to inspect a program of 3 bytes"):
        publish(lambda file: pytest.fail("inspected"), b"abc")


def test_few_publications_read_their_blobs_at_once(database):
    """Of many concurrent publications, only two read blobs at the same time."""
    reading, most, lock = 0, 0, threading.Lock()
    pair = threading.Barrier(2)

    def inspect(file):
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        pair.wait(60)
        with lock:
            reading -= 1
        return program()

    registry = Registry(database, size_of=size_of, inspect=inspect)

    def publish(number):
        data = bytes([number])
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        registry.write_blob(Blob(digest, 1), [(0, data)])
        registry.publish_version(Publication("m", (ProgramSource("s", digest),)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))

    assert most == 2


def test_weights_of_very_many_arrays_are_refused(database, monkeypatch):
    """Weights that cannot be described in one message are refused as soon as that is clear."""
    monkeypatch.setattr("servax_registry.drafts._MAX_TENSORS", 3)
    registry = Registry(database, size_of=size_of, inspect=lambda file: program())
    digests = []
    for shard in range(3):
        tensors = {f"{shard}.{n}": np.zeros(1, np.int8) for n in range(2)}
        data = safetensors.numpy.save(tensors)
        digests.append(f"sha256:{hashlib.sha256(data).hexdigest()}")
        registry.write_blob(Blob(digests[-1], len(data)), [(0, data)])

    with pytest.raises(VersionTooLarge, match="weights are 4 arrays or more, and at most 3"):
        registry.publish_version(
            Publication("m", (ProgramSource("s", digests[0]),), tuple(digests))
        )


def test_what_cannot_run_elsewhere_is_refused(publish, database):
    """Side effects and custom calls that JAX does not keep stable are refused at publish; a custom
    call that the operator allows is taken.
    """
    effectful = replace(program(), effects=("ordered",))
    calling = program(custom_calls=("my_kernel",))
    with pytest.raises(InvalidProgram, match="has side effects"):
        publish(lambda file: effectful, b"effectful")
    with pytest.raises(InvalidProgram, match="my_kernel"):
        publish(lambda file: calling, b"calling")

    registry = Registry(database, size_of=size_of, allowed_custom_calls=["my_kernel"])
    digest = f"sha256:{hashlib.sha256(b'calling').hexdigest()}"
    version = registry.publish_version(Publication("m", (ProgramSource("s", digest),)))
    assert version.signatures[0].inspected.custom_calls == ("my_kernel",)


def test_large_versions_come_one_a_page(publish, database, monkeypatch):
    """A page holds one version at least, no more than fit one message, and all are reached."""
    for outputs in (100, 100, 400, 10):
        publish(lambda file, n=outputs: program(outputs=n), str(outputs).encode())
    monkeypatch.setattr("servax_registry.pages.MESSAGE_LIMIT", 20_000)
    registry = Registry(database, size_of=size_of)
    numbers, token = [], ""
    while True:
        page = registry.list_versions(Selection("m"), page_token=token)
        numbers.append([version.number for version in page.items])
        token = page.next_page_token
        if not token:
            break

    assert numbers == [[4], [3], [2], [1]]


def test_long_names_are_cut_in_messages(database):
    """An error about a name of any length stays short."""
    with pytest.raises(InvalidName) as caught:
        Registry(database, size_of=size_of).get_model("x" * 100_000)

    assert len(str(caught.value)) < 300
