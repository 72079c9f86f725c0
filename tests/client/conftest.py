"""A registry and a worker that keep the API's promises in memory, and fail when told to."""

# The API's documentation tells what the methods of a servicer do.
# ruff: noqa: D102
# mypy: disable-error-code="no-untyped-call"

import asyncio
import hashlib
import itertools
import threading
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import grpc
import numpy as np
import pytest

from servax import AsyncClient, Client, convert
from servax.tensors import from_proto, to_proto
from servax.types import (
    BatchStatistics,
    Blob,
    Model,
    ServedState,
    ServedVersion,
    Signature,
    Spent,
    TensorSpec,
    Version,
    VersionStatistics,
    WeightsShard,
    WorkerStatus,
)
from servax_proto.v1 import (
    artifact_pb2,
    management_pb2,
    management_pb2_grpc,
    prediction_pb2,
    prediction_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def digest_of(data):
    """Give the digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_signature(name="serving_default", program=None, dtype="float32"):
    """Give the signature of a program that takes x: dtype[b,3] and gives it back."""
    return Signature(
        name=name,
        program=program or Blob(digest_of(b"program"), 7),
        function_name="forward",
        inputs=(TensorSpec("x", dtype, ("b", "3"), 0),),
        weights=(),
        outputs=(TensorSpec("output", dtype, ("b", "3"), 0),),
        platforms=("cpu",),
        device_count=1,
        calling_convention_version=10,
        serialization_version=6,
        stablehlo_version="1.13.0",
        jax_version="0.12.0",
    )


def model_to_proto(model):
    """Give the message of a value."""
    return artifact_pb2.Model(
        name=model.name,
        create_time=model.create_time,
        latest_version=model.latest_version,
        version_count=model.version_count,
        aliases=model.aliases,
    )


@pytest.fixture
def to_proto_of():
    """What makes the message of a value, by the value's type."""
    return {
        Version: convert.version_to_proto,
        Model: model_to_proto,
        WorkerStatus: convert.worker_status_to_proto,
    }


@dataclass
class FakeRegistry(registry_pb2_grpc.RegistryServicer):
    """Keeps everything in dicts.

    `cuts` holds, for the uploads to come, after how many messages each breaks off and how;
    `read_cuts` likewise. `publish_failures` and `model_failures` count the answers to be lost.
    `corrupt` flips a bit of every blob that is read; `silent` keeps GetModel and GetVersion from
    answering, and `asked` tells that they were called.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    partial: dict[str, bytearray] = field(default_factory=dict)
    versions: dict[tuple[str, int], Version] = field(default_factory=dict)
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)
    published: dict[str, Version] = field(default_factory=dict)
    cuts: list[tuple[int, grpc.StatusCode]] = field(default_factory=list)
    read_cuts: list[int] = field(default_factory=list)
    publish_failures: int = 0
    model_failures: int = 0
    corrupt: bool = False
    silent: bool = False
    asked: threading.Event = field(default_factory=threading.Event)
    listed: registry_pb2.ListVersionsRequest | None = None
    received: int = 0
    offsets: list[int] = field(default_factory=list)
    page_size: int = 2
    lock: threading.Lock = field(default_factory=threading.Lock)

    def FindMissingBlobs(self, request, context):
        missing = [
            registry_pb2.MissingBlob(
                digest=digest, committed_size=len(self.partial.get(digest, b""))
            )
            for digest in request.digests
            if digest not in self.blobs
        ]
        return registry_pb2.FindMissingBlobsResponse(missing=missing)

    def WriteBlob(self, requests, context):
        cut, status = self.cuts.pop(0) if self.cuts else (None, None)
        blob, data = registry_pb2.WriteBlobRequest().blob, bytearray()
        for index, request in enumerate(requests):
            if index == cut:
                context.abort(status, "broken off for the test")
            if index == 0:
                blob = request.blob
                self.offsets.append(request.offset)
                data = self.partial.setdefault(blob.digest, bytearray())
                if request.offset == 0:
                    data.clear()
            if request.offset != len(data):
                context.abort(grpc.StatusCode.OUT_OF_RANGE, "not where the upload stands")
            data += request.data
            self.received += len(request.data)
        if len(data) < blob.size:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stream ended early")
        del self.partial[blob.digest]
        if digest_of(data) != blob.digest:
            context.abort(grpc.StatusCode.DATA_LOSS, "the bytes do not match the digest")
        self.blobs[blob.digest] = bytes(data)
        return registry_pb2.WriteBlobResponse(blob=blob)

    def ReadBlob(self, request, context):
        data = bytearray(self.blobs.get(request.digest, b""))
        if request.digest not in self.blobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no blob {request.digest}")
        if self.corrupt:
            data[-1] ^= 1
        cut = self.read_cuts.pop(0) if self.read_cuts else None
        self.offsets.append(request.offset)
        for index, begin in enumerate(range(request.offset, len(data), 1 << 20)):
            if index == cut:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken off for the test")
            yield registry_pb2.ReadBlobResponse(data=bytes(data[begin : begin + (1 << 20)]))

    def PublishVersion(self, request, context):
        with self.lock:
            if request.request_id not in self.published:
                self.published[request.request_id] = self._publish(request, context)
        if self.publish_failures:
            self.publish_failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost for the test")
        return convert.version_to_proto(self.published[request.request_id])

    def _keep_silent(self, context):
        if self.silent:
            over = threading.Event()
            context.add_callback(over.set)
            self.asked.set()
            over.wait()

    def _publish(self, request, context):
        for digest in [*(program.digest for program in request.programs), *request.weights]:
            if digest not in self.blobs:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{digest} is not stored")
            if not self.blobs[digest]:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an empty file is no program")
        number = 1 + max((n for m, n in self.versions if m == request.model), default=0)
        version = Version(
            model=request.model,
            number=number,
            signatures=tuple(
                make_signature(p.signature, Blob(p.digest, len(self.blobs[p.digest])))
                for p in request.programs
            ),
            weights=tuple(
                WeightsShard(Blob(digest, len(self.blobs[digest])), ())
                for digest in request.weights
            ),
            description=request.description,
            labels=dict(request.labels),
            create_time=CREATED,
            aliases=tuple(sorted(request.aliases)),
        )
        self.versions[request.model, number] = version
        self.aliases.setdefault(request.model, {}).update(dict.fromkeys(request.aliases, number))
        return version

    def _of(self, name, context):
        versions = [v for (model, _), v in self.versions.items() if model == name]
        if not versions and name not in self.aliases:
            there = ", ".join(sorted(self.aliases)) or "none"
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {name!r}; there are: {there}")
        aliases = self.aliases.get(name, {})
        return [
            replace(v, aliases=tuple(sorted(a for a, n in aliases.items() if n == v.number)))
            for v in sorted(versions, key=lambda v: -v.number)
        ]

    def _model(self, name, context):
        versions = self._of(name, context)
        latest = versions[0].number if versions else 0
        model = Model(name, CREATED, latest, len(versions), self.aliases.get(name, {}))
        return model_to_proto(model)

    def _page(self, items, token):
        begin = int(token or 0)
        end = begin + self.page_size
        return items[begin:end], str(end) if end < len(items) else ""

    def ListModels(self, request, context):
        names, token = self._page(sorted(self.aliases), request.page_token)
        models = [self._model(name, context) for name in names]
        return registry_pb2.ListModelsResponse(models=models, next_page_token=token)

    def GetModel(self, request, context):
        self._keep_silent(context)
        if self.model_failures:
            self.model_failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "busy for the test")
        return self._model(request.model, context)

    def ListVersions(self, request, context):
        self.listed = request
        names = [request.model] if request.model else sorted(self.aliases)
        versions = [version for name in names for version in self._of(name, context)]
        page, token = self._page(versions, request.page_token)
        versions = map(convert.version_to_proto, page)
        return registry_pb2.ListVersionsResponse(versions=versions, next_page_token=token)

    def GetVersion(self, request, context):
        self._keep_silent(context)
        versions = self._of(request.model, context)
        number = request.version or (versions[0].number if versions else 0)
        if request.alias:
            number = self.aliases[request.model].get(request.alias)
        for version in versions:
            if version.number == number:
                return convert.version_to_proto(version)
        context.abort(grpc.StatusCode.NOT_FOUND, f"no such version of {request.model!r}")

    def SetAlias(self, request, context):
        self._of(request.model, context)
        aliases = self.aliases[request.model]
        if (request.model, request.version) not in self.versions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no version {request.version}")
        if request.HasField("expected_version"):
            now = aliases.get(request.alias, 0)
            if now != request.expected_version:
                context.abort(grpc.StatusCode.ABORTED, f"{request.alias!r} points to {now}")
        aliases[request.alias] = request.version
        return self._model(request.model, context)

    def DeleteAlias(self, request, context):
        self._of(request.model, context)
        if self.aliases[request.model].pop(request.alias, None) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no alias {request.alias!r}")
        return self._model(request.model, context)

    def DeleteVersion(self, request, context):
        for alias, number in self.aliases.get(request.model, {}).items():
            if number == request.version:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{alias!r} points to it")
        deleted = self.versions.pop((request.model, request.version), None)
        if deleted is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no version {request.version}")
        return convert.version_to_proto(deleted)


@dataclass
class FakeWorker(
    prediction_pb2_grpc.PredictionServicer, management_pb2_grpc.WorkerManagementServicer
):
    """Gives every input `x` back as `output`, and every other by its own name.

    `served` is what it says that it serves; each answer to GetStatus drops the first of `history`.
    `largest` is how many bytes an answer in one message may take.
    """

    served: tuple[ServedVersion, ...] = (
        ServedVersion("echo", 1, "", ServedState.READY, "", (make_signature(),)),
    )
    history: list[tuple[ServedVersion, ...]] = field(default_factory=list)
    requests: list[prediction_pb2.PredictRequest] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    truncate: bool = False
    repeat: int = 1
    largest: int = 1 << 30

    def _answer(self, request):
        self.requests.append(request)
        if request.model == "busy":
            return None, (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        if request.model != "echo":
            message = f"{request.model!r} is not served; there are: echo"
            return None, (grpc.StatusCode.NOT_FOUND, message)
        if "x" not in request.inputs:
            return None, (grpc.StatusCode.INVALID_ARGUMENT, "input 'x' is missing")
        response = prediction_pb2.PredictResponse(model="echo", version=1)
        for name, tensor in request.inputs.items():
            output = "output" if name == "x" else name
            if not request.outputs or output in request.outputs:
                array = from_proto(tensor)
                if self.repeat > 1:
                    array = np.repeat(array, self.repeat, axis=0)
                response.outputs[output].CopyFrom(to_proto(array))
        return response, None

    def Predict(self, request, context):
        response, error = self._answer(request)
        if error:
            if request.model == "busy":
                context.set_trailing_metadata([("grpc-retry-pushback-ms", "1500")])
            context.abort(*error)
        if response.ByteSize() > self.largest:
            context.set_trailing_metadata([("servax-in-parts", "PredictStream")])
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the answer is too large for Predict")
        return response

    def PredictStream(self, requests, context):
        whole = {}
        for message in requests:
            self.parts.append(message.ByteSize())
            if message.id not in whole:
                whole[message.id] = message.request
            else:
                for name, tensor in message.request.inputs.items():
                    whole[message.id].inputs[name].data += tensor.data
            if not message.more:
                yield from self._respond(message.id, whole.pop(message.id))

    def _respond(self, identity, request):
        response, error = self._answer(request)
        if error:
            code, message = error
            status = prediction_pb2.Error(code=code.value[0], message=message, retry_after=1.5)
            yield prediction_pb2.PredictStreamResponse(id=identity, error=status)
            return
        data = {name: tensor.data for name, tensor in response.outputs.items()}
        for tensor in response.outputs.values():
            tensor.data = b""
        yield prediction_pb2.PredictStreamResponse(id=identity, response=response, more=True)
        for name, payload in data.items():
            for begin in range(0, len(payload), 3_000_001):
                part = prediction_pb2.PredictResponse()
                part.outputs[name].data = payload[begin : begin + 3_000_001]
                yield prediction_pb2.PredictStreamResponse(id=identity, response=part, more=True)
        if not self.truncate:
            end = prediction_pb2.PredictResponse()
            yield prediction_pb2.PredictStreamResponse(id=identity, response=end)

    def GetStatus(self, request, context):
        served = self.history.pop(0) if self.history else self.served
        served = tuple(v for v in served if request.model in ("", v.model))
        return convert.worker_status_to_proto(WorkerStatus(served, "cpu", "0.12.0"))

    def GetStatistics(self, request, context):
        found = VersionStatistics(
            *("lm", 3, Spent(4, 2.0), Spent(1, 0.5), Spent(4, 1.0)),
            (BatchStatistics(2, Spent(2, 0.1), Spent(2, 0.8), Spent(2, 0.2)),),
        )
        return prediction_pb2.GetStatisticsResponse(
            versions=[convert.statistics_to_proto(found)] * (request.model in ("", "lm"))
        )

    def LoadModel(self, request, context):
        if request.model == "forbidden":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not allowed for the test")
        loading = ServedVersion(
            request.model, request.version, request.alias, ServedState.RESOLVING, "", ()
        )
        if loading not in self.served:
            self.served += (loading,)
        return management_pb2.LoadModelResponse(versions=[convert.served_version_to_proto(loading)])

    def UnloadModel(self, request, context):
        gone = tuple(
            each
            for each in self.served
            if (each.model, each.alias) == (request.model, request.alias)
            and request.version in (0, each.version)
        )
        self.served = tuple(each for each in self.served if each not in gone)
        return management_pb2.UnloadModelResponse(
            versions=map(convert.served_version_to_proto, gone)
        )


@contextmanager
def serving(add, servicer):
    """Serve on a free port; gives the address."""
    with futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        add(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@pytest.fixture
def registry():
    """The registry that the clients of this test speak to."""
    return FakeRegistry()


@pytest.fixture
def worker():
    """The worker that the clients of this test speak to."""
    return FakeWorker()


@pytest.fixture
def registry_address(registry):
    """Where the registry listens."""
    with serving(registry_pb2_grpc.add_RegistryServicer_to_server, registry) as address:
        yield address


@pytest.fixture
def worker_address(worker):
    """Where the worker listens."""

    def add(servicer, server):
        prediction_pb2_grpc.add_PredictionServicer_to_server(servicer, server)
        management_pb2_grpc.add_WorkerManagementServicer_to_server(servicer, server)

    with serving(add, worker) as address:
        yield address


class Blocking:
    """An AsyncClient with the face of a Client, so that one test serves both."""

    def __init__(self, runner, client):
        self._runner, self._client = runner, client

    def __getattr__(self, name):
        def call(*args, **kwargs):
            result = getattr(self._client, name)(*args, **kwargs)
            if hasattr(result, "__aiter__"):
                return iter(self._runner.run(_collect(result)))
            return self._runner.run(result)

        return call


async def _collect(items):
    return [item async for item in items]


@pytest.fixture(params=["sync", "async"])
def connect(request):
    """Make clients of either kind; they are closed after the test."""
    made: list[Client | Blocking] = []
    if request.param == "sync":

        def make(**kwargs):
            made.append(Client(**kwargs))
            return made[-1]

        yield make
        for client in made:
            client.close()
    else:
        with asyncio.Runner() as runner:

            def make(**kwargs):
                made.append(Blocking(runner, AsyncClient(**kwargs)))
                return made[-1]

            yield make
            for client in made:
                client.close()


@pytest.fixture
def client(connect, registry_address, worker_address):
    """A client of either kind that is connected to both services."""
    return connect(registry=registry_address, worker=worker_address, timeout=20)


@pytest.fixture
def file_of(tmp_path):
    """Make files with given contents."""
    numbers = itertools.count()

    def make(data):
        path = tmp_path / f"file-{next(numbers)}.bin"
        path.write_bytes(data)
        return path

    return make


@pytest.fixture
def large():
    """Bytes that take six messages to transfer."""
    return np.random.default_rng(0).bytes((5 << 20) + 12345)
