"""TensorFlow Serving's REST API over a real worker, and at its edges."""

import asyncio
import gzip
import json
import zlib

import httpx
import jax
import jax.numpy as jnp
import pytest
from starlette.applications import Starlette

from servax.reference import ModelReference
from servax_worker import errors, interceptors
from servax_worker.protocols.tfserving import rest
from servax_worker.settings import Settings


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, linear_program, linear_weights, serving):
    """A worker that serves a few models."""
    publish("straight", linear_program, weights=[linear_weights])
    publish("straight", linear_program, weights=[linear_weights], aliases=["blue"])
    a = symbolic("b")
    publish(
        "parts",
        {
            "serving_default": exported(
                lambda a, b: {"sum": (a + b).sum(), "a": a},
                a,
                jax.ShapeDtypeStruct(a.shape, jnp.int32),
            ).serialize(),
            "twice": exported(lambda x: x * 2, symbolic("b, 2", "bfloat16")).serialize(),
        },
    )
    publish("fixed", exported(lambda x: x, jax.ShapeDtypeStruct((16, 1), jnp.float32)).serialize())
    cuda = exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize()
    publish("away", cuda)
    served = "straight", "straight:1", "straight@blue", "parts", "fixed", "away"
    with serving(*served, max_message_bytes=1 << 16) as running:
        running.wait_until_loaded()
        yield running


@pytest.fixture(scope="module")
def http(worker):
    """A client of it."""
    with httpx.Client(base_url=worker.http) as client:
        yield client


ROWS = [[1, 0, 2], [0, 1, 0]]
PREDICTIONS = [
    {"best": 3, "scores": [17.0, 21.0, 25.0, 29.0]},
    {"best": 3, "scores": [5.0, 7.0, 9.0, 11.0]},
]


@pytest.mark.parametrize("which", ["", "/versions/1", "/labels/blue", "/labels/1"])
def test_predict(http, which):
    """A model answers in rows and in columns, however its version is named."""
    path = f"/v1/models/straight{which}:predict"

    in_rows = http.post(path, json={"instances": ROWS})
    in_columns = http.post(path, json={"inputs": {"x": ROWS}})

    assert in_rows.status_code == 200
    assert in_rows.headers["content-type"] == "application/json"
    assert in_rows.json() == {"predictions": PREDICTIONS}
    assert in_columns.json()["outputs"]["scores"] == [row["scores"] for row in PREDICTIONS]


def test_signature(http):
    """A signature is named in the body."""
    answer = http.post(
        "/v1/models/parts:predict", json={"signature_name": "twice", "instances": [[1, 0.5]]}
    )

    assert answer.json() == {"predictions": [[2.0, 1.0]]}


def test_scalars_come_in_columns(http):
    """An output without rows is refused in rows, and answered in columns."""
    in_rows = http.post("/v1/models/parts:predict", json={"instances": [{"a": 1, "b": 2}]})
    in_columns = http.post("/v1/models/parts:predict", json={"inputs": {"a": [1], "b": [2]}})

    assert in_rows.status_code == 400
    assert "send the inputs in columns" in in_rows.json()["error"]
    assert in_columns.json() == {"outputs": {"a": [1.0], "sum": 3.0}}


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bodies(http, encoding, compress):
    """A body may be compressed; it may not become larger than others, nor end early."""

    def post(body):
        headers = {"Content-Encoding": encoding}
        return http.post("/v1/models/straight:predict", content=body, headers=headers)

    whole = compress(json.dumps({"instances": ROWS}).encode())
    bomb = compress(b" " * 10_000_000)

    assert post(whole).json() == {"predictions": PREDICTIONS}
    assert post(bomb).status_code == 413
    assert "does not end" in post(whole[:-3]).json()["error"]
    assert f"not {encoding}" in post(b"{}").json()["error"]


REFUSED = {
    "model": ("POST", "no:predict", {"instances": ROWS}, 404, "no model 'no' here"),
    "version": ("POST", "straight/versions/9:predict", {"instances": ROWS}, 404, "no version 9"),
    "endless version": (
        "POST",
        f"straight/versions/{10**30}:predict",
        {"instances": ROWS},
        400,
        "no number of a version",
    ),
    "label": ("POST", "straight/labels/red:predict", {"instances": ROWS}, 404, "no alias 'red'"),
    "signature": (
        "POST",
        "straight:predict",
        {"instances": ROWS, "signature_name": "no"},
        404,
        "no signature 'no'; it has serving_default",
    ),
    "missing input": ("POST", "parts:predict", {"inputs": {"a": [1]}}, 400, "missing input 'b'"),
    "text": ("POST", "straight:predict", {"instances": [["a"]]}, 400, '"a" is text'),
    "base64": ("POST", "straight:predict", {"instances": [{"b64": "aGk="}]}, 400, "base64 stands"),
    "batch": (
        "POST",
        "fixed:predict",
        {"instances": [[1]] * 100},
        400,
        "dimension 0 is 100 instead of 16",
    ),
    "not an object": ("POST", "straight:predict", [], 400, "not a JSON object"),
    "failed": ("POST", "away:predict", {"instances": [1]}, 400, "away (version 1) is FAILED"),
    "classify": ("POST", "straight:classify", {}, 501, "send the inputs as tensors"),
    "regress": ("POST", "straight:regress", {}, 501, "send the inputs as tensors"),
    "method": ("GET", "straight:predict", None, 400, "malformed request: GET"),
    "other method": ("POST", "straight", {}, 400, "malformed request: POST"),
    "path": ("GET", "straight/versions/x", None, 400, "malformed request"),
    "metadata of no model": ("GET", "no/metadata", None, 404, "no model 'no'"),
    "status of no version": ("GET", "straight/versions/7", None, 404, "no version 7"),
    "encoding": ("POST", "straight:predict", ..., 400, "Content-Encoding 'br' is none of"),
    "large": ("POST", "straight:predict", " " * 70_000, 413, "more than 65536 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(http, case):
    """What cannot be answered has TensorFlow Serving's status, and a sentence that helps."""
    method, path, document, status, words = REFUSED[case]
    headers = {"Content-Encoding": "br"} if document is ... else {}
    document = {} if document is ... else document

    answer = http.request(method, f"/v1/models/{path}", json=document, headers=headers)

    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


def test_status(http):
    """Each version of a model is listed once, the newest first, as TensorFlow Serving writes it."""
    ok = {"error_code": "OK", "error_message": ""}

    assert http.get("/v1/models/straight").json() == {
        "model_version_status": [
            {"version": "2", "state": "AVAILABLE", "status": ok},
            {"version": "1", "state": "AVAILABLE", "status": ok},
        ]
    }
    for which in ("versions/1", "labels/1"):
        (one,) = http.get(f"/v1/models/straight/{which}").json()["model_version_status"]
        assert one["version"] == "1"
    (failed,) = http.get("/v1/models/away").json()["model_version_status"]
    assert failed["state"] == "END"
    assert failed["status"]["error_code"] == "FAILED_PRECONDITION"


def test_metadata(http):
    """Signatures are told in the form that TensorFlow Serving gives them."""
    metadata = http.get("/v1/models/straight/labels/blue/metadata").json()
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]

    assert metadata["model_spec"] == {"name": "straight", "version": "2", "signature_name": ""}
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["x"] == {
        "name": "x",
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": "b"}, {"size": "3", "name": ""}],
            "unknown_rank": False,
        },
    }


class Failing:
    """A predictor that fails."""

    def __init__(self, error):
        self.error = error

    def status(self, model):
        """Fails."""
        raise self.error


@pytest.fixture
def answer_to(tmp_path):
    """What a GET is answered where the predictor raises an error."""

    async def get(error):
        settings = Settings("", (ModelReference.parse("m"),), tmp_path)
        app = Starlette(routes=rest.routes(Failing(error), settings))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return await client.get("/v1/models/m")

    return lambda error: asyncio.run(get(error))


@pytest.mark.parametrize("kind", interceptors._STATUS, ids=lambda kind: kind.__name__)
def test_every_error_has_an_http_status(kind, answer_to):
    """Whatever gRPC callers are told has its counterpart."""
    answer = answer_to(kind("what is wrong"))

    assert 400 <= answer.status_code < 600
    assert answer.json() == {"error": "what is wrong"}


def test_unforeseen_errors_keep_their_text(answer_to):
    """Any other exception is 500 and says only where to look."""
    answer = answer_to(ZeroDivisionError("secret"))

    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error; the worker's log tells more"}


def test_an_overloaded_worker_says_when_to_come_back(answer_to):
    """429 tells in how many seconds."""
    answer = answer_to(errors.Overloaded("full", 1.2))

    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"


def test_a_draining_worker_refuses(publish, exported, symbolic, serving):
    """While a worker stops, calls in flight are answered and new ones are told to go elsewhere."""
    publish("last", exported(lambda x: x, symbolic("b")).serialize())
    with serving("last") as running:
        running.wait_until_loaded()
        running.loop.call_soon_threadsafe(running.server._predictor.drain)
        answer = httpx.post(f"{running.http}/v1/models/last:predict", json={"instances": [1]})

    assert answer.status_code == 503
    assert "shutting down" in answer.json()["error"]
