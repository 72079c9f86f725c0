"""Joined answers equal unjoined ones, through programs of JAX and a whole worker."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import grpc
import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from servax.tensors import to_proto
from servax.types import Batching, Version
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.assembly import Assembler
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.memory import MemoryBudget
from servax_worker.metrics import Metrics
from servax_worker.planning import Planner
from servax_worker.plans import Plans
from servax_worker.runtime import Runtime
from servax_worker.settings import Settings


def embed(tokens, scale):
    """Rows that do not influence each other: a lookup, a product, and a sum over a row."""
    table = jnp.sin(jnp.arange(40, dtype=jnp.float32)).reshape(10, 4)
    return {"rows": jnp.sum(table[tokens], 1) @ jnp.ones((4, 3)) * scale, "first": tokens[:, 0]}


@pytest.fixture(scope="module")
def runtime(cache_directory):
    """JAX as the worker configures it."""
    return Runtime(cache_directory / "executables")


@pytest.fixture
def assembled(runtime, tmp_path, described):
    """Opens a loaded signature of an export: `async with assembled(program, Batching("b"))`."""

    @asynccontextmanager
    async def assembled(program, declared, metrics=None, proved=False, told=None, **changes):
        blob, signature = described(program)
        signature = replace(signature, batching=declared)
        path = tmp_path / "program"
        path.write_bytes(blob)
        version = Version("m", 1, (signature,), (), "", {}, datetime.now(UTC))
        settings = Settings("", (), tmp_path, **changes)
        dispatcher = Dispatcher()
        plans = Plans(tmp_path / "plans")
        assembler = Assembler(
            runtime, dispatcher, metrics or Metrics(), plans, MemoryBudget(None), settings
        )
        try:
            files = {signature.program.digest: path}
            told = [] if told is None else told
            loaded = await assembler.assemble(
                version, files, lambda state, detail: told.append(detail), proved=proved
            )
            yield loaded.signatures["serving_default"]
        finally:
            assembler.close()
            dispatcher.close()

    return assembled


@pytest.fixture(scope="module")
def embedding(exported):
    """`embed` with symbolic rows `b` and tokens a row `t`."""
    b, t = export.symbolic_shape("b, t")
    tokens = jax.ShapeDtypeStruct((b, t), jnp.int32)
    return exported(embed, tokens, jax.ShapeDtypeStruct((b, 1), jnp.float32))


@pytest.fixture(scope="module")
def fixed(exported, symbolic):
    """`embed` for four rows of two tokens."""
    return exported(embed, symbolic("4, 2", "int32"), symbolic("4, 1"))


def request(random, rows, tokens):
    """Inputs of so many rows."""
    return {
        "x0": random.integers(0, 10, (rows, tokens), np.int32),
        "x1": random.random((rows, 1), np.float32),
    }


async def call(signature, inputs, deadline=None):
    """Checks and runs, as the predictor does."""
    sizes = signature.checker.check(inputs)
    return (await signature.call(inputs, sizes, deadline)).outputs


def same(outputs, expected, exactly=True):
    """Whether two answers are the same, or nearly."""
    compare = np.array_equal if exactly else np.allclose
    return all(compare(outputs[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("proved", "tried"), [(True, 1), (False, 3)])
def test_of_what_was_proved_one_size_is_tried(assembled, embedding, proved, tried):
    """Every size is run before it is served, but for those that a loader process has run."""
    told = []

    async def scenario():
        sizes = {"b": (1, 2, 4), "t": (2,)}
        async with assembled(embedding, None, proved=proved, told=told, warm_up=sizes):
            pass

    asyncio.run(scenario())

    assert sum(detail.startswith("running") for detail in told) == tried


def test_joined_answers_equal_unjoined_ones(assembled, embedding):
    """Of a thousand calls of mixed sizes, joined as it comes, each gets what it gets alone."""
    random = np.random.default_rng(0)
    requests = [
        request(random, int(random.integers(1, 9)), int(random.integers(1, 4))) for _ in range(1000)
    ]

    async def scenario():
        async with assembled(embedding, None) as alone:
            expected = [await call(alone, inputs) for inputs in requests]
        metrics = Metrics()
        async with assembled(
            embedding, Batching("b"), metrics, warm_up={"b": (1, 4, 8), "t": (1, 2)}
        ) as joined:
            outputs = await asyncio.gather(*(call(joined, inputs) for inputs in requests))
            assert len(joined.executables) <= 9
        return expected, outputs, metrics

    expected, outputs, metrics = asyncio.run(scenario())

    # XLA may order the sums of a row differently in a program for another number of rows.
    assert all(same(*pair, exactly=False) for pair in zip(outputs, expected, strict=True))
    labels = {"model": "m", "version": "1", "signature": "serving_default"}
    batches = metrics.registry.get_sample_value("servax_batch_rows_count", labels)
    rows = metrics.registry.get_sample_value("servax_batch_rows_sum", labels)
    assert rows == sum(len(inputs["x0"]) for inputs in requests)
    assert batches < 1000


def test_the_same_executable_gives_the_same_bits(assembled, fixed):
    """Where one executable runs, neither neighbours nor padding change a bit of an answer."""
    random = np.random.default_rng(1)
    requests = [request(random, int(random.integers(1, 12)), 2) for _ in range(300)]

    async def scenario():
        async with assembled(fixed, Batching(""), batching=False) as alone:
            expected = [await call(alone, inputs) for inputs in requests]
        async with assembled(fixed, Batching("")) as joined:
            outputs = await asyncio.gather(*(call(joined, inputs) for inputs in requests))
            assert len(joined.executables) == 1
        return expected, outputs

    assert all(same(*pair) for pair in zip(*asyncio.run(scenario()), strict=True))


def test_callers_see_a_fixed_batch_as_any(assembled, fixed):
    """A program for four rows is offered with a symbol, and other sizes are still refused."""

    async def scenario():
        async with assembled(fixed, Batching("")) as signature:
            with pytest.raises(InvalidInput, match="dimension 1 is 3 instead of 2"):
                await call(signature, request(np.random.default_rng(2), 1, 3))
            return signature.checker.signature

    signature = asyncio.run(scenario())
    assert [spec.shape for spec in signature.inputs] == [("b", "2"), ("b", "1")]
    assert signature.batching == Batching("b", 4)


def test_a_restart_does_not_measure_again(assembled, embedding, monkeypatch):
    """What was found out about a program is kept, and read in the same circumstances only."""
    measured = []
    tune = Planner._tune
    monkeypatch.setattr(Planner, "_tune", lambda *args: measured.append(1) or tune(*args))

    async def scenario(**changes):
        async with assembled(embedding, Batching("b", 4), **changes) as signature:
            return signature._plan

    first, second = asyncio.run(scenario()), asyncio.run(scenario())
    assert first == second
    assert len(measured) == 1
    told = asyncio.run(scenario(max_batch_rows=2))
    assert len(measured) == 2
    assert [bucket.rows for bucket in told.buckets[(("t", 1),)]] == [1, 2]


@pytest.mark.parametrize("allowed", ["mod(b, 3) == 0", "b <= 3"])
def test_constraints_on_rows_are_met_for_callers(assembled, exported, symbolic, allowed):
    """Callers may send any number of rows: padding and cutting meet the program's constraints."""
    program = exported(lambda x: x * 2, symbolic("b, 2", constraints=[allowed]))

    async def scenario():
        async with assembled(program, Batching("b")) as signature:
            outputs = await asyncio.gather(
                *(call(signature, {"x0": np.full((rows, 2), rows, "f4")}) for rows in range(1, 9))
            )
            sizes = {executable.sizes["b"] for executable in signature.executables}
            return outputs, sizes

    outputs, sizes = asyncio.run(scenario())
    assert [outputs["y0"].tolist() for outputs in outputs] == [
        [[2.0 * rows] * 2] * rows for rows in range(1, 9)
    ]
    assert all(eval(allowed, {"mod": lambda a, b: a % b, "b": size}) for size in sizes)


@pytest.mark.parametrize(
    ("shapes", "result", "batching"),
    [
        (("b, 2", "3"), lambda x, y: x, Batching("b")),
        (("b, b",), lambda x: x, Batching("b")),
        (("b, 2",), lambda x: x.sum(), Batching("b")),
        (("t, 2",), lambda x: x, Batching("b")),
        (("b, 2",), lambda x: x, Batching("")),
        (("4, 2", "3, 2"), lambda x, y: x, Batching("")),
        ((), lambda: jnp.ones(4), Batching("")),
    ],
)
def test_a_wrong_declaration_is_refused(assembled, exported, symbolic, shapes, result, batching):
    """Batching over what is not the rows of every input and output is refused at loading."""
    program = exported(result, *map(symbolic, shapes))

    async def scenario():
        async with assembled(program, batching):
            pass

    with pytest.raises(CannotServe, match="declares batching over"):
        asyncio.run(scenario())


def test_a_full_queue_tells_clients_when_to_come_back(serving, publish, slow_program):
    """Requests too many are RESOURCE_EXHAUSTED at once, with the hint that gRPC's retries heed."""
    publish("queued", slow_program)
    message = prediction_pb2.PredictRequest(
        model="queued", inputs={"rounds": to_proto(np.int32(50_000_000))}
    )
    with (
        serving("queued", max_queue=1) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        running.wait_until_loaded()
        stub = prediction_pb2_grpc.PredictionStub(channel)
        calls = [stub.Predict.future(message) for _ in range(12)]
        refused = [call for call in calls if call.exception() is not None]
        metrics = httpx.get(f"{running.http}/metrics").text

    assert 1 <= len(refused) < len(calls)
    for call in refused:
        assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-queue" in call.details()
        assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) >= 0
    labels = 'model="queued",signature="serving_default",version="1"'
    assert f"servax_queued_requests{{{labels}}} 0.0" in metrics
