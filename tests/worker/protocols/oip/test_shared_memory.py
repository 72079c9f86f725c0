"""Arrays in segments of shared memory: read, written, and kept in bounds."""

import contextlib
import json
import os
import uuid
from pathlib import Path

import grpc
import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from servax_proto.oip import inference_pb2, inference_pb2_grpc
from servax_worker.errors import AlreadyExists, InvalidInput, NotServed, TooLarge, Unsupported
from servax_worker.protocols.oip.shared_memory import Place, SharedMemory

SHM = Path("/dev/shm")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def segment():
    """Makes segments with some content: `segment(bytes)` gives the key and the path."""
    paths = []

    def segment(content):
        paths.append(SHM / f"servax-test-{uuid.uuid4().hex}")
        paths[-1].write_bytes(content)
        return f"/{paths[-1].name}", paths[-1]

    yield segment
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.fixture
def memory():
    """Shared memory that is allowed."""
    memory = SharedMemory(allowed=True)
    yield memory
    memory.unregister()


def test_what_lies_in_a_region_is_read(memory, segment):
    """An array is read from its place in a part of a segment, aligned for XLA and read-only."""
    key, _ = segment(bytes(5) + bytes(3) + X.tobytes() + bytes(9))
    memory.register("in", key, 5, 3 + X.nbytes)

    x = memory.find("in").read(Place("in", 3, X.nbytes), "float32", [2, 3])

    np.testing.assert_array_equal(x, X)
    assert x.dtype == np.float32
    assert x.ctypes.data % 64 == 0
    assert not x.flags.writeable


def test_what_is_read_is_a_copy(memory, segment):
    """A caller that changes its segment afterwards changes nothing that is computed with."""
    key, path = segment(X.tobytes())
    memory.register("in", key, 0, X.nbytes)
    x = memory.find("in").read(Place("in", 0, X.nbytes), "float32", [2, 3])

    path.write_bytes(bytes(X.nbytes))

    np.testing.assert_array_equal(x, X)


def test_what_is_written_lies_in_the_segment(memory, segment):
    """Bytes are written at their place, and nowhere else."""
    key, path = segment(b"." * 10)
    memory.register("out", key, 2, 6)

    memory.find("out").write(Place("out", 1, 4), memoryview(b"abc"))

    assert path.read_bytes() == b"...abc...."


@pytest.mark.parametrize(
    ("place", "dtype", "shape", "says"),
    [
        (Place("r", 0, 17), "int8", [17], "17 bytes from 0 on are outside"),
        (Place("r", 1, 16), "int8", [16], "16 bytes from 1 on are outside"),
        (Place("r", 2**70, 16), "int8", [16], "are outside"),
        (Place("r", 0, 8), "int8", [16], "has 16 bytes, not 8"),
        (Place("r", 0, 16), "int8", [-16], "negative dimension"),
        (Place("r", 0, 16), "bool", [16], "outside of 0 to 1"),
    ],
)
def test_reading_stays_in_bounds(memory, segment, place, dtype, shape, says):
    """What is not all within the region, or no array of its type, is not read."""
    key, _ = segment(b"\7" * 64)
    memory.register("r", key, 16, 16)

    with pytest.raises(InvalidInput, match=says):
        memory.find("r").read(place, dtype, shape)


def test_writing_stays_in_bounds(memory, segment):
    """What does not fit its place, or a place that is not all within the region, is not written."""
    key, path = segment(bytes(64))
    memory.register("r", key, 16, 16)

    for place, data in ((Place("r", 0, 3), b"abcd"), (Place("r", 13, 4), b"abcd")):
        with pytest.raises(InvalidInput, match="bytes"):
            memory.find("r").write(place, memoryview(data))
    assert path.read_bytes() == bytes(64)


def test_a_segment_that_was_cut_is_an_error(memory, segment):
    """A caller that cuts its segment gets an error; nothing is read, and it is not extended."""
    key, path = segment(bytes(64))
    memory.register("r", key, 0, 64)
    os.truncate(path, 10)

    with pytest.raises(InvalidInput, match="has 10 bytes now"):
        memory.find("r").read(Place("r", 0, 64), "int8", [64])
    with pytest.raises(InvalidInput, match="has 10 bytes now"):
        memory.find("r").write(Place("r", 0, 64), memoryview(bytes(64)))
    assert path.stat().st_size == 10


def test_a_segment_without_a_name_stays(memory, segment):
    """A segment that its owner has unlinked is there until the region is unregistered."""
    key, path = segment(b"abcd")
    memory.register("r", key, 0, 4)
    path.unlink()

    assert memory.find("r").read(Place("r", 0, 4), "int8", [4]).tobytes() == b"abcd"


def test_a_region_outlasts_its_registration_while_it_is_used(memory, segment):
    """Whoever has found a region can read it although it was unregistered meanwhile; then its file
    is closed.
    """
    key, path = segment(b"abcd")
    before = descriptors(path)
    memory.register("r", key, 0, 4)
    region = memory.find("r")
    memory.unregister("r")

    assert region.read(Place("r", 0, 4), "int8", [4]).tobytes() == b"abcd"
    assert descriptors(path) == before + 1
    del region
    assert descriptors(path) == before


def descriptors(path):
    """How often this process has a file open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += each.readlink() == path
    return count


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        ".",
        "..",
        "/..",
        "a/b",
        "/a/b",
        "../etc/passwd",
        "/../../etc/passwd",
        "a\0b",
        "a" * 256,
    ],
)
def test_keys_are_names(memory, key):
    """Nothing but a name of a segment leads to a file."""
    with pytest.raises(InvalidInput, match="is no key"):
        memory.register("r", key, 0, 1)


def test_links_lead_nowhere(memory, segment, tmp_path):
    """A link in the place of a segment is not followed, and a folder or a pipe is no segment."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    _, path = segment(b"")
    for make in (lambda: path.symlink_to(secret), path.mkdir, lambda: os.mkfifo(path)):
        path.unlink()
        make()
        with pytest.raises(InvalidInput, match=r"cannot open segment|is no segment"):
            memory.register("r", f"/{path.name}", 0, 6)
        if path.is_dir():
            path.rmdir()
            path.touch()


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 65), (1, 64), (64, 1), (-1, 8), (0, 0), (0, -1), (2**70, 1)]
)
def test_a_region_is_part_of_its_segment(memory, segment, offset, size):
    """A region that is not all within its segment, or empty, is not registered."""
    key, path = segment(bytes(64))

    with pytest.raises(InvalidInput, match="are no part of segment"):
        memory.register("r", key, offset, size)
    assert memory.regions() == []
    assert descriptors(path) == 0


def test_names_are_taken_once(memory, segment):
    """A name is registered once until it is unregistered; a name is needed."""
    key, _ = segment(bytes(8))
    memory.register("r", key, 0, 8)

    with pytest.raises(AlreadyExists, match="'r'"):
        memory.register("r", key, 0, 4)
    with pytest.raises(InvalidInput, match="needs a name"):
        memory.register("", key, 0, 4)
    memory.unregister("r")
    memory.unregister("r")
    memory.register("r", key, 0, 4)
    assert [(region.key, region.size) for region in memory.regions("r")] == [(key, 4)]
    with pytest.raises(NotServed, match="no shared memory region 'q'; registered: r"):
        memory.regions("q")


def test_regions_are_bounded(memory, segment, monkeypatch):
    """There are only so many regions, since each keeps a file open."""
    monkeypatch.setattr("servax_worker.protocols.oip.shared_memory._MOST_REGIONS", 2)
    key, _ = segment(bytes(8))
    for name in "ab":
        memory.register(name, key, 0, 8)

    with pytest.raises(TooLarge, match="2 shared memory regions"):
        memory.register("c", key, 0, 8)


def test_nothing_is_allowed_by_default(segment):
    """Where the operator does not allow it, nothing is registered and nothing is found."""
    memory = SharedMemory(allowed=False)
    key, _ = segment(bytes(8))

    with pytest.raises(Unsupported, match="--allow-shared-memory"):
        memory.register("r", key, 0, 8)
    with pytest.raises(Unsupported, match="--allow-shared-memory"):
        memory.find("r")
    assert memory.regions() == []


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, serving):
    """A worker that takes shared memory."""
    x = symbolic("b, 3")
    n = jax.ShapeDtypeStruct((), jnp.float32)
    publish("add", exported(lambda x, n: {"y": x + n, "z": x - n}, x, n).serialize())
    with serving("add", allow_shared_memory=True, max_request_bytes=1 << 20) as running:
        running.wait_until_loaded()
        yield running


@pytest.fixture
def stub(worker):
    """The service; registrations end with the test."""
    with grpc.insecure_channel(worker.address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        yield stub
        stub.SystemSharedMemoryUnregister(inference_pb2.SystemSharedMemoryUnregisterRequest())


def set_place(parameters, region, size, offset=0):
    """Says where an array lies."""
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        parameters["shared_memory_offset"].int64_param = offset


def register(stub, name, key, size):
    """Registers a region."""
    stub.SystemSharedMemoryRegister(
        inference_pb2.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=size)
    )


def call(region="in", target="out", size=X.nbytes, room=X.nbytes):
    """A request with one input and one output in shared memory, and one of each beside it."""
    message = inference_pb2.ModelInferRequest(model_name="add")
    x = message.inputs.add(name="x", datatype="FP32", shape=X.shape)
    set_place(x.parameters, region, size, 8)
    message.inputs.add(name="n", datatype="FP32", shape=[])
    message.raw_input_contents.append(np.float32(10).tobytes())
    set_place(message.outputs.add(name="y").parameters, target, room)
    message.outputs.add(name="z")
    return message


def test_calls_through_shared_memory_over_grpc(stub, segment):
    """An input and an output in shared memory pass beside others in the message."""
    source, _ = segment(bytes(8) + X.tobytes())
    target, path = segment(bytes(X.nbytes + 4))
    register(stub, "in", source, 8 + X.nbytes)
    register(stub, "out", target, X.nbytes + 4)

    answer = stub.ModelInfer(call())

    assert path.read_bytes() == (X + 10).tobytes() + bytes(4)
    y, z = answer.outputs
    assert (y.name, list(y.shape), y.datatype) == ("y", [2, 3], "FP32")
    assert y.parameters["shared_memory_region"].string_param == "out"
    assert y.parameters["shared_memory_byte_size"].int64_param == X.nbytes
    assert list(answer.raw_output_contents) == [b"", (X - 10).tobytes()]
    assert not z.parameters
    regions = stub.SystemSharedMemoryStatus(
        inference_pb2.SystemSharedMemoryStatusRequest(name="in")
    ).regions
    assert (regions["in"].key, regions["in"].byte_size) == (source, 8 + X.nbytes)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (dict(region="no"), "NOT_FOUND", "no shared memory region 'no'"),
        (dict(target="no"), "NOT_FOUND", "no shared memory region 'no'"),
        (dict(size=4), "INVALID_ARGUMENT", "input 'x': float32[2, 3] has 24 bytes, not 4"),
        (dict(room=4), "INVALID_ARGUMENT", "output 'y': the array has 24 bytes"),
        (dict(room=1000), "INVALID_ARGUMENT", "output 'y': 1000 bytes from 0 on are outside"),
        (dict(size=1 << 30), "RESOURCE_EXHAUSTED", "--max-request-bytes"),
    ],
)
def test_faults_of_callers_are_theirs(stub, segment, changes, code, says):
    """A place that does not fit is refused, and says which array it is of."""
    source, _ = segment(bytes(8) + X.tobytes())
    target, _ = segment(bytes(X.nbytes))
    register(stub, "in", source, 8 + X.nbytes)
    register(stub, "out", target, X.nbytes)

    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(call(**changes))

    assert caught.value.code().name == code
    assert says in caught.value.details()


def test_a_segment_cut_under_a_worker_is_an_error(stub, segment):
    """The worker survives that a caller cuts its segments at any moment."""
    source, in_path = segment(bytes(8) + X.tobytes())
    target, out_path = segment(bytes(X.nbytes))
    register(stub, "in", source, 8 + X.nbytes)
    register(stub, "out", target, X.nbytes)
    for path in (out_path, in_path):
        os.truncate(path, 0)

        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(call())

        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "has 0 bytes now" in caught.value.details()


def test_calls_through_shared_memory_over_http(worker, segment):
    """The REST API passes arrays through shared memory as gRPC does, with the same names."""
    source, _ = segment(X.tobytes())
    target, path = segment(bytes(X.nbytes))
    with httpx.Client(base_url=worker.http) as http:
        memory = "/v2/systemsharedmemory"
        for name, key in (("in", source), ("out", target)):
            response = http.post(
                f"{memory}/region/{name}/register", json={"key": key, "byte_size": X.nbytes}
            )
            assert response.status_code == 200
        taken = http.post(f"{memory}/region/in/register", json={"key": source, "byte_size": 1})
        assert taken.status_code == 409
        there = {"name": "in", "key": source, "offset": 0, "byte_size": X.nbytes}
        assert http.get(f"{memory}/region/in/status").json() == [there]
        assert there in http.get(f"{memory}/status").json()

        def place(region):
            return {"shared_memory_region": region, "shared_memory_byte_size": X.nbytes}

        x = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": place("in")}
        n = {"name": "n", "datatype": "FP32", "shape": [], "data": [10]}
        outputs = [{"name": "y", "parameters": place("out")}, {"name": "z"}]
        document = json.dumps({"inputs": [x, n], "outputs": outputs})
        y, z = http.post("/v2/models/add/infer", content=document).json()["outputs"]

        assert path.read_bytes() == (X + 10).tobytes()
        assert y["parameters"] == {**place("out"), "shared_memory_offset": 0}
        assert z["data"] == (X - 10).ravel().tolist()
        assert http.post(f"{memory}/unregister").status_code == 200
        assert http.get(f"{memory}/status").json() == []


def test_shared_memory_is_advertised(stub):
    """A worker that takes shared memory says so."""
    server = stub.ServerMetadata(inference_pb2.ServerMetadataRequest())

    assert "system_shared_memory" in server.extensions
