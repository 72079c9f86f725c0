"""The line in the log that a worker writes for every request, when it is asked to."""

import asyncio
import json
import time
import urllib.request

import numpy as np
import pytest

from servax import AsyncClient, Client
from servax.errors import InvalidArgument, NotFound

X = np.array([[1, 0, 2]], np.float32)


@pytest.fixture(scope="module")
def worker(start, registry, publish, linear_program, linear_weights, tmp_path_factory):
    """A worker that logs its requests, with `logged` READY."""
    publish("logged", linear_program, weights=[linear_weights])
    worker = start(
        "servax_worker",
        *("--registry", registry, "--model", "logged", "--log-requests"),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--cache-dir", str(tmp_path_factory.mktemp("logged"))),
    )
    with Client(worker=worker.address) as client:
        client.wait_until_ready("logged", timeout=60)
    return worker


def line_of(worker, request_id):
    """The line of a request; the suite's time limit ends a wait in vain."""
    while True:
        for event in list(worker.events):
            if event["event"] == "request" and event["request_id"] == request_id:
                return event
        time.sleep(0.01)


def test_a_request_has_the_name_that_its_caller_gave_it(worker):
    """Method, model, status and seconds are logged beside the name."""
    with Client(worker=worker.address) as client:
        client.predict("logged", {"x": X}, request_id="mine-1")

    line = line_of(worker, "mine-1")
    assert line["method"] == "/servax.v1.Prediction/Predict"
    assert (line["model"], line["code"]) == ("logged", "OK")
    assert line["seconds"] > 0


def test_failures_are_logged_as_what_they_are(worker):
    """A request that is refused has the status that its caller got."""
    with Client(worker=worker.address) as client:
        with pytest.raises(InvalidArgument):
            client.predict("logged", {"y": X}, request_id="mine-2")
        with pytest.raises(NotFound):
            client.predict("nothing", {"x": X}, request_id="näme")

    assert line_of(worker, "mine-2")["code"] == "INVALID_ARGUMENT"
    assert line_of(worker, "n\\xe4me")["code"] == "NOT_FOUND"


def test_streams_and_other_clients_have_names(worker):
    """What travels in parts, and what is awaited, is named as well."""

    async def awaited():
        async with AsyncClient(worker=worker.address) as client:
            await client.predict("logged", {"x": X}, request_id="mine-3")
            await client.predict("logged", {"x": np.ones((2**19, 3), "f")}, request_id="mine-4")

    asyncio.run(awaited())

    assert line_of(worker, "mine-3")["method"].endswith("/Predict")
    assert line_of(worker, "mine-4")["method"].endswith("/PredictStream")


def test_http_requests_have_names(worker):
    """Over HTTP a header gives the name, and health is not logged."""
    base = f"http://{worker.serving['http']}"
    body = json.dumps({"instances": [[1, 0, 2]]}).encode()
    headers = {"X-Request-ID": "mine-5", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/v1/models/logged:predict", body, headers)
    urllib.request.urlopen(f"{base}/livez").close()
    urllib.request.urlopen(request).close()

    line = line_of(worker, "mine-5")
    assert (line["method"], line["code"]) == ("POST /v1/models/logged:predict", 200)
    assert not any(
        event["event"] == "request" and "livez" in event["method"] for event in worker.events
    )
