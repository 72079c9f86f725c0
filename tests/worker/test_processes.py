"""A worker of several processes behind one port, started as operators start it."""

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from servax import Client
from servax.errors import Unavailable
from servax_worker.__main__ import main
from servax_worker.siblings import merged

X = np.array([[1, 0, 2]], np.float32)


@pytest.fixture
def two(start, registry, publish, linear_program, linear_weights, tmp_path):
    """A worker of two processes that serves `pair-linear`, both READY."""
    publish("pair-linear", linear_program, weights=[linear_weights])
    worker = start(
        "servax_worker",
        *("--registry", registry, "--model", "pair-linear", "--processes", "2"),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--cache-dir", str(tmp_path)),
    )
    wait_for(lambda: health(worker)["ready"])
    return worker


def wait_for(condition):
    """Waits until something is so; the suite's time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.05)


def get(worker, path):
    """What the worker answers over HTTP, whatever the status."""
    try:
        with urllib.request.urlopen(f"http://{worker.serving['http']}{path}") as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def health(worker):
    """What /healthz tells; of a process that is not there yet, that it is not."""
    try:
        return json.loads(get(worker, "/healthz"))
    except OSError:
        return {"ready": False, "versions": []}


def call(worker):
    """Calls over a connection of its own."""
    with Client(worker=worker.address) as client:
        return client.predict("pair-linear", {"x": X})["scores"]


def answered(worker):
    """How many calls each process has answered, by its number."""
    return {
        line.split('process="')[1][0]: float(line.split()[-1])
        for line in get(worker, "/metrics").splitlines()
        if line.startswith("servax_requests_total") and 'result="ok"' in line
    }


def test_all_processes_serve_at_one_port(two):
    """Connections reach either process, and health and metrics tell of both."""
    wait_for(lambda: call(two) is not None and len(answered(two)) == 2)

    told = health(two)
    assert {version["process"] for version in told["versions"]} == {0, 1}
    assert all(version["state"] == "READY" for version in told["versions"])


def test_a_version_is_proved_once(two):
    """One process has a loader process prove the version, for all."""
    compiled = [event for event in two.events if event["event"] == "compiled"]
    sources = {event["source"] for event in compiled}

    assert sources == {"cache"}, "the loader process has filled the cache that they share"
    assert two.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_one_that_dies_leaves_the_others(two):
    """While a killed process starts again, new connections reach the other one."""
    children = [
        int(child)
        for file in Path(f"/proc/{two.process.pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    assert len(children) == 2

    os.kill(children[0], signal.SIGKILL)
    wait_for(lambda: not health(two)["ready"])
    failures = 0
    while not health(two)["ready"]:
        try:
            call(two)
        except Unavailable:  # of the one that starts, before it is READY
            failures += 1
    np.testing.assert_array_equal(call(two), call(two))
    assert two.stop() == 0


def test_a_taken_port_is_an_error(start, registry):
    """Where somebody else listens, the worker says so and ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["serve", "--registry", registry, "--model", "any", "--processes", "2"]
        result = CliRunner().invoke(main, [*arguments, "--listen", address])

    assert result.exit_code == 1
    assert f"cannot listen on {address}" in result.output


@pytest.mark.parametrize("option", ["--allow-management", "--allow-shared-memory"])
def test_what_would_reach_one_process_alone_is_refused(option):
    """Options that let callers change a process do not go with several."""
    result = CliRunner().invoke(main, ["serve", "--model", "any", "--processes", "2", option])

    assert result.exit_code == 2
    assert f"--processes 2 does not go with {option}" in result.output


def test_metrics_are_merged_by_process():
    """Families of several processes become one, each sample labelled with its process."""
    text = '# HELP a_total Things.\n# TYPE a_total counter\na_total{model="m"} 2.0\n'

    lines = merged({0: text, 1: text.replace("2.0", "3.0")}).decode().splitlines()

    assert lines.count("# TYPE a_total counter") == 1
    assert 'a_total{model="m",process="0"} 2.0' in lines
    assert 'a_total{model="m",process="1"} 3.0' in lines
