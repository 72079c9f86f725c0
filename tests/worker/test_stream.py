"""PredictStream: many requests over one stream, in parts, each with its own fate."""

import asyncio

import grpc
import grpc.aio
import numpy as np
import pytest

from servax.tensors import from_bytes, to_proto
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.errors import Overloaded
from servax_worker.predictor import Predictor

ROUNDS = 20_000_000


@pytest.fixture(scope="module")
def address(publish, serving, linear_program, linear_weights, slow_program):
    """Where a worker serves `stream-linear` and `stream-slow`."""
    publish("stream-linear", linear_program, weights=[linear_weights])
    publish("stream-slow", slow_program)
    with serving("stream-linear", "stream-slow", max_in_flight=4) as running:
        running.wait_until_loaded()
        yield running.address


def part(id, inputs, more=False, model="stream-linear", **fields):
    """One message of a request."""
    request = prediction_pb2.PredictRequest(
        model=model,
        inputs={
            name: to_proto(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        },
        **fields,
    )
    return prediction_pb2.PredictStreamRequest(id=id, request=request, more=more)


def slow(id, rounds=ROUNDS):
    """A request that takes a while."""
    return part(id, {"rounds": np.array(rounds, np.int32)}, model="stream-slow")


def exchange(address, messages):
    """Sends messages, ends the sending, and gives all answers."""

    async def run():
        async with grpc.aio.insecure_channel(address) as channel:
            call = prediction_pb2_grpc.PredictionStub(channel).PredictStream(iter(messages))
            return [answer async for answer in call]

    return asyncio.run(run())


def rows(count):
    """An input of so many rows."""
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def test_a_full_queue_tells_when_to_come_back(address, monkeypatch):
    """A request that a full queue refuses is told in how many seconds to try again."""

    async def predict(self, request):
        raise Overloaded("full", retry_after=2.5)

    monkeypatch.setattr(Predictor, "predict", predict)

    (answer,) = exchange(address, [part(1, {"x": rows(1)})])

    assert answer.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert answer.error.retry_after == 2.5


def test_each_answer_comes_when_it_is_there(address):
    """A quick request that came later is answered while a slow one is still running elsewhere."""

    async def run():
        async with grpc.aio.insecure_channel(address) as channel:
            call = prediction_pb2_grpc.PredictionStub(channel).PredictStream()
            # The second waits for a size that is compiled first, the third for nothing.
            await call.write(part(1, {"x": rows(777)}))
            await call.write(part(2, {"x": rows(1)}))
            await call.done_writing()
            return [answer.id async for answer in call]

    assert asyncio.run(run()) == [2, 1]


def test_many_requests_are_all_answered(address):
    """More requests than run at once are all answered, each with its own result."""
    answers = exchange(
        address, [part(id, {"x": rows(1) * id}, outputs=["scores"]) for id in range(50)]
    )

    assert sorted(answer.id for answer in answers) == list(range(50))
    for answer in answers:
        scores = answer.response.outputs["scores"]
        x = rows(1) * answer.id
        np.testing.assert_array_equal(
            from_bytes(scores.dtype, scores.shape, scores.data),
            x @ np.arange(12, dtype=np.float32).reshape(3, 4) + np.float32([1, 2, 3, 4]),
        )


def test_parts_of_requests_may_be_interleaved(address):
    """Two requests whose parts take turns are joined rightly, in whatever order they end."""
    first, second = to_proto(rows(8)), to_proto(rows(2))
    halves = {}
    for name, tensor in (("first", first), ("second", second)):
        middle = len(tensor.data) // 2 + 1  # in the middle of an element
        halves[name] = tensor.data[:middle], tensor.data[middle:]

    def head(tensor, data):
        return (
            prediction_pb2.PredictRequest()
            .inputs["x"]
            .__class__(dtype=tensor.dtype, shape=tensor.shape, data=data)
        )

    def tail(data):
        return prediction_pb2.PredictRequest().inputs["x"].__class__(data=data)

    answers = exchange(
        address,
        [
            part(1, {"x": head(first, halves["first"][0])}, more=True),
            part(2, {"x": head(second, halves["second"][0])}, more=True),
            part(2, {"x": tail(halves["second"][1])}),
            part(1, {"x": tail(halves["first"][1])}),
        ],
    )

    shapes = {a.id: list(a.response.outputs["scores"].shape) for a in answers}
    assert shapes == {1: [8, 4], 2: [2, 4]}


def test_large_answers_come_in_parts(address):
    """No message of an answer exceeds gRPC's default limit, and the parts are the answer."""
    count = 300_000
    data = rows(count).tobytes()
    step = 1 << 20
    pieces = [data[i : i + step] for i in range(0, len(data), step)]
    messages = [
        part(5, {"x": {"dtype": "float32", "shape": [count, 3], "data": pieces[0]}}, more=True)
    ]
    messages += [
        part(5, {"x": {"data": piece}}, more=piece is not pieces[-1]) for piece in pieces[1:]
    ]
    answers = exchange(address, messages)
    scores = b"".join(answer.response.outputs["scores"].data for answer in answers)

    assert len(answers) > 4
    assert max(answer.ByteSize() for answer in answers) < 2 << 20
    assert [answer.more for answer in answers] == [True] * (len(answers) - 1) + [False]
    expected = rows(count) @ np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(
        np.frombuffer(scores, np.float32).reshape(-1, 4), expected + np.float32([1, 2, 3, 4])
    )


def test_an_error_ends_its_request_only(address):
    """Bad requests of every kind are answered by id, and the good ones among them are served."""
    good = {"x": rows(2)}
    answers = exchange(
        address,
        [
            part(1, good),
            part(2, {"x": np.zeros((2, 3))}),
            part(3, good, model="nothing"),
            part(4, {"x": {"dtype": "float32", "shape": [2, 3], "data": b"short"}}),
            part(5, good, more=True),
            part(5, {"y": {"data": b"what"}}, more=True),
            part(5, {"x": {"data": b"swallowed"}}),
            part(6, {"x": {"dtype": "what", "shape": [1], "data": b""}}),
            part(7, good),
        ],
    )
    codes = {answer.id: answer.error.code for answer in answers}
    messages = {answer.id: answer.error.message for answer in answers}
    invalid = grpc.StatusCode.INVALID_ARGUMENT.value[0]

    assert len(answers) == len(codes)
    assert codes == {
        1: 0, 2: invalid, 3: grpc.StatusCode.NOT_FOUND.value[0], 4: invalid, 5: invalid,
        6: invalid, 7: 0,
    }  # fmt: skip
    assert "cast it" in messages[2]
    assert "takes 24 bytes of data, there are 5" in messages[4]
    assert "'y', which its first part does not name" in messages[5]
    assert "unknown dtype 'what'" in messages[6]


def test_an_id_in_use_is_refused(address):
    """A request with the id of one that is not answered yet is refused; later it is free again."""

    async def run():
        async with grpc.aio.insecure_channel(address) as channel:
            call = prediction_pb2_grpc.PredictionStub(channel).PredictStream()
            await call.write(slow(1))
            await call.write(slow(1, 1))
            refusal, answer = await call.read(), await call.read()
            await call.write(slow(1, 1))
            again = await call.read()
            await call.done_writing()
            return refusal, answer, again

    refusal, answer, again = asyncio.run(run())

    assert "request 1 of this stream is not answered yet" in refusal.error.message
    assert answer.HasField("response")
    assert again.HasField("response")


def test_unfinished_requests_are_bounded(address):
    """Beyond the limit of open requests a new one is refused, and whole ones are still served."""
    started = [part(id, {"x": {"dtype": "float32", "shape": [1, 3]}}, more=True) for id in range(5)]
    answers = exchange(address, [*started, part(9, {"x": rows(1)})])

    assert [(answer.id, answer.error.code) for answer in answers] == [
        (4, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]),
        (9, 0),
    ]


def test_a_cancelled_stream_leaves_the_worker_well(address):
    """A caller that goes away with requests in flight and half sent harms nobody else."""

    async def run():
        async with grpc.aio.insecure_channel(address) as channel:
            stub = prediction_pb2_grpc.PredictionStub(channel)
            for _ in range(5):
                call = stub.PredictStream()
                await call.write(slow(1))
                await call.write(part(2, {"x": rows(8)}, more=True))
                await call.write(slow(3))
                await asyncio.sleep(0)
                call.cancel()
            call = stub.PredictStream(iter([part(1, {"x": rows(1)})]))
            return [answer async for answer in call]

    (answer,) = asyncio.run(run())

    assert answer.response.version == 1


def test_an_empty_stream_ends_well(address):
    """A stream without requests ends without answers."""
    assert exchange(address, []) == []
