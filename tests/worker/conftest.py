"""What the worker's tests share: small real exports, a real registry process, a running worker."""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from safetensors.numpy import save_file

from servax import Client
from servax.reference import ModelReference
from servax.types import Blob, Signature, TensorSpec
from servax_worker.server import WorkerServer
from servax_worker.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)
BIAS = np.array([1, 2, 3, 4], np.float32)


@pytest.fixture(scope="session")
def symbolic():
    """Makes an argument's type with symbolic dimensions."""

    def symbolic(dimensions, dtype="float32", constraints=()):
        scope = export.SymbolicScope(constraints)
        shape = export.symbolic_shape(dimensions, scope=scope)
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    return symbolic


@pytest.fixture(scope="session")
def exported():
    """Exports a function."""

    def exported(function, *arguments, platforms=("cpu", "cuda"), **keywords):
        traced = export.export(jax.jit(function), platforms=platforms)
        return traced(*arguments, **keywords)

    return exported


@pytest.fixture(scope="session")
def described():
    """Makes (blob, signature) of an `Exported`, its arrays named x0, x1… and y0, y1…"""

    def described(program, custom_nodes=()):
        def specs(letter, avals):
            return tuple(
                TensorSpec(
                    f"{letter}{index}",
                    str(aval.dtype).replace("urbg", "unsafe_rbg"),
                    tuple(map(str, aval.shape)),
                    index,
                )
                for index, aval in enumerate(avals)
            )

        blob = program.serialize()
        header = bytes(program.mlir_module_serialized[:64])
        version = header.split(b"StableHLO_v")[1].split(b"\0")[0].decode()
        signature = Signature(
            name="serving_default",
            program=Blob(f"sha256:{hashlib.sha256(blob).hexdigest()}", len(blob)),
            function_name=program.fun_name,
            inputs=specs("x", program.in_avals),
            weights=(),
            outputs=specs("y", program.out_avals),
            platforms=program.platforms,
            device_count=program.nr_devices,
            calling_convention_version=program.calling_convention_version,
            serialization_version=3,
            stablehlo_version=version,
            jax_version="",
            custom_nodes=custom_nodes,
        )
        return blob, signature

    return described


def linear(params, x):
    """A function whose weights are an argument."""
    scores = x @ params["dense.kernel"] + params["dense.bias"]
    return {"scores": scores, "best": jnp.argmax(scores, -1)}


@pytest.fixture(scope="session")
def linear_program(exported, symbolic):
    """`linear` with a symbolic batch `b`: inputs x: float32[b,3]."""
    params = {
        "dense.kernel": jax.ShapeDtypeStruct(KERNEL.shape, KERNEL.dtype),
        "dense.bias": jax.ShapeDtypeStruct(BIAS.shape, BIAS.dtype),
    }
    return exported(linear, params, symbolic("b, 3")).serialize()


@pytest.fixture(scope="session")
def linear_weights(tmp_path_factory):
    """A safetensors file with the weights of `linear`."""
    path = tmp_path_factory.mktemp("weights") / "linear.safetensors"
    save_file({"dense.kernel": KERNEL, "dense.bias": BIAS}, path)
    return path


@pytest.fixture(scope="session")
def slow_program(exported):
    """A function that takes as long as it is told: `rounds` of some 10 to 100 nanoseconds."""

    def slow(rounds):
        return jax.lax.fori_loop(0, rounds, lambda i, x: (x * 5 + i) % 1_000_003, jnp.int32(1))

    return exported(slow, jax.ShapeDtypeStruct((), jnp.int32)).serialize()


class Process:
    """A service in a process of its own, which tells its address in its first line."""

    def __init__(self, module, *arguments, environment=None, log):
        self.log = Path(log)
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=self.log.parent,
                env={**os.environ, **(environment or {})},
            )
        self.events = []
        self.serving = self.wait_for("serving")
        threading.Thread(target=self._drain, daemon=True).start()

    @property
    def address(self):
        """Where it serves gRPC."""
        return self.serving["address"]

    def wait_for(self, event):
        """Reads the log until an event comes."""
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"no '{event}': {self.events} {self.log.read_text()}")

    def _drain(self):
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in self.process.stdout:
                self.events.append(json.loads(line))

    def stop(self):
        """Ends it as an operator would; gives the exit status."""
        self.process.terminate()
        status = self.process.wait(20)
        self.process.stdout.close()
        return status


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts processes of services; those that still run at the end are killed."""
    directory = tmp_path_factory.mktemp("processes")
    started = []

    def start(module, *arguments, environment=None):
        log = directory / f"{len(started)}.log"
        process = Process(module, *arguments, environment=environment, log=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()
        process.process.stdout.close()


@pytest.fixture(scope="session")
def registry(start, tmp_path_factory):
    """The address of a real registry in a process of its own."""
    database = tmp_path_factory.mktemp("registry") / "registry.db"
    return start(
        "servax_registry", "--db", f"sqlite:///{database}", "--listen", "127.0.0.1:0"
    ).address


@pytest.fixture(scope="session")
def publish(registry):
    """Publishes a version: `publish("name", program, weights=[path], …)`."""
    with Client(registry=registry) as client:

        def publish(name, program, **options):
            return client.push(name, program, **options)

        yield publish


@pytest.fixture(scope="session")
def cache_directory(tmp_path_factory):
    """One cache for all workers: JAX takes the first that it is given."""
    return tmp_path_factory.mktemp("cache")


@dataclass
class Running:
    """A worker on a thread of its own."""

    server: WorkerServer
    loop: asyncio.AbstractEventLoop

    @property
    def address(self):
        """Where it serves gRPC."""
        return self.server.address

    @property
    def http(self):
        """The base URL of its HTTP port."""
        return f"http://{self.server.http_address}"

    def wait_until_loaded(self):
        """Blocks until every model is READY or FAILED."""
        asyncio.run_coroutine_threadsafe(self.server.wait_until_loaded(), self.loop).result(60)


@pytest.fixture(scope="session")
def serving(registry, cache_directory):
    """Opens a worker in this process: `with serving("name", ...) as running`."""

    @contextlib.contextmanager
    def serving(*models, **changes):
        settings = Settings(
            **{
                "registry": registry,
                "models": tuple(map(ModelReference.parse, models)),
                "cache_directory": cache_directory,
                "listen": "127.0.0.1:0",
                "http": "127.0.0.1:0",
                "grace": 10.0,
                **changes,
            }
        )
        opened = threading.Event()
        running = []
        failure = []

        async def run():
            stop = asyncio.Event()
            async with WorkerServer(settings) as server:
                running.append((Running(server, asyncio.get_running_loop()), stop))
                opened.set()
                await stop.wait()

        def main():
            try:
                asyncio.run(run())
            except BaseException as error:
                failure.append(error)
            finally:
                opened.set()

        thread = threading.Thread(target=main)
        thread.start()
        opened.wait(60)
        if not running:
            raise failure[0]
        worker, stop = running[0]
        try:
            yield worker
        finally:
            worker.loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            if failure:
                raise failure[0]

    return serving


@pytest.fixture
def unused_address():
    """An address that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"127.0.0.1:{port}"
