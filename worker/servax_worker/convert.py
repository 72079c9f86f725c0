"""Protobuf messages to and from the worker's values."""

import time
from collections.abc import Iterator, Mapping

from servax import tensors
from servax.errors import InvalidTensor
from servax.parts import PART_BYTES, cut
from servax.types import DEFAULT_SIGNATURE
from servax_proto.v1 import prediction_pb2
from servax_worker.errors import InvalidInput
from servax_worker.predictor import Answer, Request

MAX_NAMES = 1 << 16
"""The most inputs, and outputs, that a request may name: a program of JAX has fewer arguments."""

_MOST_PROBLEMS = 20  # in one message


def request_from_proto(
    message: prediction_pb2.PredictRequest,
    data: Mapping[str, bytes | bytearray],
    seconds_left: float | None,
    max_answer_bytes: int | None = None,
) -> Request:
    """The request; its tensors' bytes are taken from `data` and not copied.

    Raises InvalidInput that names the inputs whose bytes are not what their messages say.
    """
    inputs = {}
    problems = []
    for name, tensor in message.inputs.items():
        try:
            inputs[name] = tensors.from_bytes(tensor.dtype, tensor.shape, data[name])
        except InvalidTensor as error:
            problems.append(f"input '{name}': {error}")
            if len(problems) == _MOST_PROBLEMS:
                break
    if problems:
        raise InvalidInput("; ".join(problems))
    selector = message.WhichOneof("selector")
    return Request(
        model=message.model,
        inputs=inputs,
        version=message.version if selector == "version" else None,
        alias=message.alias if selector == "alias" else None,
        signature=message.signature or DEFAULT_SIGNATURE,
        outputs=tuple(message.outputs),
        deadline=None if seconds_left is None else time.monotonic() + seconds_left,
        max_answer_bytes=max_answer_bytes,
    )


def data_of(message: prediction_pb2.PredictRequest) -> dict[str, bytes]:
    """The tensors' bytes in one message; raises InvalidInput where it names too many arrays."""
    for kind, names in (("inputs", message.inputs), ("outputs", message.outputs)):
        if len(names) > MAX_NAMES:
            raise InvalidInput(f"{len(names)} {kind}; a request has at most {MAX_NAMES}")
    return {name: tensor.data for name, tensor in message.inputs.items()}


def answer_to_proto(answer: Answer) -> prediction_pb2.PredictResponse:
    """The whole answer in one message."""
    message = prediction_pb2.PredictResponse(
        model=answer.model, version=answer.version, signature=answer.signature
    )
    for name, array in answer.outputs.items():
        tensors.fill(message.outputs[name], array)
    return message


def answer_to_parts(
    answer: Answer, limit: int = PART_BYTES
) -> Iterator[tuple[prediction_pb2.PredictResponse, bool]]:
    """The answer in parts, and of each whether more follow; made one at a time."""
    arrays = {name: tensors.as_array(array) for name, array in answer.outputs.items()}
    message = prediction_pb2.PredictResponse(
        model=answer.model,
        version=answer.version,
        signature=answer.signature,
        outputs={name: tensors.header(array) for name, array in arrays.items()},
    )
    data = {name: tensors.wire_bytes(array) for name, array in arrays.items()}
    for part, more in cut(data, limit):
        for name, piece in part.items():
            message.outputs[name].data = bytes(piece)
        yield message, more
        message = prediction_pb2.PredictResponse()
