"""What a call to a worker consists of."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import ArrayLike, NDArray

from servax import convert
from servax._calls.methods import GET_STATUS, PREDICT, PREDICT_STREAM
from servax._calls.parts import Joined, cut
from servax._calls.steps import Steps, call, exchange, sleep
from servax.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidTensor,
    NotFound,
    Unavailable,
    from_status,
)
from servax.reference import ModelReference
from servax.tensors import as_array, from_proto, header, wire_bytes
from servax.types import ServedState, ServedVersion, WorkerStatus
from servax_proto.v1 import prediction_pb2

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
) -> Steps[Arrays]:
    """Call a signature, in one piece where the request fits a message and in parts otherwise."""
    reference = ModelReference.parse(reference)
    arrays = {name: _input(name, value) for name, value in inputs.items()}
    request = prediction_pb2.PredictRequest(
        model=reference.name,
        version=reference.version,
        alias=reference.alias,
        signature=signature,
        inputs={name: header(array) for name, array in arrays.items()},
        outputs=outputs,
    )
    payloads = {name: wire_bytes(array) for name, array in arrays.items()}
    if request.ByteSize() + sum(map(len, payloads.values())) > MESSAGE_BYTES:
        return (yield from _predict_in_parts(request, payloads, timeout))
    for name, payload in payloads.items():
        request.inputs[name].data = bytes(payload)
    response = yield from call(PREDICT, request, timeout)
    return {name: from_proto(tensor) for name, tensor in response.outputs.items()}


def _input(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return as_array(value)
    except InvalidTensor as error:
        raise InvalidTensor(f"input {name!r}: {error}") from error


def _predict_in_parts(
    request: prediction_pb2.PredictRequest,
    payloads: Mapping[str, memoryview],
    timeout: float | None,
) -> Steps[Arrays]:
    joined, answered = Joined(), False

    def take(response: prediction_pb2.PredictStreamResponse) -> None:
        nonlocal answered
        if response.HasField("error"):
            raise from_status(response.error.code, response.error.message, "worker")
        joined.add(response.response)
        answered = not response.more

    def requests() -> Iterator[prediction_pb2.PredictStreamRequest]:
        for part, more in cut(request, payloads):
            yield prediction_pb2.PredictStreamRequest(id=1, request=part, more=more)

    yield from exchange(PREDICT_STREAM, requests(), take, timeout)
    if not answered:
        raise Internal("the worker ended the stream before the end of its answer")
    return joined.arrays()


def status(model: str, timeout: float | None) -> Steps[WorkerStatus]:
    """Ask what a worker serves: one model, or all when empty."""
    request = prediction_pb2.GetStatusRequest(model=model)
    return convert.worker_status_from_proto((yield from call(GET_STATUS, request, timeout)))


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
            served = (yield from status(reference.name, left)).versions
        except Unavailable as error:
            reason = str(error)
        except DeadlineExceeded as error:
            reason = reason or str(error)  # that nobody listens says more than that time is over
        else:
            ready, reason = _judge(reference, served)
            if ready is not None:
                return ready
        if end is not None and time.monotonic() + pause > end:
            raise DeadlineExceeded(f"{reference} is not ready after {timeout:g} s: {reason}")
        yield from sleep(pause)
        pause = min(pause * 1.5, longest)


def _judge(
    reference: ModelReference, served: tuple[ServedVersion, ...]
) -> tuple[ServedVersion | None, str]:
    """Give what is ready, or why nothing is; raises where nothing will be."""
    if not served:
        raise NotFound(f"the worker does not serve {reference.name!r}")
    if reference.version is not None:
        # The number of what is still RESOLVING is not known.
        wanted = [v for v in served if v.version in (reference.version, 0)]
    elif reference.alias is not None:
        wanted = [v for v in served if v.alias == reference.alias]
    else:
        wanted = list(served)
    ready = [v for v in wanted if v.state is ServedState.READY]
    if ready:
        return max(ready, key=lambda v: v.version), ""
    if not wanted:
        return None, f"the worker serves {', '.join(map(_spell, served))}"
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
