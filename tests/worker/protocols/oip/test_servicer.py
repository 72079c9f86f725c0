"""The Open Inference Protocol over gRPC, by its own stubs over a real worker."""

import math
import os
import threading
import time

import grpc
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from servax.types import Batching, ServedState
from servax_proto.oip import inference_pb2, inference_pb2_grpc, model_config_pb2
from servax_worker.protocols.oip import description
from servax_worker.protocols.oip.datatypes import DATATYPES

X = np.array([[1, 0, 2], [0, 1, 0]], np.float32)
SCORES = np.array([[17, 21, 25, 29], [5, 7, 9, 11]], np.float32)
BEST = np.array([3, 3], np.int32)


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, linear_program, linear_weights, slow_program, serving):
    """A worker that serves a few models."""
    publish("classes", linear_program, weights=[linear_weights])
    publish("classes", linear_program, weights=[linear_weights], aliases=["stable"])
    rows = symbolic("b, 3")
    publish("rows", exported(lambda x: x * 2, rows).serialize(), batching=Batching("b"))
    n = jax.ShapeDtypeStruct((), jnp.int32)
    mixed = {
        "serving_default": exported(
            lambda x, n: {"y": x + n, "z": x.sum(-1)}, symbolic("2*b, 4", "bfloat16"), n
        ).serialize(),
        "half": exported(lambda x: x / 2, symbolic("b")).serialize(),
    }
    publish("mixed", mixed)
    publish("halves", {"half": exported(lambda x: x / 2, symbolic("b")).serialize()})
    sixteen = exported(lambda x: x * 2, jax.ShapeDtypeStruct((16, 3), jnp.float32)).serialize()
    publish("sixteen", sixteen)
    publish("sixteens", sixteen, batching=Batching(""))
    int4 = jax.ShapeDtypeStruct((2,), jnp.int4)
    publish("narrow", exported(lambda x: x, int4).serialize())
    publish("slow", slow_program)
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("oip-elsewhere", cuda)
    for dtype in DATATYPES:
        with jax.enable_x64(True):
            same = exported(lambda x: x, symbolic("b, 2", dtype))
        publish(f"same-{dtype}", same.serialize())
    with serving(
        *("classes", "classes@stable", "classes:1", "rows", "mixed", "halves"),
        *("sixteen", "sixteens", "narrow", "slow", "oip-elsewhere"),
        *(f"same-{dtype}" for dtype in DATATYPES),
        max_in_flight=4,
        warm_up={"b": (1, 2)},
    ) as running:
        running.wait_until_loaded()
        yield running


@pytest.fixture(scope="module")
def channel(worker):
    """A connection to it, with tritonclient's limits."""
    options = [
        ("grpc.max_send_message_length", 2**31 - 1),
        ("grpc.max_receive_message_length", 2**31 - 1),
    ]
    with grpc.insecure_channel(worker.address, options) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    """The service."""
    return inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(model, version="", outputs=(), id="", parameters=None, **arrays):
    """A request with the arrays' bytes."""
    message = inference_pb2.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, array in arrays.items():
        message.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    for name in outputs:
        message.outputs.add(name=name)
    set_parameters(message.parameters, parameters or {})
    return message


def set_parameters(target, values):
    """Sets parameters of any kind."""
    for name, value in values.items():
        kind = {bool: "bool", int: "int64", str: "string", float: "double"}[type(value)]
        setattr(target[name], f"{kind}_param", value)


def arrays_of(response):
    """The arrays of an answer."""
    types = {datatype: np.dtype(getattr(ml_dtypes, n, n)) for n, datatype in DATATYPES.items()}
    assert len(response.outputs) == len(response.raw_output_contents)
    return {
        output.name: np.frombuffer(raw, types[output.datatype]).reshape(tuple(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def refused(call, message, **options):
    """Makes a call that must fail; gives its code and what it says."""
    with pytest.raises(grpc.RpcError) as caught:
        call(message, timeout=30, **options)
    return caught.value.code(), caught.value.details()


def test_answers_have_all_outputs_as_bytes(stub):
    """An answer names the version and has every output, in raw_output_contents alone."""
    answer = stub.ModelInfer(request("classes", id="seven", x=X))

    assert (answer.model_name, answer.model_version, answer.id) == ("classes", "2", "seven")
    datatypes = {output.name: output.datatype for output in answer.outputs}
    assert datatypes.keys() == {"best", "scores"}
    assert datatypes["scores"] == "FP32"
    assert not any(output.HasField("contents") for output in answer.outputs)
    arrays = arrays_of(answer)
    np.testing.assert_array_equal(arrays["scores"], SCORES)
    np.testing.assert_array_equal(arrays["best"], BEST)


def test_outputs_come_as_they_are_asked_for(stub):
    """Only the outputs that a request names are given, in its order."""
    one = stub.ModelInfer(request("classes", outputs=["scores"], x=X))
    two = stub.ModelInfer(request("classes", outputs=["scores", "best"], x=X))

    assert [output.name for output in one.outputs] == ["scores"]
    assert [output.name for output in two.outputs] == ["scores", "best"]


@pytest.mark.parametrize(
    ("version", "number"), [("", "2"), ("1", "1"), ("2", "2"), ("stable", "2")]
)
def test_versions_are_numbers_or_aliases(stub, version, number):
    """A version is found by its number and by an alias."""
    assert stub.ModelInfer(request("classes", version, x=X)).model_version == number
    assert stub.ModelReady(inference_pb2.ModelReadyRequest(name="classes", version=version)).ready
    metadata = stub.ModelMetadata(
        inference_pb2.ModelMetadataRequest(name="classes", version=version)
    )
    assert list(metadata.versions) == ["1", "2"]


def test_a_parameter_names_the_signature(stub):
    """The parameter `signature` chooses another signature than serving_default."""
    x = np.array([2, 4], np.float32)

    answer = stub.ModelInfer(request("mixed", parameters={"signature": "half"}, x=x))

    np.testing.assert_array_equal(arrays_of(answer)["output"], x / 2)


def test_unknown_parameters_are_ignored(stub):
    """Parameters that mean nothing here change nothing."""
    message = request(
        "classes",
        parameters={
            "triton_enable_empty_final_response": True,
            "priority": 1,
            "sequence_id": "a",
            "weight": 0.5,
        },
        x=X,
    )
    message.parameters["nothing"].SetInParent()
    set_parameters(message.inputs[0].parameters, {"content_type": "np"})

    assert len(stub.ModelInfer(message).outputs) == 2


@pytest.mark.parametrize("dtype", DATATYPES)
def test_every_datatype_survives(stub, dtype):
    """Elements of every type that the protocol names come back as they were sent."""
    numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.array([[0, 1], [2, 3], [4, 5]]).astype(numpy)

    answer = stub.ModelInfer(request(f"same-{dtype}", x=x))

    (y,) = arrays_of(answer).values()
    assert y.dtype == numpy
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DATATYPES if dtype not in ("float16", "bfloat16")]
)
def test_elements_may_be_typed(stub, dtype):
    """Elements may come in the field of their type."""
    field = {
        **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
        **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
        **{"bool": "bool_contents", "int64": "int64_contents", "uint64": "uint64_contents"},
        **{"float32": "fp32_contents", "float64": "fp64_contents"},
    }[dtype]
    x = np.array([[0, 1], [1, 0]], dtype)
    message = inference_pb2.ModelInferRequest(model_name=f"same-{dtype}")
    tensor = message.inputs.add(name="x", datatype=DATATYPES[dtype], shape=x.shape)
    getattr(tensor.contents, field).extend(x.ravel().tolist())

    (y,) = arrays_of(stub.ModelInfer(message)).values()

    np.testing.assert_array_equal(y, x)


def typed(datatype, shape, model="same-int8", **contents):
    """A request of one input with typed contents."""
    message = inference_pb2.ModelInferRequest(model_name=model)
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    tensor.contents.SetInParent()
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


def raw(datatype, shape, *data, model="same-int8"):
    """A request of one input with raw contents."""
    message = inference_pb2.ModelInferRequest(model_name=model, raw_input_contents=data)
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message


def mixed():
    """A request whose contents are both raw and typed."""
    message = typed("INT8", (1, 2), int_contents=[1, 2])
    message.raw_input_contents.append(b"12")
    return message


def twice():
    """A request that names an input twice."""
    message = raw("INT8", (1, 2), b"12", b"34")
    message.inputs.append(message.inputs[0])
    return message


def with_parameters(*places, **values):
    """A request with parameters of its own, of its input, or of its output."""
    message = raw("INT8", (1, 2), b"12")
    message.outputs.add(name="output")
    target = {"request": message, "input": message.inputs[0], "output": message.outputs[0]}
    for place in places:
        set_parameters(target[place].parameters, values)
    return message


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (typed("BYTES", (1,), bytes_contents=[b"a"]), "INVALID_ARGUMENT", "BYTES: programs of JAX"),
        (raw("BYTES", (1,), b"\1\0\0\0a"), "INVALID_ARGUMENT", "input 'x': BYTES: programs"),
        (raw("FP8", (1, 2), b"12"), "INVALID_ARGUMENT", "datatype 'FP8' is none of BOOL"),
        (raw("INT8", (1, 2), b"123"), "INVALID_ARGUMENT", "takes 2 bytes of data, there are 3"),
        (raw("INT8", (1, -2), b"12"), "INVALID_ARGUMENT", "negative dimension"),
        (raw("INT8", (1,) * 65, b"1"), "INVALID_ARGUMENT", "at most 64"),
        (raw("BOOL", (1, 2), b"\2\0"), "INVALID_ARGUMENT", "outside of 0 to 1"),
        (raw("INT8", (1, 2), b"12", b"34"), "INVALID_ARGUMENT", "1 entries more than"),
        (raw("INT8", (2,), b"12"), "INVALID_ARGUMENT", "1 dimensions instead of 2"),
        (raw("INT32", (1, 2), bytes(8)), "INVALID_ARGUMENT", "cast it"),
        (raw("INT8", (1, 2)), "INVALID_ARGUMENT", "0 elements in int_contents for INT8[1, 2]"),
        (mixed(), "INVALID_ARGUMENT", "has contents although"),
        (twice(), "INVALID_ARGUMENT", "two inputs 'x'"),
        (typed("INT8", (1, 2), int_contents=[1, 200]), "INVALID_ARGUMENT", "outside of INT8"),
        (typed("INT8", (1, 2), int_contents=[1]), "INVALID_ARGUMENT", "1 elements in int_contents"),
        (typed("INT8", (1, 2), fp32_contents=[1]), "INVALID_ARGUMENT", "are in int_contents"),
        (typed("BF16", (1, 2)), "INVALID_ARGUMENT", "send it in raw_input_contents"),
        (typed("INT8", (2**62, 2**62)), "INVALID_ARGUMENT", "larger than any memory"),
        (raw("INT8", (1, 2), b"12", model=""), "INVALID_ARGUMENT", "names no model"),
        (raw("INT8", (1, 2), b"12", model="no"), "NOT_FOUND", "no model 'no' here"),
        (request("classes", "9", x=X), "NOT_FOUND", "no version 9"),
        (request("classes", "9" * 30, x=X), "NOT_FOUND", "no version 999"),
        (request("classes", "blue", x=X), "NOT_FOUND", "no alias 'blue'"),
        (request("classes", outputs=["z"], x=X), "INVALID_ARGUMENT", "'z'"),
        (request("classes", y=X), "INVALID_ARGUMENT", "missing input 'x'"),
        (request("halves", x=X[0]), "NOT_FOUND", "it has half"),
        (request("oip-elsewhere", x=X[0]), "FAILED_PRECONDITION", "exported for cuda"),
        (with_parameters("request", signature=1), "INVALID_ARGUMENT", "'signature' is 1"),
        (with_parameters("request", timeout=-1), "INVALID_ARGUMENT", "'timeout' is -1"),
        (with_parameters("request", timeout="1"), "INVALID_ARGUMENT", "'timeout' is '1'"),
        (with_parameters("request", timeout=True), "INVALID_ARGUMENT", "'timeout' is True"),
        (with_parameters("output", classification=2), "UNIMPLEMENTED", "sort them where you call"),
        (with_parameters("input", shared_memory_region=1), "INVALID_ARGUMENT", "input 'x': param"),
        (
            with_parameters("output", shared_memory_region="a", shared_memory_offset=-1),
            "INVALID_ARGUMENT",
            "output 'output': parameter 'shared_memory_offset' is -1",
        ),
        (
            with_parameters("input", shared_memory_region="a", shared_memory_byte_size=2),
            "INVALID_ARGUMENT",
            "1 entries more",
        ),
        (
            with_parameters("output", shared_memory_region="a", shared_memory_byte_size=2),
            "UNIMPLEMENTED",
            "--allow-shared-memory",
        ),
    ],
)
def test_what_does_not_fit_is_refused(stub, message, code, says):
    """Every fault of a request has its status, and a text that names it."""
    found, details = refused(stub.ModelInfer, message)

    assert found.name == code
    assert says in details


def test_types_without_a_name_are_refused(stub):
    """A model of int4 is refused by name of the API that has it, and stays in the index."""
    for call, message in (
        (stub.ModelMetadata, inference_pb2.ModelMetadataRequest(name="narrow")),
        (stub.ModelConfig, inference_pb2.ModelConfigRequest(name="narrow")),
    ):
        code, details = refused(call, message)
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert "no type for int4; call with servax.v1.Prediction" in details
    index = stub.RepositoryIndex(inference_pb2.RepositoryIndexRequest())
    assert "narrow" in [model.name for model in index.models]


def test_metadata_and_configuration(stub):
    """Metadata has a -1 for every size that is open; the configuration leaves rows out."""
    metadata = stub.ModelMetadata(inference_pb2.ModelMetadataRequest(name="rows"))
    config = stub.ModelConfig(inference_pb2.ModelConfigRequest(name="rows")).config

    assert (metadata.name, metadata.platform, list(metadata.versions)) == (
        "rows",
        "jax_export",
        ["1"],
    )
    (x,) = metadata.inputs
    assert (x.name, x.datatype, list(x.shape)) == ("x", "FP32", [-1, 3])
    assert config.max_batch_size == 2**31 - 1
    assert config.HasField("dynamic_batching")
    assert (config.input[0].name, list(config.input[0].dims)) == ("x", [3])
    assert config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert list(config.output[0].dims) == [3]


@pytest.mark.parametrize(
    ("model", "rows", "joined", "dims"),
    [
        # Any number of rows, not joined.
        ("classes", 2**31 - 1, False, [3]),
        # A fixed number of rows, cut and padded.
        ("sixteens", 16, True, [3]),
        # A fixed number of rows that is part of the shape.
        ("sixteen", 0, False, [16, 3]),
        # No rows: the first dimension is not any number.
        ("mixed", 0, False, [-1, 4]),
        ("slow", 0, False, []),
    ],
)
def test_which_models_have_rows(stub, model, rows, joined, dims):
    """max_batch_size tells whether dimension 0 counts rows; it is Triton's, and perf_analyzer's."""
    config = stub.ModelConfig(inference_pb2.ModelConfigRequest(name=model)).config

    assert config.max_batch_size == rows
    assert config.HasField("dynamic_batching") == joined
    assert list(config.input[0].dims) == dims


@pytest.mark.parametrize("model", ["no", "oip-elsewhere", "halves"])
def test_what_cannot_be_described(stub, model):
    """Models that are not there, not ready, or have no default signature have no metadata."""
    code, _ = refused(stub.ModelMetadata, inference_pb2.ModelMetadataRequest(name=model))

    failed = grpc.StatusCode.FAILED_PRECONDITION
    assert code is (failed if model == "oip-elsewhere" else grpc.StatusCode.NOT_FOUND)


def test_liveness_and_readiness(stub):
    """The server is live, and not ready while one of its models cannot be served."""
    assert stub.ServerLive(inference_pb2.ServerLiveRequest()).live
    assert not stub.ServerReady(inference_pb2.ServerReadyRequest()).ready
    for model, ready in (("classes", True), ("oip-elsewhere", False), ("no", False), ("", False)):
        assert stub.ModelReady(inference_pb2.ModelReadyRequest(name=model)).ready == ready


def test_server_metadata(stub):
    """Only extensions that work are advertised."""
    server = stub.ServerMetadata(inference_pb2.ServerMetadataRequest())

    assert server.name == "servax"
    assert server.version
    assert set(server.extensions) == {
        "binary_tensor_data",
        "model_configuration",
        "parameters",
        "statistics",
    }


def test_repository_index(stub):
    """Every version is listed once, with its state and the reason for it."""
    index = stub.RepositoryIndex(inference_pb2.RepositoryIndexRequest())

    found = [(model.name, model.version, model.state) for model in index.models]
    assert len(set(found)) == len(found)
    assert {("classes", "1", "READY"), ("classes", "2", "READY")} <= set(found)
    (elsewhere,) = [model for model in index.models if model.name == "oip-elsewhere"]
    assert (elsewhere.version, elsewhere.state) == ("1", "UNAVAILABLE")
    assert "exported for cuda" in elsewhere.reason
    ready = stub.RepositoryIndex(inference_pb2.RepositoryIndexRequest(ready=True))
    assert [model.state for model in ready.models] == ["READY"] * (len(found) - 1)
    code, _ = refused(
        stub.RepositoryIndex, inference_pb2.RepositoryIndexRequest(repository_name="other")
    )
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_models_are_not_loaded_at_a_callers_wish(stub):
    """Loading and unloading are refused where the operator does not allow them."""
    load = inference_pb2.RepositoryModelLoadRequest(model_name="rows")
    unload = inference_pb2.RepositoryModelUnloadRequest(model_name="rows")

    for call, message in ((stub.RepositoryModelLoad, load), (stub.RepositoryModelUnload, unload)):
        code, details = refused(call, message)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "--allow-management" in details


def statistics(stub, name="", version=""):
    """The statistics, by model and version."""
    message = inference_pb2.ModelStatisticsRequest(name=name, version=version)
    return {(each.name, each.version): each for each in stub.ModelStatistics(message).model_stats}


def test_statistics_count_requests_and_rows(stub):
    """Requests, rows, batches and failures are counted, with the time that they took."""
    before = statistics(stub, "rows")["rows", "1"]
    now = time.time() * 1000

    for _ in range(3):
        stub.ModelInfer(request("rows", x=np.ones((1, 3), np.float32)))
    refused(stub.ModelInfer, request("rows", y=X))
    after = statistics(stub, "rows", "1")["rows", "1"]

    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 3
    assert after.last_inference >= math.floor(now)
    for name, count in (
        ("success", 3),
        ("fail", 1),
        ("queue", 3),
        ("compute_input", 3),
        ("compute_infer", 3),
        ("compute_output", 3),
        ("cache_hit", 0),
    ):
        new, old = getattr(after.inference_stats, name), getattr(before.inference_stats, name)
        assert new.count - old.count == count, name
        assert new.ns >= old.ns
    whole, infer = after.inference_stats.success, after.inference_stats.compute_infer
    computed = infer.ns - before.inference_stats.compute_infer.ns
    assert 0 < computed < whole.ns - before.inference_stats.success.ns
    assert 1 in {batch.batch_size for batch in after.batch_stats}
    stub.ModelInfer(request("rows", x=np.ones((5, 3), np.float32)))
    # In how many batches is the plan's business.
    assert statistics(stub, "rows", "1")["rows", "1"].inference_count == after.inference_count + 5


def test_statistics_of_all_and_of_none(stub):
    """Without a name, all versions that answer are told; unknown ones are refused."""
    assert {("classes", "1"), ("classes", "2"), ("rows", "1")} <= statistics(stub).keys()
    assert statistics(stub, "classes").keys() == {("classes", "1"), ("classes", "2")}
    assert statistics(stub, "classes", "stable").keys() == {("classes", "2")}
    for name, version in (("no", ""), ("classes", "7"), ("oip-elsewhere", "")):
        message = inference_pb2.ModelStatisticsRequest(name=name, version=version)
        code, _ = refused(stub.ModelStatistics, message)
        assert code is not grpc.StatusCode.UNKNOWN


@pytest.fixture(scope="module")
def half_a_second(stub):
    """A request that keeps the device busy for about so long."""
    rounds, seconds = 1_000_000, 0.0
    while seconds < 0.1:
        rounds *= 4
        began = time.monotonic()
        stub.ModelInfer(request("slow", rounds=np.array(rounds, np.int32)))
        seconds = time.monotonic() - began
    return request("slow", id="slow", rounds=np.array(rounds * 0.5 / seconds, np.int32))


@pytest.fixture
def busy(stub, half_a_second):
    """Keeps the device busy, however many calls it runs at once."""
    calls = [stub.ModelInfer.future(half_a_second) for _ in range(os.cpu_count() or 1)]
    time.sleep(0.1)
    yield
    for call in calls:
        call.result()


QUICK = {"rounds": np.array(1, np.int32)}


def test_the_timeout_is_a_deadline(stub, busy):
    """A request whose parameter `timeout` passes while it waits is not executed."""
    message = request("slow", parameters={"timeout": 20_000}, **QUICK)
    code, _ = refused(stub.ModelInfer, message)

    # The queue may know beforehand that it takes too long.
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def test_a_cancelled_call_is_counted_as_failed(stub, busy):
    """A caller that leaves takes its request along."""
    before = statistics(stub, "slow")["slow", "1"].inference_stats.fail.count
    waiting = stub.ModelInfer.future(request("slow", **QUICK))
    time.sleep(0.1)

    waiting.cancel()

    for _ in range(100):
        if statistics(stub, "slow")["slow", "1"].inference_stats.fail.count > before:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the call was not counted")


def test_large_messages_pass(stub):
    """A request and an answer beyond --max-message-bytes fit one message."""
    x = np.full((9_000_000, 2), 2, np.float32)

    answer = stub.ModelInfer(request("same-float32", x=x))

    (raw,) = answer.raw_output_contents
    assert len(raw) == x.nbytes > 64 << 20
    assert raw[:4] == np.float32(2).tobytes()


def test_no_cuda_memory(stub):
    """Regions of CUDA memory are none; to clear them is no error, to register one is."""
    assert not stub.CudaSharedMemoryStatus(inference_pb2.CudaSharedMemoryStatusRequest()).regions
    stub.CudaSharedMemoryUnregister(inference_pb2.CudaSharedMemoryUnregisterRequest())
    message = inference_pb2.CudaSharedMemoryRegisterRequest(name="a", byte_size=1)
    code, details = refused(stub.CudaSharedMemoryRegister, message)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "CUDA" in details


def test_no_shared_memory_unless_allowed(stub):
    """Without --allow-shared-memory no region can be registered; to clear them is no error."""
    message = inference_pb2.SystemSharedMemoryRegisterRequest(name="a", key="/a", byte_size=1)
    code, details = refused(stub.SystemSharedMemoryRegister, message)

    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "--allow-shared-memory" in details
    stub.SystemSharedMemoryUnregister(inference_pb2.SystemSharedMemoryUnregisterRequest())
    status = inference_pb2.SystemSharedMemoryStatusRequest()
    assert not stub.SystemSharedMemoryStatus(status).regions


def test_streams_answer_as_they_are_ready(stub, half_a_second):
    """A quick request is answered before a slow one that came first, each by its id, and each
    answer is the last of its request.
    """
    quick = request("no", id="quick", x=X)

    answers = list(stub.ModelStreamInfer(iter([half_a_second, quick])))

    assert [answer.infer_response.id for answer in answers] == ["quick", "slow"]
    assert "no model 'no' here" in answers[0].error_message
    assert not answers[1].error_message
    for answer in answers:
        assert answer.infer_response.parameters["triton_final_response"].bool_param


def test_streams_hold_back(stub):
    """A stream of more requests than may run at once answers all of them."""
    messages = [request("rows", id=str(n), x=np.full((1, 3), n, np.float32)) for n in range(50)]

    answers = {
        answer.infer_response.id: arrays_of(answer.infer_response)["output"][0, 0]
        for answer in stub.ModelStreamInfer(iter(messages))
    }

    assert answers == {str(n): 2 * n for n in range(50)}


def test_a_stream_that_is_cancelled_leaves_the_worker_alone(stub, half_a_second):
    """After a caller ended its stream with requests in flight, others are answered."""
    sent = threading.Event()

    def messages():
        yield half_a_second
        sent.set()
        threading.Event().wait(30)

    stream = stub.ModelStreamInfer(messages())
    assert sent.wait(30)
    stream.cancel()

    assert stub.ModelInfer(request("rows", x=X), timeout=30).outputs


def test_health_and_reflection(channel):
    """gRPC's own services know the service: its health, and its description."""
    name = "inference.GRPCInferenceService"
    health = health_pb2_grpc.HealthStub(channel)
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)

    status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING  # one model cannot be served
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = reflection.ServerReflectionInfo(iter([asked]))
    assert name in [service.name for service in listed.list_services_response.service]
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    (found,) = reflection.ServerReflectionInfo(iter([asked]))
    assert found.file_descriptor_response.file_descriptor_proto


def test_a_worker_that_stops_ends_its_streams(publish, serving, exported, symbolic):
    """An open stream does not keep a worker from stopping: it is told to ask another."""
    publish("going", exported(lambda x: x, symbolic("b")).serialize())
    ended = []
    with serving("going") as running:
        running.wait_until_loaded()
        channel = grpc.insecure_channel(running.address)
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        answered = threading.Event()

        def messages():
            yield request("going", x=np.ones(1, np.float32))
            threading.Event().wait(30)

        def read():
            try:
                for _ in stub.ModelStreamInfer(messages()):
                    answered.set()
            except grpc.RpcError as error:
                ended.append(error.code())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert answered.wait(30)
        began = time.monotonic()
    took = time.monotonic() - began
    reader.join(30)
    channel.close()

    assert ended == [grpc.StatusCode.UNAVAILABLE]
    assert took < 4  # beyond the last words that a server that stops waits for


def test_every_state_has_a_name():
    """Each state of a version is one of the protocol's."""
    states = set(ServedState) - {ServedState.UNSPECIFIED}
    assert description._STATES.keys() == states
