"""What a call to a worker consists of."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import ArrayLike, NDArray

from servax import convert
from servax._calls.arguments import items
from servax._calls.joined import Joined
from servax._calls.methods import (
    GET_STATISTICS,
    GET_STATUS,
    LOAD_MODEL,
    PREDICT,
    PREDICT_STREAM,
    UNLOAD_MODEL,
)
from servax._calls.steps import Steps, call, receive, sleep
from servax.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidTensor,
    MessageTooLarge,
    NotFound,
    Unavailable,
    from_status,
)
from servax.parts import cut
from servax.reference import ModelReference
from servax.tensors import as_array, from_proto, header, wire_bytes
from servax.types import ServedState, ServedVersion, VersionStatistics, WorkerStatus
from servax_proto.v1 import management_pb2, prediction_pb2

Arrays = dict[str, NDArray[Any]]

MESSAGE_BYTES = (4 << 20) - (64 << 10)
"""The largest request that is sent in one piece: gRPC's default limit, less what surrounds it."""

_POLL_SECONDS = 0.1, 1.0  # the first and the longest pause while a version loads


def predict(
    reference: str | ModelReference,
    inputs: Mapping[str, ArrayLike],
    signature: str,
    outputs: Iterable[str],
    timeout: float | None,
    request_id: str = "",
) -> Steps[Arrays]:
    """Call a signature, in one piece where request and answer fit a message, else in parts."""
    reference = ModelReference.parse(reference)
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(f"inputs takes a dict of arrays by name, not {type(inputs).__name__}")
    arrays = {name: _input(name, value) for name, value in inputs.items()}
    request = prediction_pb2.PredictRequest(
        model=reference.name,
        version=reference.version,
        alias=reference.alias,
        signature=signature,
        inputs={name: header(array) for name, array in arrays.items()},
        outputs=items("outputs", outputs),
    )
    payloads = {name: wire_bytes(array) for name, array in arrays.items()}
    if request.ByteSize() + sum(map(len, payloads.values())) > MESSAGE_BYTES:
        return _ordered((yield from _predict_in_parts(request, payloads, timeout, request_id)))
    whole = prediction_pb2.PredictRequest()
    whole.CopyFrom(request)
    for name, payload in payloads.items():
        whole.inputs[name].data = bytes(payload)
    end = None if timeout is None else time.monotonic() + timeout
    try:
        response = yield from call(PREDICT, whole, timeout, request_id)
    except MessageTooLarge:  # the answer is, or the worker takes less than gRPC's default
        left = None if end is None else max(end - time.monotonic(), 0.001)
        return _ordered((yield from _predict_in_parts(request, payloads, left, request_id)))
    return _ordered({name: from_proto(tensor) for name, tensor in response.outputs.items()})


def _ordered(arrays: Arrays) -> Arrays:
    """Sort by name: a protobuf map has no order, and would give another one in every process."""
    return dict(sorted(arrays.items()))


def _input(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return as_array(value)
    except InvalidTensor as error:
        raise InvalidTensor(f"input {name!r}: {error}") from error


def _predict_in_parts(
    request: prediction_pb2.PredictRequest,
    payloads: Mapping[str, memoryview],
    timeout: float | None,
    request_id: str,
) -> Steps[Arrays]:
    joined, answered = Joined(), False

    def take(response: prediction_pb2.PredictStreamResponse) -> None:
        nonlocal answered
        if response.HasField("error"):
            error = response.error
            raise from_status(error.code, error.message, "worker", error.retry_after)
        joined.add(response.response)
        answered = not response.more

    def requests() -> Iterator[prediction_pb2.PredictStreamRequest]:
        message = request
        for part, more in cut(payloads):
            for name, piece in part.items():
                message.inputs[name].data = bytes(piece)
            yield prediction_pb2.PredictStreamRequest(id=1, request=message, more=more)
            message = prediction_pb2.PredictRequest()

    yield from receive(PREDICT_STREAM, requests(), take, timeout, request_id)
    if not answered:
        raise Internal("the worker ended the stream before the end of its answer")
    return joined.arrays()


def status(model: str, timeout: float | None) -> Steps[WorkerStatus]:
    """Ask what a worker serves: one model, or all when empty."""
    request = prediction_pb2.GetStatusRequest(model=model)
    return convert.worker_status_from_proto((yield from call(GET_STATUS, request, timeout)))


def statistics(model: str, timeout: float | None) -> Steps[tuple[VersionStatistics, ...]]:
    """Ask how often versions were called: of one model, or of all when empty."""
    request = prediction_pb2.GetStatisticsRequest(model=model)
    response = yield from call(GET_STATISTICS, request, timeout)
    return tuple(map(convert.statistics_from_proto, response.versions))


def load(
    reference: str | ModelReference, timeout: float | None
) -> Steps[tuple[ServedVersion, ...]]:
    """Have a worker serve a reference."""
    reference = ModelReference.parse(reference)
    request = management_pb2.LoadModelRequest(
        model=reference.name, version=reference.version, alias=reference.alias
    )
    response = yield from call(LOAD_MODEL, request, timeout)
    return tuple(map(convert.served_version_from_proto, response.versions))


def unload(
    reference: str | ModelReference, timeout: float | None
) -> Steps[tuple[ServedVersion, ...]]:
    """Have a worker serve a reference no more."""
    reference = ModelReference.parse(reference)
    request = management_pb2.UnloadModelRequest(
        model=reference.name, version=reference.version, alias=reference.alias
    )
    response = yield from call(UNLOAD_MODEL, request, timeout)
    return tuple(map(convert.served_version_from_proto, response.versions))


def wait_until_ready(
    reference: str | ModelReference, timeout: float | None
) -> Steps[ServedVersion]:
    """Ask until a version is READY; a worker that does not answer yet is waited for as well."""
    reference = ModelReference.parse(reference)
    end = None if timeout is None else time.monotonic() + timeout
    pause, longest = _POLL_SECONDS
    reason = ""
    while True:
        left = None if end is None else max(end - time.monotonic(), 0.001)
        try:
            said = yield from status(reference.name, left)
        except Unavailable as error:
            reason = str(error)
        except DeadlineExceeded as error:
            reason = reason or str(error)  # that nobody listens says more than that time is over
        else:
            ready, reason = _judge(reference, said)
            if ready is not None:
                return ready
        if end is not None and time.monotonic() + pause > end:
            raise DeadlineExceeded(f"{reference} is not ready after {timeout:g} s: {reason}")
        yield from sleep(pause)
        pause = min(pause * 1.5, longest)


def _judge(reference: ModelReference, said: WorkerStatus) -> tuple[ServedVersion | None, str]:
    """Give what is ready, or why nothing is; raises where nothing will be."""
    if not said.versions:
        raise NotFound(f"the worker does not serve {reference.name!r}")
    wanted = said.matching(reference)
    ready = [v for v in wanted if v.state is ServedState.READY]
    if ready:
        return max(ready, key=lambda v: v.version), ""
    if not wanted:
        return None, f"the worker serves {', '.join(map(_spell, said.versions))}"
    reason = "; ".join(f"{_spell(v)} is {v.state.name} {v.detail}".rstrip() for v in wanted)
    if all(v.state is ServedState.FAILED for v in wanted):
        raise FailedPrecondition(f"{reference} will not become ready: {reason}")
    return None, reason


def _spell(served: ServedVersion) -> str:
    return str(
        ModelReference(served.model, version=served.version)
        if served.version
        else ModelReference(served.model, alias=served.alias or None)
    )
