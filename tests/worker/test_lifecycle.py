"""The process: its command line, its end, and what it does not need."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from servax import Client
from servax.errors import FailedPrecondition, ServaxError, Unavailable
from servax.tensors import to_proto
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.__main__ import main

X = np.array([[1, 0, 2]], np.float32)


@pytest.fixture(scope="module")
def launch(start, registry, tmp_path_factory):
    """Starts a worker process: `launch("model", "--flag", …)`."""
    cache = tmp_path_factory.mktemp("worker") / "cache"

    def launch(model, *arguments, environment=None):
        return start(
            "servax_worker",
            *("--registry", registry, "--model", model, "--cache-dir", str(cache)),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            *arguments,
            environment=environment,
        )

    return launch


@pytest.fixture(scope="module")
def models(publish, linear_program, linear_weights, slow_program):
    """What is served here."""
    publish("life-linear", linear_program, weights=[linear_weights])
    publish("life-slow", slow_program)


def wait_for(condition):
    """Waits until something is so; the suite's time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


@contextlib.contextmanager
def busy(client, seconds):
    """Has `life-slow` called on a thread, for about so long; yields where its end will be told."""
    rounds = 1_000_000
    while (began := time.monotonic()) and client.predict("life-slow", {"rounds": np.int32(rounds)}):
        took = time.monotonic() - began
        if took > 0.1:
            break
        rounds *= 4
    rounds = np.int32(min(rounds * seconds / took, 2**31 - 1))
    ends = []

    def call():
        try:
            ends.append(client.predict("life-slow", {"rounds": rounds}))
        except ServaxError as error:
            ends.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.2)  # for it to get there
    yield ends
    thread.join()


def test_requests_in_flight_are_finished(models, launch):
    """Told to stop, a worker withdraws health, answers what it has begun, takes nothing new, and
    exits with 0.
    """
    worker = launch("life-slow")
    with Client(worker=worker.address) as client, Client(worker=worker.address) as other:
        client.wait_until_ready("life-slow", timeout=60)
        with busy(client, seconds=2) as ends:
            worker.process.send_signal(signal.SIGTERM)
            wait_for(lambda: any(event["event"] == "draining" for event in worker.events))
            with pytest.raises(Unavailable):
                other.predict("life-slow", {"rounds": np.int32(1)})
            assert not ends

        assert list(ends[0]) == ["output"]
        assert worker.process.wait(20) == 0


def test_open_streams_do_not_delay_the_end(models, launch):
    """A stream that its caller keeps open ends with UNAVAILABLE once its requests are answered."""
    worker = launch("life-slow", "--grace", "60")
    proceed = threading.Event()
    message = prediction_pb2.PredictStreamRequest(
        id=1,
        request=prediction_pb2.PredictRequest(
            model="life-slow", inputs={"rounds": to_proto(np.int32(100_000_000))}
        ),
    )

    def requests():
        yield message
        proceed.wait(60)

    with Client(worker=worker.address) as client:
        client.wait_until_ready("life-slow", timeout=60)
    with grpc.insecure_channel(worker.address) as channel:
        answers = prediction_pb2_grpc.PredictionStub(channel).PredictStream(requests())
        time.sleep(0.1)
        worker.process.send_signal(signal.SIGTERM)
        assert next(answers).HasField("response")
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        proceed.set()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert worker.process.wait(20) == 0


def test_a_call_that_does_not_end_is_left_behind(models, launch):
    """After the grace period the process ends, with 0, although the device is still busy."""
    worker = launch("life-slow", "--grace", "0.2")
    with Client(worker=worker.address) as client:
        client.wait_until_ready("life-slow", timeout=60)
        with busy(client, seconds=30) as ends:
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(20) == 0

    assert isinstance(ends[0], ServaxError)


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"flax", "optax", "orbax", "examples"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""


def test_no_model_code_is_needed(models, launch, tmp_path):
    """A worker serves where importing flax, optax, orbax and the examples fails."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    for module in ("flax", "optax", "orbax", "orbax.checkpoint", "examples"):
        attempt = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert f"{module.split('.')[0]} is blocked" in attempt.stderr
    worker = launch("life-linear", environment=environment)
    with Client(worker=worker.address) as client:
        client.wait_until_ready("life-linear", timeout=60)

        assert client.predict("life-linear", {"x": X})["best"].shape == (1,)
    assert worker.stop() == 0


def run(*arguments, **environment):
    """Runs the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "servax_worker", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_taken_port_is_one_line(tmp_path):
    """A port that is in use ends the command with status 1 and one line that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--listen", "--http"):
            result = run(
                "serve", "--model", "m", "--cache-dir", str(tmp_path), "--listen", "127.0.0.1:0",
                "--http", "127.0.0.1:0", flag, address,
            )  # fmt: skip
            assert result.returncode == 1
            assert result.stderr == f"Error: cannot listen on {address}: Address already in use\n"


def test_health_of_nobody_is_one_line():
    """Where no worker listens, the health command says so and exits with 1."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    result = CliRunner().invoke(main, ["health", "--http", address])

    assert result.exit_code == 1
    assert f"no worker answers at {address}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--model'"),
        (("--model", "Bad Name"), "'Bad Name' is not a model's name"),
        (("--model", "m", "--warm-up", "b"), "'b' is not SYMBOL=SIZE,SIZE"),
        (("--model", "m", "--warm-up", "b=0"), "'b=0' is not SYMBOL=SIZE,SIZE"),
        (("--model", "m", "--max-executables", "0"), "0 is not in the range"),
        (("--model", "m", "--poll", "-1"), "-1.0 is not in the range"),
    ],
)
def test_wrong_options_are_usage_errors(arguments, message):
    """A wrong option ends the command with status 2 and tells what is expected."""
    result = CliRunner().invoke(main, ["serve", *arguments])

    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_second_start_is_warm(models, start, registry, tmp_path):
    """Options come from the environment as well as from flags; started again on the same cache, a
    worker compiles nothing.
    """
    sources = []
    for arguments, environment in [
        (
            (),
            {
                "SERVAX_REGISTRY": registry,
                "SERVAX_WORKER_MODEL": "life-linear life-slow",
                "SERVAX_WORKER_LISTEN": "127.0.0.1:0",
                "SERVAX_WORKER_HTTP": "127.0.0.1:0",
                "SERVAX_WORKER_CACHE_DIR": str(tmp_path / "cache"),
                "SERVAX_WORKER_WARM_UP": "b=3",
            },
        ),
        (
            (
                *("--registry", registry, "--model", "life-linear", "--model", "life-slow"),
                *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                *("--cache-dir", str(tmp_path / "cache"), "--warm-up", "b=3"),
            ),
            {},
        ),
    ]:
        worker = start("servax_worker", *arguments, environment=environment)
        with Client(worker=worker.address) as client:
            client.wait_until_ready("life-linear", timeout=60)
            client.wait_until_ready("life-slow", timeout=60)
        compiled = [event for event in worker.events if event["event"] == "compiled"]
        assert sorted((event["model"], event["sizes"]) for event in compiled) == [
            ("life-linear", {"b": 3}),
            ("life-slow", {}),
        ]
        sources.append({event["source"] for event in compiled})
        assert worker.stop() == 0

    # The loader process of the first start has compiled it.
    assert sources == [{"cache"}, {"cache"}]
    assert not any(event.get("why") == "waiting for a loader process" for event in worker.events)


def serving_process(worker):
    """The id of the process that serves, of which the worker's process is the parent."""
    (pid,) = (
        Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
    )
    return int(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_a_killed_serving_process_is_replaced(models, launch):
    """After SIGKILL of the serving process, the worker answers again, at the same address, and
    serves what it was told at run time.
    """
    worker = launch("life-slow", "--allow-management")
    with Client(worker=worker.address) as client:
        client.load("life-linear")
        client.unload("life-slow")
        client.wait_until_ready("life-linear", timeout=60)
        before = client.predict("life-linear", {"x": X})
        killed = serving_process(worker)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: serving_process_or_none(worker) not in (None, killed))

        client.wait_until_ready("life-linear", timeout=60)
        np.testing.assert_equal(client.predict("life-linear", {"x": X}), before)
        assert [served.model for served in client.status().versions] == ["life-linear"]

    assert any(event.get("why") == "SIGKILL" for event in worker.events)
    assert worker.stop() == 0


def serving_process_or_none(worker):
    """As `serving_process`; None while there is none."""
    with contextlib.suppress(ValueError):
        return serving_process(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_a_version_that_hangs_is_quarantined_and_its_neighbour_serves(models, launch):
    """A call that does not end costs a restart; the third time, its version is FAILED with the
    reason, and the other model goes on. Who loads it explicitly has it again.
    """
    options = "--model", "life-linear", "--call-timeout", "1", "--allow-management"
    worker = launch("life-slow", *options)
    with Client(worker=worker.address) as client:
        for _ in range(3):
            client.wait_until_ready("life-slow", timeout=60)
            with pytest.raises(Unavailable):
                client.predict("life-slow", {"rounds": np.int32(2**31 - 1)}, timeout=60)
        with pytest.raises(FailedPrecondition, match="life-slow:1 is quarantined"):
            client.wait_until_ready("life-slow", timeout=60)
        client.wait_until_ready("life-linear", timeout=60)
        assert client.predict("life-linear", {"x": X})
        client.load("life-slow")
        client.wait_until_ready("life-slow", timeout=60)
        assert client.predict("life-slow", {"rounds": np.int32(1)})

    hangs = [event for event in worker.events if "has not ended after" in event.get("why", "")]
    assert [event["during"] for event in hangs] == [["life-slow:1"]] * 3
    assert worker.stop() == 0
