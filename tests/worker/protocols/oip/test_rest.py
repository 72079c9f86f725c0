"""The REST API over a real worker, and how errors become its statuses."""

import asyncio
import gzip
import json

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from starlette.applications import Starlette

from servax.types import Batching
from servax_worker import errors, interceptors
from servax_worker.protocols.oip import rest

X = np.array([[1, 0, 2], [0, 1, 0]], np.float32)
SCORES = [[17, 21, 25, 29], [5, 7, 9, 11]]
HEADER = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, linear_program, linear_weights, serving):
    """A worker that serves a few models."""
    publish("scores", linear_program, weights=[linear_weights])
    publish("scores", linear_program, weights=[linear_weights], aliases=["green"])
    publish("many", exported(lambda x: x, symbolic("b")).serialize(), batching=Batching("b"))
    publish("bits", exported(lambda x: x, jax.ShapeDtypeStruct((2,), jnp.int4)).serialize())
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("gone", cuda)
    served = "scores", "scores:1", "scores@green", "many", "bits", "gone"
    with serving(*served, max_request_bytes=1 << 16, max_message_bytes=1 << 10) as running:
        running.wait_until_loaded()
        yield running


@pytest.fixture(scope="module")
def http(worker):
    """A client of it."""
    with httpx.Client(base_url=worker.http) as client:
        yield client


def document(**changes):
    """A request of JSON alone."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}
    return {"inputs": [x], **changes}


@pytest.mark.parametrize("version", ["", "/versions/2", "/versions/green"])
def test_infer_with_json(http, version):
    """A call in JSON is answered in JSON, by the version that its path names."""
    response = http.post(f"/v2/models/scores{version}/infer", json=document(id="seven"))

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert HEADER not in response.headers
    answer = response.json()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("scores", "2", "seven")
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["scores"]["datatype"] == "FP32"
    assert outputs["scores"]["shape"] == [2, 4]
    assert outputs["scores"]["data"] == [x for row in SCORES for x in row]
    assert (outputs["best"]["shape"], outputs["best"]["data"]) == ([2], [3, 3])


@pytest.mark.parametrize("compress", [None, gzip.compress])
def test_infer_with_bytes(http, compress):
    """A call with bytes, compressed or not, is answered in bytes where it asks for them."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3]}
    x["parameters"] = {"binary_data_size": X.nbytes}
    scores = {"name": "scores", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [x], "outputs": [{"name": "best"}, scores]}).encode()
    body = head + X.tobytes()
    headers = {HEADER: str(len(head))}
    if compress:
        body, headers["Content-Encoding"] = compress(body), "gzip"

    response = http.post("/v2/models/scores/infer", content=body, headers=headers)

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[HEADER])
    best, scores = json.loads(response.content[:length])["outputs"]
    assert best["data"] == [3, 3]
    assert scores["parameters"] == {"binary_data_size": 32}
    np.testing.assert_array_equal(
        np.frombuffer(response.content[length:], np.float32).reshape(2, 4), SCORES
    )


def test_health_and_metadata_of_the_server(http):
    """The server is live, tells what it is, and is not ready while a model cannot be served."""
    assert http.get("/v2/health/live").json() == {"live": True}
    assert (http.get("/v2/health/ready").status_code) == 503
    server = http.get("/v2").json()
    assert server.keys() == {"name", "version", "extensions"}
    assert server["name"] == "servax"
    assert "binary_tensor_data" in server["extensions"]


@pytest.mark.parametrize("version", ["", "/versions/1", "/versions/green"])
def test_metadata_of_a_model(http, version):
    """Metadata, configuration, readiness and statistics have numbers where they have numbers."""
    base = f"/v2/models/scores{version}"

    metadata = http.get(base).json()
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    config = http.get(f"{base}/config").json()
    assert config["max_batch_size"] == 2**31 - 1
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert "dynamic_batching" not in config
    assert http.get(f"{base}/ready").json() == {"name": "scores", "ready": True}
    stats = http.get(f"{base}/stats").json()["model_stats"]
    assert {each["name"] for each in stats} == {"scores"}
    assert isinstance(stats[0]["inference_stats"]["success"]["ns"], int)


def test_statistics_of_all(http):
    """One path tells the statistics of everything that answers."""
    stats = http.get("/v2/models/stats").json()["model_stats"]

    assert [(each["name"], each["version"]) for each in stats] == [
        ("bits", "1"),
        ("many", "1"),
        ("scores", "1"),
        ("scores", "2"),
    ]


@pytest.mark.parametrize(("body", "count"), [("", 5), ("{}", 5), ('{"ready": true}', 4)])
def test_repository_index(http, body, count):
    """The index is a list of versions with their states, all or those that are ready."""
    index = http.post("/v2/repository/index", content=body).json()

    assert len(index) == count
    assert {"name": "scores", "version": "1", "state": "READY", "reason": ""} in index
    gone = [each for each in index if each["name"] == "gone"]
    assert [each["state"] for each in gone] == ["UNAVAILABLE"] * (count - 4)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v2/models/no/infer", document(), 404, "no model 'no' here"),
        ("POST", "/v2/models/scores/versions/9/infer", document(), 404, "no version 9"),
        ("POST", "/v2/models/scores/infer", document(inputs=[]), 400, "missing input 'x'"),
        ("POST", "/v2/models/scores/infer", [], 400, "not a JSON object"),
        ("POST", "/v2/models/scores/infer", {"id": "x" * (1 << 16)}, 413, "--max-request-bytes"),
        ("POST", "/v2/models/scores/infer", document(outputs=[{"name": "\ud800"}]), 400, "ud800"),
        ("POST", "/v2/models/gone/infer", document(), 400, "exported for cuda"),
        (
            "POST",
            "/v2/models/scores/infer",
            document(parameters={"signature": "other"}),
            404,
            "it has serving_default",
        ),
        ("GET", "/v2/models/no", None, 404, "no model 'no' here"),
        ("GET", "/v2/models/no/ready", None, 404, "no model 'no' here"),
        ("GET", "/v2/models/gone/ready", None, 400, "exported for cuda"),
        ("GET", "/v2/models/no/config", None, 404, "no model 'no' here"),
        ("GET", "/v2/models/no/stats", None, 404, "no model 'no' here"),
        ("GET", "/v2/models/bits", None, 501, "call with servax.v1.Prediction"),
        ("POST", "/v2/repository/index", {"ready": 1}, 400, "true or false"),
        ("POST", "/v2/repository/index", {"repository_name": "a"}, 501, "one repository"),
        ("POST", "/v2/repository/models/scores/load", {}, 403, "--allow-management"),
        ("POST", "/v2/repository/models/scores/unload", None, 403, "--allow-management"),
        (
            "POST",
            "/v2/systemsharedmemory/region/a/register",
            {"key": "/a", "byte_size": 1},
            501,
            "--allow-shared-memory",
        ),
        ("POST", "/v2/systemsharedmemory/region/a/register", {}, 400, "give 'key'"),
        ("GET", "/v2/systemsharedmemory/region/a/status", None, 501, "--allow-shared-memory"),
        ("POST", "/v2/cudasharedmemory/region/a/register", {}, 501, "CUDA"),
    ],
)
def test_errors(http, method, path, body, status, says):
    """Every error has its status, and says in JSON what is wrong."""
    content = None if body is None else json.dumps(body)

    response = http.request(method, path, content=content)

    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    assert says in response.json()["error"]


def test_nothing_is_registered(http):
    """Regions of memory are none; to clear them is no error."""
    for kind in ("system", "cuda"):
        assert http.get(f"/v2/{kind}sharedmemory/status").json() == []
        assert http.post(f"/v2/{kind}sharedmemory/unregister").status_code == 200
        assert http.post(f"/v2/{kind}sharedmemory/region/a/unregister").status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (errors.NotServed("why"), 404, {}),
        (errors.NotReady("why"), 503, {}),
        (errors.CannotServe("why"), 400, {}),
        (errors.NotAllowed("why"), 403, {}),
        (errors.AlreadyExists("why"), 409, {}),
        (errors.TooLarge("why"), 413, {}),
        (errors.Overloaded("why", retry_after=1.2), 503, {"retry-after": "2"}),
        (errors.OutOfMemory("why"), 503, {}),
        (errors.ExecutionFailed("why"), 500, {}),
        (errors.DeadlineExpired("why"), 504, {}),
    ],
)
def test_every_error_has_a_status(error, status, headers):
    """What goes wrong in a call is told in Triton's words."""

    class Failing:
        async def run(self, call):
            raise error

    async def post():
        api = rest.RestApi(Failing(), None, None, None, 1000)
        transport = httpx.ASGITransport(Starlette(routes=api.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return await client.post("/v2/models/m/infer", json={})

    response = asyncio.run(post())

    assert (response.status_code, response.json()) == (status, {"error": "why"})
    assert headers.items() <= response.headers.items()


def test_no_status_is_forgotten():
    """Each status that an exception may have has one of HTTP."""
    assert set(interceptors._STATUS.values()) <= rest._HTTP.keys()
