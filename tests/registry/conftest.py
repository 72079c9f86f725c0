"""Registries to talk to, in this process and in another, and real artifacts to put into them."""

import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import grpc
import jax
import numpy as np
import pytest
import safetensors.numpy
from jax import export
from obstore.store import from_url
from sqlalchemy import NullPool, create_engine, make_url

from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc
from servax_registry.convert import size_of
from servax_registry.errors import RegistryError
from servax_registry.inspection import inspect_program
from servax_registry.interceptors import status_of
from servax_registry.server import serve
from servax_registry.service import Registry
from servax_registry.servicer import RegistryServicer
from servax_registry.settings import Settings
from servax_registry.store.blobs import BlobStore
from servax_registry.store.bucket import open_bucket
from servax_registry.store.database import Database
from servax_registry.store.models import Base

MIB = 1 << 20


def digest_of(data):
    """Give the digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Calls:
    """The registry's methods, and the sequences of calls that many tests need.

    `api` has the methods of the API; `error` is what it raises, and `explain` takes code and
    message out of that.
    """

    def __init__(self, api, error, explain):
        self.api = api
        self._error = error
        self.explain = explain

    @contextmanager
    def refuses(self, code, pattern):
        """Check that the block is answered with this status and a message like that."""
        with pytest.raises(self._error) as caught:
            yield
        found, message = self.explain(caught.value)
        assert (found, bool(re.search(pattern, message))) == (code, True), message

    def write(self, data, offset=0, *, digest=None, size=None, part=MIB):
        """Upload the bytes of a blob from an offset on."""

        def requests():
            yield registry_pb2.WriteBlobRequest(
                blob=artifact_pb2.Blob(
                    digest=digest or digest_of(data), size=len(data) if size is None else size
                ),
                offset=offset,
            )
            for begin in range(offset, len(data), part):
                yield registry_pb2.WriteBlobRequest(offset=begin, data=data[begin : begin + part])

        self.api.WriteBlob(requests())
        return digest or digest_of(data)

    def read(self, digest, offset=0, limit=0):
        """Download a blob."""
        request = registry_pb2.ReadBlobRequest(digest=digest, offset=offset, limit=limit)
        return b"".join(response.data for response in self.api.ReadBlob(request))

    def missing(self, *digests):
        """Give the committed sizes of the blobs that are not stored."""
        request = registry_pb2.FindMissingBlobsRequest(digests=digests)
        found = self.api.FindMissingBlobs(request).missing
        return {blob.digest: blob.committed_size for blob in found}

    def publish(self, model, *programs, weights=(), **fields):
        """Upload programs and weights, and publish them as a version."""
        sources = [
            registry_pb2.ProgramSource(
                signature=f"s{index}" if index else "", digest=self.write(program)
            )
            for index, program in enumerate(programs)
        ]
        return self.api.PublishVersion(
            registry_pb2.PublishVersionRequest(
                model=model,
                programs=sources,
                weights=[self.write(data) for data in weights],
                **fields,
            )
        )


class InProcess:
    """Calls a servicer as gRPC would, without gRPC."""

    def __init__(self, servicer):
        self._servicer = servicer

    def __getattr__(self, method):
        return lambda request: getattr(self._servicer, method)(request, self)

    def invocation_metadata(self):
        """What callers send beside their requests."""
        return [("servax-actor", "tester")]


# Servers that tests use where these variables have their URLs; .ci/services starts them.
SERVERS = {"PostgreSQL": "SERVAX_TEST_POSTGRES", "S3": "SERVAX_TEST_S3"}


def at_hand(server):
    """Give the server's name in a list, empty where there is none."""
    return [server] if SERVERS[server] in os.environ else []


class Backend(NamedTuple):
    """Where a registry keeps things: the URLs of its database and, outside of that, its blobs.

    `opened` is that database.
    """

    database: str
    blobs: str | None
    opened: Database

    def empty(self):
        """Delete all that is kept; whoever has it open can go on."""
        with self.opened.write() as session:
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(table.delete())
        if self.blobs is not None:
            store = from_url(self.blobs)
            names = {item["path"] for page in store.list() for item in page}
            if names := names - {"servax-registry.txt"}:
                store.delete(list(names))


@pytest.fixture
def url(tmp_path):
    """A SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture(scope="session")
def create_postgresql():
    """Create an empty PostgreSQL database, and give its URL; dropped after the last test."""
    if not at_hand("PostgreSQL"):
        pytest.skip(f"{SERVERS['PostgreSQL']} is not set; run the tests under .ci/services")
    server = make_url(os.environ[SERVERS["PostgreSQL"]])
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    names = []

    def run(statement):
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def create():
        names.append(f"servax_{secrets.token_hex(8)}")
        run(f"CREATE DATABASE {names[-1]}")
        return server.set(database=names[-1]).render_as_string(hide_password=False)

    yield create
    for name in names:
        run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgresql(create_postgresql):
    """An empty PostgreSQL database."""
    return create_postgresql()


@pytest.fixture(params=["SQLite", *at_hand("PostgreSQL")])
def database_url(request, tmp_path):
    """Each kind of database that is at hand."""
    if request.param == "PostgreSQL":
        return request.getfixturevalue("postgresql")
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture(scope="session")
def backends(request, tmp_path_factory):
    """Give the backend of a kind of database and a place for blobs, always the same."""
    with ExitStack() as stack:

        @cache
        def backend(database, blobs):
            folder = tmp_path_factory.mktemp("backend")
            url = f"sqlite:///{folder / 'registry.db'}"
            if database == "PostgreSQL":
                url = request.getfixturevalue("create_postgresql")()
            opened = stack.enter_context(closing(Database(url)))
            opened.migrate()
            place = None
            if blobs == "directory":
                place = (folder / "blobs").as_uri()
            elif blobs == "S3":
                place = f"{os.environ[SERVERS['S3']]}/{secrets.token_hex(8)}"
            if place is not None:
                open_bucket(place, used=False)
            return Backend(url, place, opened)

        yield backend


@pytest.fixture(
    params=product(["SQLite", *at_hand("PostgreSQL")], ["database", "directory", *at_hand("S3")]),
    ids="-".join,
)
def backend(request, backends):
    """Every combination of databases and places for blobs that is at hand, empty.

    Tests have them one after another, since making them takes longer than most tests do.
    """
    backend = backends(*request.param)
    backend.empty()
    return backend


@pytest.fixture
def database(url):
    """An empty database."""
    database = Database(url)
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def blobs(database):
    """The blobs of that database."""
    return BlobStore(database)


@pytest.fixture
def connect():
    """Make Calls to the registry at an address; the channels are closed after the test."""
    with ExitStack() as stack:

        def connect(address):
            channel = stack.enter_context(grpc.insecure_channel(address))
            stub = registry_pb2_grpc.RegistryStub(channel)
            return Calls(stub, grpc.RpcError, lambda error: (error.code(), error.details()))

        yield connect


@pytest.fixture(scope="session")
def inspect():
    """The real inspection, which starts a process once for every different blob."""
    known = {}

    def inspect(file):
        digest = digest_of(file.read())
        if digest not in known:
            known[digest] = inspect_program(file)
        return known[digest]

    return inspect


@pytest.fixture(scope="session")
def servers(inspect):
    """Give the address of a backend's registry, which serves from its first test on."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr("servax_registry.server.Registry", partial(Registry, inspect=inspect))

        @cache
        def address(backend):
            settings = Settings(backend.database, "127.0.0.1:0", blobs=backend.blobs)
            return stack.enter_context(serve(settings)).address

        yield address


@pytest.fixture(params=["in-process", "gRPC"])
def registry(request, backend, servers, connect, inspect):
    """A registry on every backend, called directly and over gRPC."""
    if request.param == "gRPC":
        return connect(servers(backend))
    blobs = BlobStore(backend.opened, backend.blobs)
    registry = Registry(backend.opened, blobs, size_of=size_of, inspect=inspect)
    servicer = RegistryServicer(registry, max_transfers=64)
    return Calls(InProcess(servicer), RegistryError, lambda error: (status_of(error), str(error)))


class RegistryProcess:
    """A registry in a process of its own, which can be killed and started again."""

    def __init__(self, url):
        self._url = url
        self.process: Any = None
        self.address = ""

    def start(self, *options):
        """Start it, wait until it serves and give its address."""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "servax_registry", "serve"),
                *("--db", self._url, "--listen", "127.0.0.1:0", *options),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = json.loads(self.process.stdout.readline())["address"]
        return self.address

    def stop(self, number=signal.SIGTERM):
        """Send a signal, wait for the end and give the exit code."""
        self.process.send_signal(number)
        code = self.process.wait()
        self.process.stdout.close()
        self.process = None
        return code


@pytest.fixture
def process(url):
    """A registry process that is not started yet; ended after the test."""
    process = RegistryProcess(url)
    yield process
    if process.process is not None:
        process.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def linear():
    """An exported x @ params["w"] + params["b"] of float32, with a symbolic batch."""
    (b,) = export.symbolic_shape("b")
    arguments = (
        {"w": jax.ShapeDtypeStruct((4, 3), "float32"), "b": jax.ShapeDtypeStruct((3,), "float32")},
        jax.ShapeDtypeStruct((b, 4), "float32"),
    )

    def linear(params, x):
        return {"logits": x @ params["w"] + params["b"]}

    return bytes(export.export(jax.jit(linear))(*arguments).serialize())


@pytest.fixture(scope="session")
def constant():
    """An exported function of one array, x + 1, without weights."""
    exported = export.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), "int32"))
    return bytes(exported.serialize())


@pytest.fixture(scope="session")
def linear_weights():
    """The safetensors file that `linear` takes."""
    tensors = {"w": np.ones((4, 3), np.float32), "b": np.arange(3, dtype=np.float32)}
    return safetensors.numpy.save(tensors)
