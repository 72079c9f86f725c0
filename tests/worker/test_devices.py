"""Programs over several devices, on a machine that pretends to have them."""

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from servax import Client, FailedPrecondition

X = np.arange(32, dtype=np.float32).reshape(4, 8)
W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@pytest.fixture(scope="module")
def sharded():
    """tanh(x @ w), rows over one axis of 2 x 2 devices, columns of the weights over the other."""
    # JAX 0.12 cannot deserialize a symbolic dimension over an explicit axis, its default.
    mesh = AbstractMesh((2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)

    def spec(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def layer(params, x):
        return {"y": jax.numpy.tanh(x @ params["w"])}

    function = jax.jit(
        layer,
        in_shardings=({"w": spec(None, "columns")}, spec("rows", None)),
        out_shardings={"y": spec("rows", "columns")},
    )
    (b,) = export.symbolic_shape("b", constraints=["mod(b, 2) == 0"])
    arguments = (
        {"w": jax.ShapeDtypeStruct((8, 8), "float32")},
        jax.ShapeDtypeStruct((b, 8), "float32"),
    )
    return bytes(export.export(function, platforms=("cpu",))(*arguments).serialize())


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The file with the weights."""
    path = tmp_path_factory.mktemp("sharded") / "weights.safetensors"
    safetensors.numpy.save_file({"w": W}, path)
    return path


@pytest.fixture(scope="module")
def serve(start, registry, publish, sharded, weights, tmp_path_factory):
    """Serves the model in a process of its own, and gives a client."""
    publish("sharded", sharded, weights=[weights])

    def serve(environment):
        worker = start(
            "servax_worker",
            *("--registry", registry, "--model", "sharded", "--warm-up", "b=4"),
            *("--cache-dir", str(tmp_path_factory.mktemp("worker") / "cache")),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            environment=environment,
        )
        return Client(worker=worker.address)

    return serve


def test_a_program_runs_over_several_devices(serve):
    """A program over four devices is served on four, at sizes that it was and was not warmed up
    for, and gives what it gives on one.
    """
    with serve(FOUR_DEVICES) as client:
        client.wait_until_ready("sharded", timeout=60)
        for rows in (4, 2):
            y = client.predict("sharded", {"x": X[:rows]})["y"]
            np.testing.assert_allclose(y, np.tanh(X[:rows] @ W), rtol=1e-5)


def test_too_few_devices_are_told(serve):
    """On one device, the model is FAILED and the reason names both numbers."""
    with (
        serve({}) as client,
        pytest.raises(FailedPrecondition, match="runs on 4 devices, this worker has 1"),
    ):
        client.wait_until_ready("sharded", timeout=60)
