"""A worker over a real registry: what it serves, what it answers, and what it refuses."""

import re

import grpc
import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from servax import Client
from servax.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from servax.tensors import to_proto
from servax.types import ServedState
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.__main__ import main
from servax_worker.errors import StartupError

X = np.array([[1, 0, 2], [0, 1, 0]], np.float32)


@pytest.fixture(scope="module")
def models(publish, exported, symbolic, linear_program, linear_weights):
    """What the workers of this module serve."""
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    publish("linear", linear_program, weights=[linear_weights], aliases=["production"])
    publish("linear", linear_program, weights=[linear_weights], aliases=["canary"])
    publish(
        "two-ways",
        {
            "double": exported(lambda x: x * 2, symbolic("b")).serialize(),
            "halve": exported(lambda x: x / 2, symbolic("b")).serialize(),
        },
    )
    publish(
        "eights",
        exported(lambda x: x + 1, symbolic("b", constraints=["mod(b, 8) == 0"])).serialize(),
    )
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda", "tpu")).serialize()
    publish("for-cuda", cuda)
    constraints = ["t >= 2*b"]
    publish("tall", exported(lambda x: x + 1, symbolic("b, t", "float32", constraints)).serialize())
    publish("flags", exported(lambda x: ~x, jax.ShapeDtypeStruct((2,), jnp.bool)).serialize())
    return kernel


@pytest.fixture(scope="module")
def worker(models, serving):
    """A worker that serves all of them."""
    with serving(
        "linear",
        "linear@production",
        "linear:2",
        "two-ways",
        "eights",
        "tall",
        "for-cuda",
        "flags",
        "absent",
    ) as running:
        with Client(worker=running.address) as client:
            for name in ("linear", "linear@production", "two-ways", "eights", "tall", "flags"):
                client.wait_until_ready(name, timeout=60)
            with pytest.raises(FailedPrecondition):
                client.wait_until_ready("for-cuda", timeout=60)
        yield running


@pytest.fixture
def client(worker):
    """A client of it."""
    with Client(worker=worker.address) as client:
        yield client


@pytest.mark.parametrize("reference", ["linear", "linear:2", "linear@production"])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_answers_are_right(client, models, reference, rows):
    """By whatever name, for warmed-up and new sizes, the answer is that of the function."""
    x = np.resize(X, (rows, 3))
    outputs = client.predict(reference, {"x": x})

    np.testing.assert_allclose(outputs["scores"], x @ models + np.float32([1, 2, 3, 4]))
    np.testing.assert_array_equal(outputs["best"], np.argmax(outputs["scores"], -1))
    assert outputs["scores"].dtype == np.float32


def test_the_selected_version_answers(worker):
    """An answer tells the version: the newest where none is named, else the one that was."""
    with grpc.insecure_channel(worker.address) as channel:
        stub = prediction_pb2_grpc.PredictionStub(channel)
        inputs = {"x": to_proto(X)}
        answers = [
            stub.Predict(prediction_pb2.PredictRequest(model="linear", inputs=inputs, **selector))
            for selector in ({}, {"alias": "production"}, {"version": 1}, {"version": 2})
        ]

    assert [answer.version for answer in answers] == [2, 1, 1, 2]
    assert {answer.signature for answer in answers} == {"serving_default"}


def test_outputs_and_signatures_are_selected(client):
    """Only the named outputs come, from the named signature."""
    assert list(client.predict("linear", {"x": X}, outputs=["best"])) == ["best"]
    x = np.float32([2, 4])
    halves = client.predict("two-ways", {"x": x}, signature="halve")
    doubles = client.predict("two-ways", {"x": x}, signature="double")
    np.testing.assert_array_equal(halves["output"], [1, 2])
    np.testing.assert_array_equal(doubles["output"], [4, 8])


@pytest.mark.parametrize(
    ("reference", "inputs", "options", "kind", "message"),
    [
        ("nothing", {}, {}, NotFound, "no model 'nothing' here; this worker serves linear"),
        ("linear:9", {}, {}, NotFound, "no version 9 of 'linear' here; .* linear:2"),
        ("linear@canary", {}, {}, NotFound, r"no alias 'canary' .* linear@production \(version 1"),
        (
            "two-ways", {}, {}, NotFound,
            "two-ways version 1 has no signature 'serving_default'; it has double, halve",
        ),
        ("absent", {}, {}, Unavailable, r"absent is RESOLVING \(there is no model 'absent'"),
        (
            "for-cuda", {}, {}, FailedPrecondition,
            r"for-cuda \(version 1\) is FAILED .*exported for cuda, tpu, this worker runs on cpu",
        ),
        ("linear", {"y": X}, {}, InvalidArgument, "no input is called 'y'; missing input 'x'"),
        (
            "linear", {"x": X.astype(np.float64)}, {}, InvalidArgument,
            r"input 'x': got float64\[2,3\], the signature takes float32\[b,3\]; cast it",
        ),
        ("linear", {"x": X[0]}, {}, InvalidArgument, "it has 1 dimensions instead of 2"),
        ("linear", {"x": X[:, :2]}, {}, InvalidArgument, "dimension 1 is 2 instead of 3"),
        ("linear", {"x": X[:0]}, {}, InvalidArgument, "no size b >= 1"),
        ("linear", {"x": X}, {"outputs": ["z"]}, InvalidArgument, "gives 'best', 'scores'"),
        (
            "eights", {"x": np.zeros(4, np.float32)}, {}, InvalidArgument,
            r"b=4 does not meet .*'mod\(b, 8\) == 0'",
        ),
    ],
)  # fmt: skip
def test_bad_requests_are_explained(client, reference, inputs, options, kind, message):
    """Each kind of bad request gets its own status and a message that tells the remedy."""
    with pytest.raises(kind, match=message):
        client.predict(reference, inputs, **options)


def test_bytes_that_are_no_values_are_refused(worker):
    """A bool of 2, and data of the wrong length, are the caller's errors and name the input."""
    with grpc.insecure_channel(worker.address) as channel:
        stub = prediction_pb2_grpc.PredictionStub(channel)
        for data, message in [
            (b"\0\2", "input 'x': a byte of a bool array is outside of 0 to 1"),
            (b"\0", "input 'x': bool[2] takes 2 bytes of data, there are 1"),
        ]:
            tensor = to_proto(np.zeros(2, bool))
            tensor.data = data
            with pytest.raises(grpc.RpcError) as caught:
                stub.Predict(prediction_pb2.PredictRequest(model="flags", inputs={"x": tensor}))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == message


def test_warm_up_respects_constraints(client):
    """A program for multiples of 8 is READY with such sizes compiled."""
    np.testing.assert_array_equal(
        client.predict("eights", {"x": np.zeros(8, np.float32)})["output"], np.ones(8)
    )


def test_constraints_between_symbols_are_met(client):
    """A program whose symbols constrain each other is warmed up at sizes that it takes."""
    x = np.zeros((2, 5), np.float32)

    np.testing.assert_array_equal(client.predict("tall", {"x": x})["output"], x + 1)
    with pytest.raises(InvalidArgument, match="b=2, t=3 does not meet"):
        client.predict("tall", {"x": x[:, :3]})


def test_the_status_tells_everything(client):
    """States, reasons and signatures of all that is served can be read."""
    status = client.status()
    states = {(v.model, v.version, v.alias): v for v in status.versions}

    assert status.platform == "cpu"
    assert status.jax_version == jax.__version__
    assert states["linear", 1, "production"].state is ServedState.READY
    assert states["for-cuda", 1, ""].state is ServedState.FAILED
    assert states["absent", 0, ""].state is ServedState.RESOLVING
    assert [str(s) for s in states["linear", 2, ""].signatures[0].inputs] == ["x: float32[b,3]"]
    assert [v.model for v in client.status("eights").versions] == ["eights"]
    with pytest.raises(NotFound, match="no model 'nothing' here"):
        client.status("nothing")


def health(address, service=""):
    """What the health service says."""
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        reply = health_pb2_grpc.HealthStub(channel).Check(request)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


def ask_command(running):
    """What `servax-worker health` says of a worker."""
    address = running.http.removeprefix("http://")
    return CliRunner().invoke(main, ["health", "--http", address])


def test_a_program_that_is_too_new_is_served_by_another_encoding(
    registry, serving, publish, linear_program, linear_weights
):
    """Where this JAX cannot read the published program, it runs an encoding that it can."""
    newer = re.sub(rb"(StableHLO_v1\.)\d\d\.\d", rb"\g<1>99.9", bytes(linear_program))
    publish("too-new", newer, weights=[linear_weights])
    with Client(registry=registry) as client:
        version = client.add_encoding("too-new", linear_program)

    with serving("too-new") as running, Client(worker=running.address) as client:
        running.wait_until_loaded()
        answer = client.predict("too-new", {"x": np.ones((2, 3), np.float32)})
        (served,) = client.status().versions

    assert answer["scores"].shape == (2, 4)
    assert served.signatures[0].program == version.signatures[0].encodings[0].program


def test_health_waits_for_every_model(worker):
    """While one model is not READY the worker is not healthy: over gRPC, HTTP and the command."""
    reply = httpx.get(f"{worker.http}/healthz")
    command = ask_command(worker)

    assert health(worker.address) == "NOT_SERVING"
    assert reply.status_code == 503
    states = {v["model"]: v["state"] for v in reply.json()["versions"]}
    assert states["absent"] == "RESOLVING"
    assert httpx.get(f"{worker.http}/livez").status_code == 200
    assert command.exit_code == 1
    assert "not ready" in command.stderr
    assert "RESOLVING" in command.stderr


def test_it_is_healthy_once_everything_is_ready(serving, models):
    """With every model READY it is healthy everywhere, and metrics count what it did."""
    with serving("linear", "eights") as running, Client(worker=running.address) as client:
        running.wait_until_loaded()
        client.predict("linear", {"x": X})
        with pytest.raises(InvalidArgument):
            client.predict("linear", {"x": X[0]})
        with pytest.raises(NotFound):
            client.predict("nothing", {})

        assert httpx.get(f"{running.http}/healthz").json()["ready"] is True
        assert ask_command(running).exit_code == 0
        assert health(running.address) == "SERVING"
        assert health(running.address, "servax.v1.Prediction") == "SERVING"
        metrics = httpx.get(f"{running.http}/metrics").text

    labels = 'model="linear",result="{}",signature="serving_default",version="2"'
    assert f"servax_requests_total{{{labels.format('ok')}}} 1.0" in metrics
    assert f"servax_requests_total{{{labels.format('InvalidInput')}}} 1.0" in metrics
    assert 'servax_model_state{model="linear",reference="linear",state="READY"} 1.0' in metrics
    assert "servax_compute_seconds_count" in metrics
    assert 'source="cache"' in metrics


def test_services_are_reflected(worker):
    """A client that has no descriptors can ask for them."""
    with grpc.insecure_channel(worker.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = stub.ServerReflectionInfo(iter([request]))

    names = {service.name for service in reply.list_services_response.service}
    assert {"servax.v1.Prediction", "grpc.health.v1.Health"} <= names


def test_compiling_on_demand_can_be_forbidden(serving, models):
    """Then a size that was not warmed up is refused with those that were."""
    with (
        serving("linear", compile_on_demand=False, warm_up={"b": (2, 5)}) as running,
        Client(worker=running.address) as client,
    ):
        running.wait_until_loaded()
        assert client.predict("linear", {"x": X})["best"].shape == (2,)
        with pytest.raises(FailedPrecondition, match=r"nothing is compiled for b=3 .* b=2; b=5"):
            client.predict("linear", {"x": np.zeros((3, 3), np.float32)})


def test_large_requests_are_referred_to_the_stream(serving, models):
    """Beyond the limit for one message the error names size, limit and way out, which works."""
    x = np.zeros((200_000, 3), np.float32)
    with (
        serving("linear", max_message_bytes=1 << 20) as running,
        Client(worker=running.address) as client,
        grpc.insecure_channel(running.address) as channel,
    ):
        running.wait_until_loaded()
        stub = prediction_pb2_grpc.PredictionStub(channel)
        request = prediction_pb2.PredictRequest(model="linear", inputs={"x": to_proto(x)})
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{request.ByteSize()} bytes, Predict takes 1048576" in caught.value.details()
        assert "PredictStream" in caught.value.details()

        x = np.zeros((500_000, 3), np.float32)
        assert client.predict("linear", {"x": x})["scores"].shape == (500_000, 4)


def test_large_answers_are_referred_to_the_stream(serving, models):
    """An answer beyond the limit for one message is refused before it is computed, with the size;
    the client then asks for it in parts by itself.
    """
    x = np.zeros((80_000, 3), np.float32)
    with (
        serving("linear", max_message_bytes=1 << 20) as running,
        Client(worker=running.address) as client,
        grpc.insecure_channel(running.address) as channel,
    ):
        running.wait_until_loaded()
        stub = prediction_pb2_grpc.PredictionStub(channel)
        request = prediction_pb2.PredictRequest(model="linear", inputs={"x": to_proto(x)})
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the answer has" in caught.value.details()
        assert client.predict("linear", {"x": x})["scores"].shape == (80_000, 4)
        metrics = httpx.get(f"{running.http}/metrics").text

    assert 'model="linear",result="TooLarge",signature="serving_default"' in metrics


@pytest.mark.parametrize("method", ["Predict", "PredictStream"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"], ids=["garbage", "UTF-8"])
def test_what_is_no_message_is_refused(worker, method, data):
    """Bytes that are not protobuf, and text that is not UTF-8, are the caller's errors."""
    if method == "PredictStream":
        data = b"\x12" + bytes([len(data)]) + data
    with grpc.insecure_channel(worker.address) as channel:
        make = channel.unary_unary if method == "Predict" else channel.stream_stream
        call = make(f"/servax.v1.Prediction/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(data) if method == "Predict" else list(call(iter([data])))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message of the API" in caught.value.details()


def test_too_many_names_are_refused(worker):
    """A request with more arrays than any program has is refused before they are looked at."""
    tensor = to_proto(np.zeros(1, np.float32))
    many = [str(index) for index in range((1 << 16) + 1)]
    with grpc.insecure_channel(worker.address) as channel:
        stub = prediction_pb2_grpc.PredictionStub(channel)
        for fields in ({"inputs": dict.fromkeys(many, tensor)}, {"outputs": many}):
            with pytest.raises(grpc.RpcError, match=r"65537 .*puts; a request has at most 65536"):
                stub.Predict(prediction_pb2.PredictRequest(model="linear", **fields))


def test_a_stream_has_its_own_limit(serving, models):
    """A request in parts that exceeds the worker's limit is refused with the limit."""
    with (
        serving("linear", max_request_bytes=3 << 20) as running,
        Client(worker=running.address) as client,
    ):
        running.wait_until_loaded()
        with pytest.raises(ResourceExhausted, match="more than 3145728 bytes"):
            client.predict("linear", {"x": np.zeros((500_000, 3), np.float32)})


def test_a_registry_that_is_away_is_waited_for(
    serving, start, tmp_path, linear_program, linear_weights, unused_address
):
    """A worker that starts first says that the registry is away, and loads once it is there."""
    with (
        serving("late", registry=unused_address) as running,
        Client(registry=unused_address, worker=running.address) as client,
    ):
        with pytest.raises(Unavailable, match="late is RESOLVING"):
            client.predict("late", {"x": X})
        start("servax_registry", "--db", f"sqlite:///{tmp_path}/r.db", "--listen", unused_address)
        client.push("late", bytes(linear_program), weights=[linear_weights])
        client.wait_until_ready("late", timeout=60)

        assert client.predict("late", {"x": X})["best"].shape == (2,)


def test_a_taken_port_is_told(serving, worker, models):
    """An address that is in use, or none, ends the start with the address and the reason."""
    for settings, message in [
        ({"listen": worker.address}, "cannot listen on .*: Address already in use"),
        ({"http": worker.address}, "cannot listen on .*: Address already in use"),
        ({"listen": "8500"}, "'8500' is no address; give HOST:PORT"),
        ({"http": "127.0.0.1:99999"}, "is no address"),
    ]:
        with pytest.raises(StartupError, match=message), serving("linear", **settings):
            pass


def test_a_cache_that_cannot_be_used_is_told(serving, tmp_path):
    """A cache directory that is a file ends the start with its path."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartupError, match="cannot use the cache directory"),
        serving("linear", cache_directory=tmp_path / "file"),
    ):
        pass
