"""The registry as a process: starting, stopping, dying, and being reached."""

import hashlib
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest
import structlog
from click.testing import CliRunner
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.__main__ import main
from servax_registry.server import RegistryServer, is_serving, serve
from servax_registry.settings import Settings

MIB = 1 << 20
DATA = np.random.default_rng(7).bytes(32 * MIB + 9)
BLOB = artifact_pb2.Blob(digest=f"sha256:{hashlib.sha256(DATA).hexdigest()}", size=len(DATA))


class Upload:
    """An upload that stops in the middle until it is told to go on."""

    def __init__(self, registry, pause_at, begin=0):
        self.resume = threading.Event()
        self._pause_at = pause_at
        self._begin = begin
        self._pool = ThreadPoolExecutor(1)
        self.answer = self._pool.submit(registry.api.WriteBlob, self._requests())
        self._pool.shutdown(wait=False)

    def _requests(self):
        yield registry_pb2.WriteBlobRequest(blob=BLOB, offset=self._begin)
        for offset in range(self._begin, len(DATA), MIB):
            if offset >= self._pause_at:
                self.resume.wait(60)
            yield registry_pb2.WriteBlobRequest(offset=offset, data=DATA[offset : offset + MIB])


def until_committed(registry, least):
    """Wait until at least so many bytes of the upload are kept; gives how many."""
    while (committed := registry.missing(BLOB.digest)[BLOB.digest]) < least:
        time.sleep(0.01)
    return committed


def code_of(answer):
    """Wait for a call that fails and give its status code."""
    with pytest.raises(grpc.RpcError) as caught:
        answer.result()
    return caught.value.code()


def accepts_calls(registry):
    """Tell whether the registry still takes new calls."""
    try:
        registry.missing(BLOB.digest)
    except grpc.RpcError:
        return False
    return True


def run(*arguments):
    """Run a registry that is not expected to start."""
    return subprocess.run(
        [sys.executable, "-m", "servax_registry", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_it_is_told_to(process, connect, number):
    """A signal ends an idle registry with exit code 0, and the data is there the next time."""
    digest = connect(process.start()).write(b"abc")

    assert process.stop(number) == 0
    assert connect(process.start()).read(digest) == b"abc"


def test_calls_in_flight_are_finished(process, connect):
    """An upload that runs when the registry is told to stop is completed, and then it ends."""
    registry = connect(process.start())
    upload = Upload(registry, pause_at=20 * MIB)
    until_committed(registry, 8 * MIB)

    process.process.send_signal(signal.SIGTERM)
    while accepts_calls(registry):
        pass
    upload.resume.set()

    assert upload.answer.result().blob == BLOB
    assert process.process.wait() == 0


def test_calls_that_outlast_the_grace_period_are_ended(process, connect):
    """A stuck upload does not keep the registry from stopping; what arrived is kept."""
    registry = connect(process.start("--grace", "0.1"))
    upload = Upload(registry, pause_at=20 * MIB)
    until_committed(registry, 8 * MIB)

    assert process.stop() == 0
    upload.resume.set()
    assert code_of(upload.answer) in (StatusCode.CANCELLED, StatusCode.UNAVAILABLE)
    assert connect(process.start()).missing(BLOB.digest)[BLOB.digest] >= 8 * MIB


def test_an_upload_survives_the_death_of_the_registry(process, connect):
    """After SIGKILL in the middle of an upload it goes on from what was committed."""
    registry = connect(process.start())
    upload = Upload(registry, pause_at=30 * MIB)
    until_committed(registry, 16 * MIB)
    process.stop(signal.SIGKILL)
    upload.resume.set()
    assert code_of(upload.answer) == StatusCode.UNAVAILABLE

    registry = connect(process.start())
    committed = registry.missing(BLOB.digest)[BLOB.digest]
    registry.write(DATA, committed)

    assert 16 * MIB <= committed <= 30 * MIB
    assert registry.read(BLOB.digest) == DATA


def test_an_upload_survives_the_death_of_its_sender(process, connect, tmp_path):
    """When a client is killed, what arrived is kept and another client completes it."""
    address = process.start()
    (tmp_path / "data").write_bytes(DATA)
    script = f"""
import grpc, time, pathlib
from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc
data = pathlib.Path({str(tmp_path / "data")!r}).read_bytes()
def requests():
    blob = artifact_pb2.Blob(digest={BLOB.digest!r}, size=len(data))
    yield registry_pb2.WriteBlobRequest(blob=blob)
    for offset in range(0, 12 * {MIB}, {MIB}):
        yield registry_pb2.WriteBlobRequest(offset=offset, data=data[offset:offset + {MIB}])
    time.sleep(60)
registry_pb2_grpc.RegistryStub(grpc.insecure_channel({address!r})).WriteBlob(requests())
"""
    client = subprocess.Popen([sys.executable, "-c", script])
    registry = connect(address)
    until_committed(registry, 8 * MIB)

    client.kill()
    client.wait()

    # The registry may still be committing what arrived last.
    while (committed := registry.missing(BLOB.digest).get(BLOB.digest)) is not None:
        with suppress(grpc.RpcError):
            registry.write(DATA, committed)
    assert registry.read(BLOB.digest) == DATA


@pytest.mark.parametrize("delay", [0.02, 0.1])
def test_publishing_is_all_or_nothing_when_the_registry_dies(process, connect, constant, delay):
    """After SIGKILL at any moment, a version is there as a whole or not at all."""
    registry = connect(process.start())
    registry.publish("m", constant)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(
            lambda: [
                registry.publish("m", constant, aliases=["live"], labels={"k": "v"})
                for _ in range(1000)
            ]
        )
        time.sleep(delay)
        process.stop(signal.SIGKILL)
        assert code_of(publishing) == StatusCode.UNAVAILABLE

    registry = connect(process.start())
    versions = registry.api.ListVersions(registry_pb2.ListVersionsRequest(model="m")).versions
    latest = len(versions)
    assert [version.number for version in versions] == list(range(latest, 0, -1))
    assert all(version.labels == {"k": "v"} for version in versions[:-1])
    assert list(versions[0].aliases) == (["live"] if latest > 1 else [])
    assert registry.publish("m", constant).number == latest + 1


def test_a_taken_port_is_one_clear_line(url):
    """A port that somebody listens on ends the start with exit code 1 and a reason."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("--db", url, "--listen", address)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"Error: cannot listen on {address}: [Errno 98] Address already in use"
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--db", "sqlite:////nonexistent/registry.db"), ("--db", "x"), ("--listen", "8400")],
)
def test_a_wrong_setting_is_one_clear_line(tmp_path, option, value):
    """A setting that cannot be used ends the start with exit code 1 and a line that shows it."""
    settings = {"--db": f"sqlite:///{tmp_path / 'r.db'}", "--listen": "127.0.0.1:0", option: value}
    result = run(*[word for pair in settings.items() for word in pair])

    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert value in result.stderr


def test_settings_come_from_the_environment(url, monkeypatch, process):
    """Environment variables stand in for options."""
    monkeypatch.setenv("SERVAX_REGISTRY_MAX_TRANSFERS", "zero")

    result = run("--db", url)

    assert (result.returncode, "SERVAX_REGISTRY_MAX_TRANSFERS" in result.stderr) == (2, True)


def test_it_starts_without_jax():
    """Nothing that the registry imports brings JAX with it."""
    script = "import sys, servax_registry.__main__; print('jax' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "False"


def test_health_and_reflection_are_served(url):
    """Health says SERVING, for the whole and for the service, and reflection lists the service."""
    with (
        serve(Settings(url, "127.0.0.1:0")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        states = [
            health.Check(health_pb2.HealthCheckRequest(service=service)).status
            for service in ("", "servax.v1.Registry")
        ]
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection.ServerReflectionInfo(iter([request]))

    assert states == [health_pb2.HealthCheckResponse.SERVING] * 2
    services = {service.name for service in answer.list_services_response.service}
    assert "servax.v1.Registry" in services


def test_the_health_command_tells_by_its_exit_code(url):
    """`servax-registry health` succeeds beside a serving registry, and fails once it is gone."""
    with serve(Settings(url, "127.0.0.1:0")) as server:
        while_serving = CliRunner().invoke(main, ["health", "--listen", server.address])
    afterwards = CliRunner().invoke(main, ["health", "--listen", server.address])

    assert while_serving.exit_code == 0
    assert afterwards.exit_code == 1
    assert f"no registry serves at {server.address}" in afterwards.stderr


def test_trials_take_jax(monkeypatch, url):
    """Told to try programs where JAX is not installed, the registry says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    refused = CliRunner().invoke(main, ["serve", "--db", url, "--trials"])

    assert refused.exit_code == 2
    assert "pip install 'servax[export]'" in refused.stderr


def test_transfers_do_not_take_all_threads(url, connect):
    """With every transfer taken, one more is UNAVAILABLE while other calls are answered."""
    with serve(Settings(url, "127.0.0.1:0", max_transfers=1)) as server:
        registry = connect(server.address)
        upload = Upload(registry, pause_at=20 * MIB)
        until_committed(registry, 8 * MIB)

        with registry.refuses(StatusCode.UNAVAILABLE, "1 uploads, downloads and publications"):
            registry.write(b"abc")
        with registry.refuses(StatusCode.UNAVAILABLE, "try again"):
            registry.read(BLOB.digest)
        with registry.refuses(StatusCode.UNAVAILABLE, "try again"):
            registry.api.PublishVersion(registry_pb2.PublishVersionRequest(model="m"))
        assert not registry.api.ListModels(registry_pb2.ListModelsRequest()).models
        upload.resume.set()

        assert upload.answer.result().blob == BLOB
        assert registry.read(registry.write(b"abc")) == b"abc"


def test_an_abandoned_download_gives_its_place_back(url, connect):
    """A reader that goes away in the middle does not occupy a transfer."""
    with serve(Settings(url, "127.0.0.1:0", max_transfers=1)) as server:
        registry = connect(server.address)
        digest = registry.write(DATA)
        download = registry.api.ReadBlob(registry_pb2.ReadBlobRequest(digest=digest))
        next(download)
        download.cancel()

        while True:
            try:
                data = registry.read(digest)
                break
            except grpc.RpcError as error:
                assert error.code() == StatusCode.UNAVAILABLE  # noqa: PT017

    assert data == DATA


def test_watching_health_takes_no_threads(url, connect):
    """However many callers watch the registry's health, other calls are answered."""
    with serve(Settings(url, "127.0.0.1:0", max_transfers=1)) as server, ExitStack() as stack:
        registry = connect(server.address)
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        for _ in range(50):
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            stack.callback(watch.cancel)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING

        assert registry.missing(BLOB.digest) == {BLOB.digest: 0}


def test_watchers_of_health_that_leave_stop_nobody(url):
    """Watchers that come and go side by side leave a server that answers."""

    def come_and_go(channel):
        for _ in range(20):
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            next(watch)
            watch.cancel()

    with serve(Settings(url, "127.0.0.1:0")) as server, ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(server.address, options=[("n", number)]))
            for number in range(8)
        ]
        with ThreadPoolExecutor(len(channels)) as pool:
            list(pool.map(come_and_go, channels, timeout=60))

        assert is_serving(server.address)


def test_a_server_that_stops_ends_watches_of_its_health(url):
    """Who watches is told NOT_SERVING, and is not waited for."""
    server = RegistryServer(Settings(url, "127.0.0.1:0", grace=60))
    with grpc.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        told = [next(watch).status]
        began = time.monotonic()
        server.stop()
        took = time.monotonic() - began
        told += [answer.status for answer in watch]

    response = health_pb2.HealthCheckResponse
    assert told == [response.SERVING, response.NOT_SERVING]
    assert took < 60, "it waited for the grace period"


@pytest.mark.parametrize(
    ("service", "status"), [("servax.v1.Registry", "SERVING"), ("other", "SERVICE_UNKNOWN")]
)
def test_health_is_told_by_service(url, service, status):
    """A service that the server does not have is unknown to watchers, and NOT_FOUND to a check."""
    with (
        serve(Settings(url, "127.0.0.1:0")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        watch = stub.Watch(request)
        told = next(watch).status
        watch.cancel()
        try:
            checked = stub.Check(request).status
        except grpc.RpcError as error:
            checked = error.code()

    expected = health_pb2.HealthCheckResponse.ServingStatus.Value(status)
    assert told == expected
    assert checked == (expected if status == "SERVING" else StatusCode.NOT_FOUND)


@pytest.mark.parametrize("method", ["GetModel", "WriteBlob", "ReadBlob"])
def test_what_is_no_message_is_refused(url, method):
    """Bytes that are not the method's request are INVALID_ARGUMENT, not a fault of the registry."""
    with (
        serve(Settings(url, "127.0.0.1:0")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call = channel.stream_stream(f"/servax.v1.Registry/{method}")

        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b"\xff" * 10])))

    assert caught.value.code() == StatusCode.INVALID_ARGUMENT
    assert method in caught.value.details()


def test_a_damaged_blob_is_data_loss(url, connect, tmp_path):
    """A blob that lost a chunk in the database is DATA_LOSS to whoever reads it."""
    with serve(Settings(url, "127.0.0.1:0")) as server:
        registry = connect(server.address)
        digest = registry.write(DATA[: 3 * MIB])
        with sqlite3.connect(tmp_path / "registry.db") as connection:
            connection.execute("DELETE FROM chunks WHERE position = ?", (MIB,))
        connection.close()

        with registry.refuses(StatusCode.DATA_LOSS, f"byte {MIB} is missing"):
            registry.read(digest)


def test_an_unexpected_error_keeps_its_text(url, connect, monkeypatch):
    """A bug is answered INTERNAL without a word of what it was."""
    monkeypatch.setattr(
        "servax_registry.service.Registry.list_models", lambda *_: print("secret", 1 / 0)
    )
    with serve(Settings(url, "127.0.0.1:0")) as server:
        registry = connect(server.address)

        with registry.refuses(StatusCode.INTERNAL, "^internal error; the registry's log"):
            registry.api.ListModels(registry_pb2.ListModelsRequest())


def test_long_messages_fit_the_trailers(url, connect):
    """However long the names in it, an error arrives with its own code."""
    with serve(Settings(url, "127.0.0.1:0")) as server:
        registry = connect(server.address)

        with registry.refuses(StatusCode.INVALID_ARGUMENT, "page_token"):
            registry.api.ListModels(registry_pb2.ListModelsRequest(page_token="é" * 100_000))


def test_it_logs_one_line_when_it_serves(process):
    """The line that tells of the start is JSON with the address that was bound."""
    process.start()
    process.process.send_signal(signal.SIGTERM)
    lines = process.process.stdout.read().splitlines()

    assert process.address.startswith("127.0.0.1:")
    assert [json.loads(line)["event"] for line in lines] == ["stopping"]


def test_changes_and_refusals_are_logged(url, connect, constant):
    """Whoever changes something, or is refused it, is in the log by name; readers are not."""
    with (
        serve(Settings(url, "127.0.0.1:0")) as server,
        structlog.testing.capture_logs() as logged,
    ):
        registry = connect(server.address)
        metadata = [("servax-actor", "ada")]
        program = registry.write(constant)
        registry.api.PublishVersion(
            registry_pb2.PublishVersionRequest(
                model="m",
                programs=[registry_pb2.ProgramSource(digest=program)],
                aliases=["production"],
            ),
            metadata=metadata,
        )
        with registry.refuses(StatusCode.FAILED_PRECONDITION, "alias"):
            request = registry_pb2.DeleteVersionRequest(model="m", version=1)
            registry.api.DeleteVersion(request, metadata=metadata)
        with registry.refuses(StatusCode.NOT_FOUND, "m2"):
            registry.api.GetModel(registry_pb2.GetModelRequest(model="m2"))

    published, pointed, refused = logged
    about = {"log_level": "info", "actor": "ada", "model": "m", "version": 1}
    assert published == {"event": "publish", **about, "revision": 1}
    assert pointed == {"event": "set alias", **about, "alias": "production", "revision": 2}
    assert refused == {
        "event": "refused",
        "log_level": "warning",
        "call": "DeleteVersion",
        "actor": "ada",
        "model": "m",
        "status": "FAILED_PRECONDITION",
        "reason": refused["reason"],
    }
    assert "version 1 of model 'm' has the alias" in refused["reason"]
