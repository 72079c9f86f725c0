"""Operators load and unload models while the worker runs."""

import gc
import threading
import weakref

import grpc
import httpx
import numpy as np
import pytest

from servax import Client
from servax.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from servax.types import ServedState
from servax_proto.v1 import management_pb2, management_pb2_grpc
from servax_worker.assembly import LoadedVersion

X = np.array([[1, 0, 2]], np.float32)


@pytest.fixture(scope="module")
def models(publish, linear_program, linear_weights):
    """What can be loaded: two versions."""
    for _ in range(2):
        publish("managed", linear_program, weights=[linear_weights], aliases=["production"])


@pytest.fixture
def worker(models, serving):
    """A worker that may be managed and serves nothing yet."""
    with serving(allow_management=True, poll=0.05) as worker:
        yield worker


@pytest.fixture
def client(registry, worker):
    """A client of both."""
    with Client(registry=registry, worker=worker.address) as client:
        yield client


def served(versions):
    """The versions and their states."""
    return [(each.version, each.state.name) for each in versions]


def test_models_come_and_go(client, worker):
    """A worker without models is healthy; what is loaded answers, and what is unloaded leaves
    neither memory nor metrics.
    """
    assert httpx.get(f"{worker.http}/healthz").status_code == 200
    (loading,) = client.load("managed@production")
    assert (loading.model, loading.alias) == ("managed", "production")
    assert client.wait_until_ready("managed@production").version == 2
    assert served(client.load("managed@production")) == [(2, "READY")]
    assert len(client.status("managed").versions) == 1
    assert client.predict("managed@production", {"x": X})["best"].shape == (1,)
    parts = [
        weakref.ref(each)
        for each in gc.get_objects()
        if isinstance(each, LoadedVersion) and each.version.model == "managed"
    ]
    assert len(parts) == 1

    assert served(client.unload("managed@production")) == [(2, "DRAINING")]
    assert client.unload("managed@production") == ()
    gc.collect()
    assert parts[0]() is None
    with pytest.raises(NotFound, match="no model 'managed' here"):
        client.predict("managed@production", {"x": X})
    assert 'reference="managed@production"' not in httpx.get(f"{worker.http}/metrics").text


def test_references_are_apart(client):
    """A version that another reference holds as well stays when one is unloaded."""
    for reference in ("managed:2", "managed"):
        client.load(reference)
        client.wait_until_ready(reference)
    client.unload("managed")

    assert served(client.status("managed").versions) == [(2, "READY")]
    assert client.predict("managed:2", {"x": X})["best"].shape == (1,)


def test_calls_in_flight_are_finished(client, publish, slow_program):
    """What runs when its model is unloaded is answered, and unloading returns after that."""
    publish("managed-slow", slow_program)
    client.load("managed-slow")
    client.wait_until_ready("managed-slow")
    answers = []

    def call():
        answers.append(client.predict("managed-slow", {"rounds": np.int32(200_000_000)}))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(0.3)  # for it to get there
    client.unload("managed-slow")
    thread.join()

    assert list(answers[0]) == ["output"]


def test_what_has_failed_is_tried_again(client, publish, exported, symbolic):
    """Loading what has FAILED tries it anew; loading what is there changes nothing."""
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("managed-failing", cuda)
    for _ in range(2):
        (again,) = client.load("managed-failing")
        assert again.state is not ServedState.FAILED
        with pytest.raises(FailedPrecondition, match="exported for cuda"):
            client.wait_until_ready("managed-failing")


def test_what_is_not_allowed_is_told(models, serving):
    """A worker that was not started for it refuses, and says which option it takes."""
    with serving("managed") as worker, Client(worker=worker.address) as client:
        for call in (client.load, client.unload):
            with pytest.raises(PermissionDenied, match="--allow-management"):
                call("managed:1")


def test_names_that_cannot_be_are_refused(worker):
    """A name, a number or an alias that cannot exist is INVALID_ARGUMENT."""
    with grpc.insecure_channel(worker.address) as channel:
        stub = management_pb2_grpc.WorkerManagementStub(channel)
        for fields in ({"model": "Bad Name"}, {"model": "m", "version": -1}, {"model": ""}):
            for method, kind in (
                (stub.LoadModel, management_pb2.LoadModelRequest),
                (stub.UnloadModel, management_pb2.UnloadModelRequest),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    method(kind(**fields))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_nothing_is_taken_for_a_reference(client):
    """A reference that is none never leaves the client."""
    with pytest.raises(InvalidArgument):
        client.load("Bad Name")
