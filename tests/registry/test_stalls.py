"""Callers that stand still do not keep a registry's threads."""

import hashlib
import threading
import time

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.server import serve
from servax_registry.settings import Settings

MIB = 1 << 20
DATA = np.random.default_rng(0).bytes(40 * MIB)
BLOB = artifact_pb2.Blob(digest=f"sha256:{hashlib.sha256(DATA).hexdigest()}", size=len(DATA))


@pytest.fixture
def address(url, monkeypatch):
    """A registry with little patience, which takes one transfer at a time."""
    monkeypatch.setattr("servax_registry.server._PATIENCE", 0.5)
    with serve(Settings(url, "127.0.0.1:0", max_transfers=1)) as server:
        yield server.address


@pytest.fixture
def registry(address, connect):
    """Calls to it."""
    return connect(address)


@pytest.fixture
def forever():
    """Something to wait for as long as the test runs."""
    event = threading.Event()
    yield event
    event.set()


def when_there_is_room(registry, transfer):
    """Do a transfer as soon as the registry takes one."""
    while True:
        try:
            return transfer()
        except grpc.RpcError as error:
            code, message = registry.explain(error)
            assert code is StatusCode.UNAVAILABLE, message
            time.sleep(0.05)


def test_an_upload_that_stands_still_is_ended(registry, forever):
    """What had come is kept, and the next transfer takes its place."""

    def requests():
        yield registry_pb2.WriteBlobRequest(blob=BLOB, data=DATA[:MIB])
        forever.wait()

    with registry.refuses(StatusCode.CANCELLED, ""):
        registry.api.WriteBlob(requests())

    when_there_is_room(registry, lambda: registry.write(DATA, MIB))
    assert registry.read(BLOB.digest) == DATA


def test_a_download_that_nobody_takes_is_ended(registry):
    """The caller finds out when it goes on, and the next transfer takes its place."""
    registry.write(DATA)
    responses = registry.api.ReadBlob(registry_pb2.ReadBlobRequest(digest=BLOB.digest))
    next(responses)

    assert when_there_is_room(registry, lambda: registry.read(BLOB.digest)) == DATA

    with registry.refuses(StatusCode.CANCELLED, ""):
        list(responses)


@pytest.mark.parametrize("method", ["servax.v1.Registry/GetModel", "grpc.health.v1.Health/Check"])
def test_a_call_without_its_request_is_ended(address, forever, method):
    """A call that never sends what it asks for is ended; one that ends without is refused."""

    def nothing():
        forever.wait()
        yield b""

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_unary(f"/{method}")
        for requests, code in (
            (nothing(), StatusCode.CANCELLED),
            ((), StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(iter(requests))
            assert caught.value.code() is code


def test_what_the_registry_takes_itself_does_not_count(registry, monkeypatch):
    """A call that the registry takes longer over than its patience is answered."""
    find = registry_pb2.FindMissingBlobsRequest(digests=[BLOB.digest])
    slow = threading.Event()

    def missing(self, digests):
        slow.wait(1.5)
        return ()

    monkeypatch.setattr("servax_registry.service.Registry.find_missing_blobs", missing)

    assert not registry.api.FindMissingBlobs(find).missing
