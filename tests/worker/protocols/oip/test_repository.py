"""Models that are loaded and unloaded over the protocol."""

import asyncio
import threading
import time

import grpc
import httpx
import pytest

from servax_proto.oip import inference_pb2, inference_pb2_grpc

LOAD = "/v2/repository/models/{}/load"
UNLOAD = "/v2/repository/models/{}/unload"


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, serving):
    """A worker that serves nothing of its own accord, beside models that it may be told to."""
    program = exported(lambda x: x + 1, symbolic("b")).serialize()
    publish("come", program)
    publish("come", program, aliases=["stay"])
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("foreign", cuda)
    with serving(allow_management=True) as running:
        yield running


@pytest.fixture
def http(worker):
    """A client of its REST API; what it loaded is unloaded."""
    with httpx.Client(base_url=worker.http, timeout=60) as client:
        yield client
        for name in ("come", "foreign"):
            client.post(UNLOAD.format(name))


@pytest.fixture
def stub(worker):
    """A client over gRPC."""
    with grpc.insecure_channel(worker.address) as channel:
        yield inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def index(http):
    """The states, by name and version."""
    models = http.post("/v2/repository/index").json()
    return {(model["name"], model["version"]): model["state"] for model in models}


def test_load_answers_when_the_model_is_ready(http):
    """The newest version answers as soon as it is loaded, and no more once it is unloaded."""
    assert http.get("/v2/models/come/ready").status_code == 404

    assert http.post(LOAD.format("come")).status_code == 200
    assert http.get("/v2/models/come/ready").status_code == 200
    assert index(http) == {("come", "2"): "READY"}
    assert http.post(LOAD.format("come")).status_code == 200
    assert http.post(UNLOAD.format("come")).status_code == 200
    assert index(http) == {}
    assert http.get("/v2/models/come/ready").status_code == 404


def test_versions_and_aliases_are_loaded_by_name(stub, http):
    """A version by number and one by alias come and go alone; the model's name takes all."""
    load, unload = stub.RepositoryModelLoad, stub.RepositoryModelUnload
    for name in ("come:1", "come@stay"):
        load(inference_pb2.RepositoryModelLoadRequest(model_name=name))
    assert index(http) == {("come", "1"): "READY", ("come", "2"): "READY"}

    unload(inference_pb2.RepositoryModelUnloadRequest(model_name="come@stay"))
    assert index(http) == {("come", "1"): "READY"}
    load(inference_pb2.RepositoryModelLoadRequest(model_name="come"))
    unload(inference_pb2.RepositoryModelUnloadRequest(model_name="come"))
    assert index(http) == {}


def test_what_is_advertised(stub):
    """A worker that may be managed says so."""
    server = stub.ServerMetadata(inference_pb2.ServerMetadataRequest())

    assert "model_repository" in server.extensions


@pytest.mark.parametrize(
    ("path", "document", "status", "says"),
    [
        (LOAD.format("absent"), {}, 404, "cannot load 'absent': "),
        (LOAD.format("come:9"), {}, 404, "cannot load 'come:9': "),
        (LOAD.format("foreign"), {}, 400, "cannot load 'foreign': "),
        (LOAD.format("A"), {}, 400, "A"),
        (
            LOAD.format("come"),
            {"parameters": {"file:1/a": "", "config": "{}"}},
            501,
            "config, file",
        ),
        (UNLOAD.format("come"), None, 404, "'come' is not served; this worker serves nothing"),
    ],
)
def test_what_cannot_be_done(http, path, document, status, says):
    """What cannot be loaded or unloaded is told with its reason, and changes nothing."""
    response = http.post(path, json=document)

    assert (response.status_code, says in response.json()["error"]) == (status, True), response.text
    assert index(http).keys() <= {("foreign", "1")}


def test_a_load_ends_when_the_model_is_unloaded(worker, monkeypatch):
    """Who waits for a model that somebody else unloads meanwhile is told so."""
    gate = threading.Event()
    loaders = worker.server._versions
    assemble = loaders._assembler.assemble

    async def held(*arguments):
        await asyncio.to_thread(gate.wait, 30)
        return await assemble(*arguments)

    monkeypatch.setattr(loaders._assembler, "assemble", held)
    answers = []
    with httpx.Client(base_url=worker.http, timeout=60) as http:
        waiting = threading.Thread(target=lambda: answers.append(http.post(LOAD.format("come"))))
        waiting.start()
        with httpx.Client(base_url=worker.http, timeout=60) as other:
            for _ in range(100):
                if index(other):
                    break
                time.sleep(0.05)
            unloading = threading.Thread(target=lambda: other.post(UNLOAD.format("come")))
            unloading.start()
            waiting.join(30)
            gate.set()
            unloading.join(30)

    (answer,) = answers
    assert answer.status_code == 404
    assert "unloaded before it was ready" in answer.json()["error"]
