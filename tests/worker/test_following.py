"""A worker over a real registry follows moves without a gap, and releases what it left."""

import gc
import threading
import time
import weakref
from functools import partial

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.numpy import save_file

from servax import Client
from servax.errors import FailedPrecondition, NotFound
from servax.tensors import from_bytes, to_proto
from servax.types import ServedState
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.assembly import LoadedVersion

X = np.array([[1, 0, 2]], np.float32)
POLL = 0.05


@pytest.fixture
def publish_linear_to(linear_program, tmp_path):
    """Publishes `linear` to a registry, with a bias that is the version's number."""

    def publish_linear_to(address, name, number, **options):
        path = tmp_path / f"{number}.safetensors"
        zeros, bias = np.zeros((3, 4), np.float32), np.full(4, number, np.float32)
        save_file({"dense.kernel": zeros, "dense.bias": bias}, path)
        with Client(registry=address) as client:
            version = client.push(name, linear_program, weights=[path], **options)
        assert version.number == number

    return publish_linear_to


@pytest.fixture
def publish_linear(publish_linear_to, registry):
    """Publishes `linear` as `publish_linear_to` does, to the registry that all share."""
    return partial(publish_linear_to, registry)


def wait_for(condition):
    """Waits until something is so; the suite's time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


def states(client, model):
    """The versions of a model and their states."""
    return [(served.version, served.state.name) for served in client.status(model).versions]


class Caller(threading.Thread):
    """Calls without a pause, and notes which version was current before and after each call."""

    def __init__(self, address, model):
        super().__init__()
        self.address, self.model = address, model
        self.stop = threading.Event()
        self.calls = []
        self.error = None

    def run(self):
        """Calls until told to stop; an error ends it."""
        try:
            with grpc.insecure_channel(self.address) as channel:
                stub = prediction_pb2_grpc.PredictionStub(channel)
                request = prediction_pb2.PredictRequest(
                    model=self.model, alias="production", inputs={"x": to_proto(X)}
                )
                before = self.current(stub)
                while not self.stop.is_set():
                    answer = stub.Predict(request)
                    after = self.current(stub)
                    scores = answer.outputs["scores"]
                    value = from_bytes(scores.dtype, scores.shape, scores.data)[0, 0]
                    self.calls.append((before, answer.version, after, value))
                    before = after
        except Exception as error:
            self.error = error

    def current(self, stub):
        """The version that the worker says is READY."""
        status = stub.GetStatus(prediction_pb2.GetStatusRequest(model=self.model))
        state = prediction_pb2.ServedVersion.READY
        (version,) = [served.version for served in status.versions if served.state == state]
        return version


def test_moves_under_load(registry, serving, publish_linear):
    """While four callers run and the alias goes forth and back, no request fails, every answer is
    of a version that was current when it was sent or received, health stays SERVING, and in the
    end only the last version is there.
    """
    publish_linear("moving", 1, aliases=["production"])
    publish_linear("moving", 2)
    publish_linear("moving", 3)
    with (
        serving("moving@production", poll=POLL) as worker,
        Client(registry=registry, worker=worker.address) as client,
        grpc.insecure_channel(worker.address) as channel,
    ):
        worker.wait_until_loaded()
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        healths = []

        def watch():
            try:
                healths.extend(reply.status for reply in health)
            except grpc.RpcError:
                return  # cancelled below

        watcher = threading.Thread(target=watch)
        watcher.start()
        callers = [Caller(worker.address, "moving") for _ in range(4)]
        for caller in callers:
            caller.start()
        for number in (2, 3, 1, 2, 1, 3):
            client.set_alias("moving", "production", number)
            for caller in callers:  # so that a call sees one move at most
                wait_for(
                    lambda caller=caller, number=number: (
                        caller.error or (caller.calls and caller.calls[-1][1] == number)
                    )
                )
        for caller in callers:
            caller.stop.set()
            caller.join()
        wait_for(lambda: states(client, "moving") == [(3, "READY")])
        health.cancel()
        watcher.join()

    assert [caller.error for caller in callers] == [None] * 4
    for caller in callers:
        for before, version, after, value in caller.calls:
            assert version in (before, after)
            assert value == version
    assert set(healths) == {health_pb2.HealthCheckResponse.SERVING}


def test_the_old_version_is_released(registry, serving, publish_linear):
    """When the newest version is served, nothing of the one before is alive, save for what both
    compiled: neither its weights nor its executables.
    """
    publish_linear("released", 1)
    with (
        serving("released", poll=POLL) as worker,
        Client(registry=registry, worker=worker.address) as client,
    ):
        worker.wait_until_loaded()
        client.predict("released", {"x": np.resize(X, (5, 3))})  # compiled on demand
        parts = []
        for loaded in gc.get_objects():
            if isinstance(loaded, LoadedVersion) and loaded.version.model == "released":
                parts.append(weakref.ref(loaded))
                for executable in loaded.signatures["serving_default"].executables:
                    arrays = executable._weights.values()
                    parts += map(weakref.ref, (executable, *arrays))
        del loaded, executable, arrays
        assert len(parts) == 1 + 5 * (1 + 2)

        publish_linear("released", 2)
        wait_for(lambda: states(client, "released") == [(2, "READY")])
        wait_for(lambda: gc.collect() is not None and not any(part() for part in parts))
        assert client.predict("released", {"x": X})["scores"][0, 0] == 2


def test_a_failing_new_version_leaves_the_old_one(
    registry, serving, publish, publish_linear, exported, symbolic
):
    """The old version answers, health and metrics say so, and the new one's reason is readable; the
    next version that can be served takes over.
    """
    publish_linear("failing", 1, aliases=["production"])
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    with (
        serving("failing@production", poll=POLL) as worker,
        Client(registry=registry, worker=worker.address) as client,
    ):
        worker.wait_until_loaded()
        publish("failing", cuda, aliases=["production"])
        wait_for(lambda: states(client, "failing") == [(1, "READY"), (2, "FAILED")])

        assert "exported for cuda" in client.status("failing").versions[1].detail
        assert client.predict("failing@production", {"x": X})["scores"][0, 0] == 1
        assert client.wait_until_ready("failing@production").version == 1
        with pytest.raises(FailedPrecondition, match=r"\(version 2\) is FAILED .*for cuda"):
            client.predict("failing:2", {"x": X})
        healthz = httpx.get(f"{worker.http}/healthz")
        assert healthz.status_code == 200
        assert [v["state"] for v in healthz.json()["versions"]] == ["READY", "FAILED"]
        labels = 'model="failing",reference="failing@production"'
        metrics = httpx.get(f"{worker.http}/metrics").text
        for line in (
            f'servax_model_state{{{labels},state="READY"}} 1.0',
            f'servax_model_state{{{labels},state="FAILED"}} 1.0',
            f"servax_model_version{{{labels}}} 1.0",
        ):
            assert line in metrics.splitlines()

        publish_linear("failing", 3, aliases=["production"])
        wait_for(lambda: states(client, "failing") == [(3, "READY")])
        metrics = httpx.get(f"{worker.http}/metrics").text
        assert f'servax_model_state{{{labels},state="FAILED"}} 0.0' in metrics
        assert f"servax_model_version{{{labels}}} 3.0" in metrics
        with pytest.raises(NotFound, match="no version 1 of 'failing' here"):
            client.predict("failing:1", {"x": X})


def test_a_registry_that_goes_changes_nothing(
    start, serving, linear_program, linear_weights, tmp_path
):
    """A worker whose registry has gone serves on, is healthy, and says that it cannot follow."""
    registry = start(
        "servax_registry", "--db", f"sqlite:///{tmp_path}/r.db", "--listen", "127.0.0.1:0"
    )
    with Client(registry=registry.address) as client:
        client.push("left", linear_program, weights=[linear_weights])
    with (
        serving("left", registry=registry.address, poll=POLL) as worker,
        Client(worker=worker.address) as client,
    ):
        worker.wait_until_loaded()
        registry.stop()
        wait_for(lambda: client.status("left").versions[0].detail)

        (served,) = client.status("left").versions
        assert served.state is ServedState.READY
        assert "whether left has moved is not known" in served.detail
        assert client.predict("left", {"x": X})["best"].shape == (1,)
        assert httpx.get(f"{worker.http}/healthz").status_code == 200


def test_a_restart_without_the_registry_serves_what_it_served(
    start, serving, publish_linear_to, tmp_path
):
    """A worker that starts while its registry is away serves from its cache what it served last,
    and says so; when the registry is back, it follows again.
    """
    options = ("--db", f"sqlite:///{tmp_path}/r.db", "--listen")
    registry = start("servax_registry", *options, "127.0.0.1:0")
    address, cache = registry.address, tmp_path / "cache"
    publish_linear_to(address, "kept", 1, aliases=["production"])
    models = ("kept@production", "kept:1")
    with serving(*models, registry=address, cache_directory=cache) as worker:
        worker.wait_until_loaded()
    registry.stop()
    with (
        serving(*models, registry=address, cache_directory=cache, poll=POLL) as worker,
        Client(registry=address, worker=worker.address) as client,
    ):
        worker.wait_until_loaded()
        assert states(client, "kept") == [(1, "READY")] * 2
        by_alias, by_number = client.status("kept").versions
        assert "is not known" in by_alias.detail
        assert by_number.detail.startswith("served as before, for kept:1 is not known")
        assert client.predict("kept@production", {"x": X})["scores"][0, 0] == 1

        start("servax_registry", *options, address)
        publish_linear_to(address, "kept", 2, aliases=["production"])
        wait_for(lambda: states(client, "kept") == [(2, "READY"), (1, "READY")])
        assert client.predict("kept@production", {"x": X})["scores"][0, 0] == 2


def test_references_to_one_version_share_it(registry, serving, publish_linear):
    """A version that three references point to is compiled once, and lives until the last has
    moved away.
    """
    publish_linear("shared", 1, aliases=["a", "b"])
    publish_linear("shared", 2)
    with (
        serving("shared@a", "shared@b", "shared:1", poll=POLL) as worker,
        Client(registry=registry, worker=worker.address) as client,
    ):
        worker.wait_until_loaded()
        loaded = [
            weakref.ref(each)
            for each in gc.get_objects()
            if isinstance(each, LoadedVersion) and each.version.model == "shared"
        ]
        assert len(loaded) == 1
        client.set_alias("shared", "a", 2)
        wait_for(lambda: states(client, "shared")[0] == (2, "READY"))
        assert client.predict("shared@a", {"x": X})["scores"][0, 0] == 2
        assert client.predict("shared@b", {"x": X})["scores"][0, 0] == 1
        client.set_alias("shared", "b", 2)
        wait_for(lambda: states(client, "shared") == [(2, "READY"), (2, "READY"), (1, "READY")])
        assert client.predict("shared:1", {"x": X})["scores"][0, 0] == 1
        assert loaded[0]() is not None
