"""What a version has to pass before it is READY."""

import gc

import httpx
import numpy as np
import pytest
import safetensors.numpy

from servax import Batching, Client, FailedPrecondition, Golden

X = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)


@pytest.fixture(scope="module")
def doubling(exported, symbolic):
    """x * 2 of float32[b,3]."""
    return bytes(exported(lambda x: x * 2, symbolic("b, 3")).serialize())


def golden(outputs, **tolerances):
    """A golden example of X."""
    return Golden(safetensors.numpy.save({"inputs/x": X, "outputs/output": outputs}), **tolerances)


@pytest.mark.parametrize("batching", [None, Batching("b", max_rows=2)])
@pytest.mark.parametrize("on_demand", [True, False])
def test_a_golden_example_is_reproduced(registry, publish, doubling, serving, batching, on_demand):
    """A version whose golden example comes out right is READY, whatever sizes are warmed up, and
    also where its rows are cut into batches.
    """
    name = f"golden-{batching is None}-{on_demand}".lower()
    publish(name, doubling, golden=golden(2 * X), batching=batching)

    with (
        serving(name, warm_up={"b": (2,)}, compile_on_demand=on_demand) as server,
        Client(worker=server.address) as client,
    ):
        client.wait_until_ready(name, timeout=60)
        np.testing.assert_array_equal(client.predict(name, {"x": X})["output"], 2 * X)


def test_what_is_not_reproduced_is_not_served(registry, publish, doubling, serving):
    """A version that gives something else is FAILED, with the worst element."""
    wrong = 2 * X
    wrong[1, 2] += 0.5
    publish("golden-wrong", doubling, golden=golden(wrong))

    with (
        serving("golden-wrong") as server,
        Client(worker=server.address) as client,
        pytest.raises(FailedPrecondition, match=r"1 of 9 .* \[1,2\]: 12.0 instead of 12.5"),
    ):
        client.wait_until_ready("golden-wrong", timeout=60)


def test_tolerances_are_the_publishers(registry, publish, doubling, serving):
    """What is off by less than the publisher allows is served."""
    publish("golden-near", doubling, golden=golden(2 * X + 0.01, atol=0.02))

    with serving("golden-near") as server, Client(worker=server.address) as client:
        client.wait_until_ready("golden-near", timeout=60)


def test_memory_that_is_not_left_refuses_a_version(
    registry, publish, linear_program, linear_weights, doubling, serving
):
    """A version that takes more memory than is left is FAILED before it is placed, the other one
    serves, and the metrics tell what it takes.
    """
    publish("memory-small", doubling)
    publish("memory-large", linear_program, weights=[linear_weights])

    with (
        serving("memory-small", "memory-large", memory_limit=1) as server,
        Client(worker=server.address) as client,
        pytest.raises(FailedPrecondition, match=r"of memory-(small|large):1 take .* left"),
    ):
        client.wait_until_ready("memory-large", timeout=60)
    with serving("memory-small", memory_limit=10**6) as server:
        with Client(worker=server.address) as client:
            client.wait_until_ready("memory-small", timeout=60)
        metrics = httpx.get(f"{server.http}/metrics").text
        gc.collect()
    assert 'servax_reserved_bytes{version="memory-small:1"}' in metrics
