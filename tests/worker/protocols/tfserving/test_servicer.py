"""TensorFlow Serving's gRPC services over a real worker."""

import grpc
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from servax.types import Batching, ServedState, ServedVersion
from servax_proto.tfserving import serving_pb2, serving_pb2_grpc, tensor_pb2
from servax_worker.protocols.tfserving import convert
from servax_worker.protocols.tfserving.tensors import from_proto, to_proto

X = np.array([[1, 0, 2], [0, 1, 0]], np.float32)
SCORES = np.array([[17, 21, 25, 29], [5, 7, 9, 11]], np.float32)


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, linear_program, linear_weights, serving):
    """A worker that serves a few models."""
    publish("line", linear_program, weights=[linear_weights])
    publish("line", linear_program, weights=[linear_weights], aliases=["stable"])
    publish(
        "shapes",
        {
            "serving_default": exported(
                lambda x, n: {"y": x + n, "z": x.sum(-1)},
                symbolic("2*b, 4", "bfloat16"),
                jax.ShapeDtypeStruct((), jnp.int32),
            ).serialize(),
            "half": exported(lambda x: x / 2, symbolic("b")).serialize(),
        },
    )
    sixteen = exported(lambda x: x * 2, jax.ShapeDtypeStruct((16, 3), jnp.float32)).serialize()
    publish("sixteen", sixteen)
    publish("sixteens", sixteen, batching=Batching(""))
    e8m0 = jax.ShapeDtypeStruct((2,), jnp.float8_e8m0fnu)
    publish("eights", exported(lambda x: x, e8m0).serialize())
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("elsewhere", cuda)
    with serving(
        "line",
        "line@stable",
        "line:1",
        "shapes",
        "sixteen",
        "sixteens",
        "eights",
        "elsewhere",
        max_message_bytes=1 << 20,
    ) as running:
        running.wait_until_loaded()
        yield running


@pytest.fixture(scope="module")
def channel(worker):
    """A connection to it."""
    with grpc.insecure_channel(worker.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def prediction(channel):
    """The service for predictions."""
    return serving_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def models(channel):
    """The service for states."""
    return serving_pb2_grpc.ModelServiceStub(channel)


def spec(name, version=None, **fields):
    """A ModelSpec."""
    if version is not None:
        fields["version"] = Int64Value(value=version)
    return serving_pb2.ModelSpec(name=name, **fields)


def request(model_spec, outputs=(), **inputs):
    """A PredictRequest."""
    return serving_pb2.PredictRequest(
        model_spec=model_spec,
        inputs={
            name: value
            if isinstance(value, tensor_pb2.TensorProto)
            else to_proto(np.asarray(value), content=True)
            for name, value in inputs.items()
        },
        output_filter=outputs,
    )


def refusal(call, message):
    """The status of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(message, timeout=30)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize(
    ("model_spec", "answered_by"),
    [
        (spec("line"), 2),
        (spec("line", 1), 1),
        (spec("line", version_label="stable"), 2),
        (spec("line", version_label="1"), 1),
        (spec("line", version_label="", signature_name="serving_default"), 2),
    ],
    ids=["newest", "number", "label", "label that is a number", "empty label"],
)
@pytest.mark.parametrize("content", [True, False])
def test_predict(prediction, model_spec, answered_by, content):
    """A model answers, however its version is named, and says which version it was."""
    response = prediction.Predict(request(model_spec, x=to_proto(X, content=content)))

    assert response.model_spec == spec("line", answered_by, signature_name="serving_default")
    assert from_proto(response.outputs["best"], 1000).tolist() == [3, 3]
    assert response.outputs["scores"].float_val == SCORES.ravel().tolist()
    assert response.outputs["scores"].tensor_shape.dim[0].size == 2
    assert not response.outputs["scores"].tensor_content


def test_output_filter(prediction):
    """Only the outputs that were named come back."""
    response = prediction.Predict(request(spec("line"), ["best"], x=X))

    assert list(response.outputs) == ["best"]


def test_a_signature_and_a_narrow_type(prediction):
    """Signatures are called by their names; bfloat16 comes and goes."""
    x = np.ones((2, 4), jnp.bfloat16)

    sums = prediction.Predict(request(spec("shapes"), ["y"], x=x, n=np.int32(2)))
    half = prediction.Predict(request(spec("shapes", signature_name="half"), x=np.float32([3])))

    assert from_proto(sums.outputs["y"], 1000).tolist() == [[3] * 4] * 2
    assert half.outputs["output"].float_val == [1.5]
    assert half.model_spec.signature_name == "half"


@pytest.mark.parametrize("rows", [1, 16, 100])
def test_any_number_of_rows_where_batching_is_declared(prediction, rows):
    """A program for 16 rows answers 1 and 100, padded and cut."""
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)

    response = prediction.Predict(request(spec("sixteens"), x=x))

    assert from_proto(response.outputs["output"], 10000).tolist() == (x * 2).tolist()


def test_a_wrong_number_of_rows_names_both(prediction):
    """Where batching is not declared, an error says what came and what is taken."""
    code, details = refusal(
        prediction.Predict, request(spec("sixteen"), x=np.ones((100, 3), np.float32))
    )

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "dimension 0 is 100 instead of 16" in details


STRING = tensor_pb2.TensorProto(dtype=tensor_pb2.DT_STRING, string_val=[b"text"])


HUGE = tensor_pb2.TensorProto(
    dtype=tensor_pb2.DT_FLOAT,
    tensor_shape={"dim": [{"size": 1 << 20}, {"size": 3}]},
    float_val=[1],
)
REFUSED = {
    "no model": (request(spec(""), x=X), "INVALID_ARGUMENT", "model_spec names no model"),
    "model": (request(spec("no"), x=X), "NOT_FOUND", "no model 'no' here; this worker serves"),
    "version": (request(spec("line", 9), x=X), "NOT_FOUND", "no version 9 of 'line' here"),
    "number as label": (
        request(spec("line", version_label="9"), x=X),
        "NOT_FOUND",
        "no version 9 of 'line' here",
    ),
    "label": (request(spec("line", version_label="no"), x=X), "NOT_FOUND", "no alias 'no' of"),
    "signature": (
        request(spec("line", signature_name="no"), x=X),
        "NOT_FOUND",
        "no signature 'no'; it has serving_default",
    ),
    "missing input": (request(spec("line")), "INVALID_ARGUMENT", "missing input 'x'"),
    "more inputs": (
        request(spec("line"), x=X, y=X),
        "INVALID_ARGUMENT",
        "no input is called 'y'",
    ),
    "output": (request(spec("line"), ["no"], x=X), "INVALID_ARGUMENT", "no output is called 'no'"),
    "dtype": (
        request(spec("line"), x=X.astype(np.float64)),
        "INVALID_ARGUMENT",
        "got float64[2,3], the signature takes float32[b,3]; cast it",
    ),
    "text": (request(spec("line"), x=STRING), "INVALID_ARGUMENT", "input 'x': DT_STRING: programs"),
    "large request": (
        request(spec("line"), x=np.ones((1 << 17, 3), np.float32)),
        "RESOURCE_EXHAUSTED",
        "bytes, Predict takes 1048576",
    ),
    "large array": (
        request(spec("line"), x=HUGE),
        "RESOURCE_EXHAUSTED",
        "input 'x': float32[1048576, 3] has 12582912 bytes",
    ),
    "failed": (
        request(spec("elsewhere"), x=X),
        "FAILED_PRECONDITION",
        "elsewhere (version 1) is FAILED",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(prediction, case):
    """What cannot be answered is refused with the status that fits and a sentence that helps."""
    message, code, words = REFUSED[case]

    found, details = refusal(prediction.Predict, message)

    assert found.name == code
    assert words in details


def test_what_tensorflow_serving_has_and_servax_does_not(prediction):
    """The other methods say that they are not offered, and what to do."""
    for call, message, words in (
        (prediction.Classify, serving_pb2.ClassificationRequest(), "send the inputs as tensors"),
        (prediction.Regress, serving_pb2.RegressionRequest(), "send the inputs as tensors"),
        (prediction.MultiInference, serving_pb2.MultiInferenceRequest(), "send the inputs"),
    ):
        code, details = refusal(call, message)

        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert words in details


def test_metadata(prediction):
    """Signatures tell types and shapes, -1 where any size will do."""
    response = prediction.GetModelMetadata(
        serving_pb2.GetModelMetadataRequest(
            model_spec=spec("shapes"), metadata_field=["signature_def"]
        )
    )
    signatures = serving_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    default = signatures.signature_def["serving_default"]

    assert response.model_spec == spec("shapes", 1)
    assert sorted(signatures.signature_def) == ["half", "serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert default.inputs["x"].dtype == tensor_pb2.DT_BFLOAT16
    assert [dim.size for dim in default.inputs["x"].tensor_shape.dim] == [-1, 4]
    assert default.inputs["x"].tensor_shape.dim[0].name == "2*b"
    assert default.inputs["n"].dtype == tensor_pb2.DT_INT32
    assert not default.inputs["n"].tensor_shape.dim
    assert default.outputs["y"].name == "y"


@pytest.mark.parametrize(
    ("model_spec", "field", "code", "words"),
    [
        (spec("line"), [], "INVALID_ARGUMENT", "metadata_field is []"),
        (spec("line"), ["init"], "INVALID_ARGUMENT", "['signature_def'] is all"),
        (spec("absent"), ["signature_def"], "NOT_FOUND", "no model 'absent'"),
        (spec("elsewhere"), ["signature_def"], "FAILED_PRECONDITION", "FAILED"),
        (spec("eights"), ["signature_def"], "UNIMPLEMENTED", "no type for float8_e8m0fnu"),
    ],
)
def test_no_metadata(prediction, model_spec, field, code, words):
    """Metadata that there is not is refused."""
    message = serving_pb2.GetModelMetadataRequest(model_spec=model_spec, metadata_field=field)

    found, details = refusal(prediction.GetModelMetadata, message)

    assert found.name == code
    assert words in details


def states(response):
    """Give (version, state) of each."""
    State = serving_pb2.ModelVersionStatus.State
    return [(each.version, State.Name(each.state)) for each in response.model_version_status]


def test_status(models):
    """Each version of a model is listed once, the newest first; one can be asked for."""

    def ask(**fields):
        message = serving_pb2.GetModelStatusRequest(model_spec=spec(**fields))
        return models.GetModelStatus(message)

    assert states(ask(name="line")) == [(2, "AVAILABLE"), (1, "AVAILABLE")]
    assert states(ask(name="line", version=1)) == [(1, "AVAILABLE")]
    assert states(ask(name="line", version_label="stable")) == [(2, "AVAILABLE")]
    (failed,) = ask(name="elsewhere").model_version_status
    assert failed.state == serving_pb2.ModelVersionStatus.END
    assert failed.status.error_code == serving_pb2.StatusProto.FAILED_PRECONDITION
    assert "cuda" in failed.status.error_message


@pytest.mark.parametrize(
    ("model_spec", "words"),
    [
        (spec("absent"), "no model 'absent'"),
        (spec("line", 7), "no version 7 of 'line' here; there is version 1, version 2"),
        (spec("line", version_label="new"), "no alias 'new' of 'line'"),
    ],
)
def test_no_status(models, model_spec, words):
    """What is not served has no state."""
    code, details = refusal(
        models.GetModelStatus, serving_pb2.GetModelStatusRequest(model_spec=model_spec)
    )

    assert code is grpc.StatusCode.NOT_FOUND
    assert words in details


@pytest.mark.parametrize("state", sorted(set(ServedState) - {ServedState.UNSPECIFIED}, key=str))
def test_every_state_has_its_counterpart(state):
    """Each of a version's states is one of TensorFlow Serving's."""
    served = ServedVersion("m", 1, "", state, "why", ())
    (status,) = convert.status_to_proto([served], spec("m")).model_version_status

    assert status.state != serving_pb2.ModelVersionStatus.UNKNOWN
    assert bool(status.status.error_message) is (state is ServedState.FAILED)


def test_two_references_to_a_version(models):
    """Where a version is served twice, the state in which it can be called counts."""
    served = [
        ServedVersion("m", 3, alias, state, "", ())
        for alias, state in (
            ("a", ServedState.DRAINING),
            ("b", ServedState.READY),
            ("c", ServedState.COMPILING),
        )
    ]

    assert states(convert.status_to_proto(served, spec("m"))) == [(3, "AVAILABLE")]


def test_answers_as_bytes(serving, worker):
    """With --tensor-content, answers have their elements as bytes."""
    with serving("line", tensor_content=True) as other:
        other.wait_until_loaded()
        with grpc.insecure_channel(other.address) as channel:
            stub = serving_pb2_grpc.PredictionServiceStub(channel)
            response = stub.Predict(request(spec("line"), ["scores"], x=X))

    assert response.outputs["scores"].tensor_content == SCORES.tobytes()
    assert not response.outputs["scores"].float_val


def test_reflection_and_health(channel, worker):
    """Reflection lists and describes the services; each has a health of its own."""
    ask = reflection_pb2.ServerReflectionRequest
    symbol = "tensorflow.serving.PredictionService"
    listed, described = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([ask(list_services=""), ask(file_containing_symbol=symbol)])
    )
    names = {service.name for service in listed.list_services_response.service}
    health = health_pb2_grpc.HealthStub(channel)

    assert {symbol, "tensorflow.serving.ModelService"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
    health.Check(health_pb2.HealthCheckRequest(service=symbol))
