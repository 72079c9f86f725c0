"""Protobuf messages to and from the worker's values."""

import time
from collections.abc import Iterator, Mapping, Sequence

from servax import convert as artifact
from servax import tensors
from servax.errors import InvalidTensor
from servax.types import ServedVersion
from servax_proto.v1 import prediction_pb2
from servax_worker.errors import InvalidInput, TooLarge
from servax_worker.parts import PART_BYTES, cut
from servax_worker.predictor import DEFAULT_SIGNATURE, Answer, Request

_LARGEST_ANSWER = tensors.MAX_MESSAGE_BYTES - (1 << 20)  # leaves room for names and shapes


def request_from_proto(
    message: prediction_pb2.PredictRequest,
    data: Mapping[str, bytes | bytearray],
    seconds_left: float | None,
) -> Request:
    """The request; its tensors' bytes are taken from `data` and not copied.

    Raises InvalidInput that names every input whose bytes are not what its message says.
    """
    inputs = {}
    problems = []
    for name, tensor in message.inputs.items():
        try:
            inputs[name] = tensors.from_bytes(tensor.dtype, tensor.shape, data[name])
        except InvalidTensor as error:
            problems.append(f"input '{name}': {error}")
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
    )


def data_of(message: prediction_pb2.PredictRequest) -> dict[str, bytes]:
    """The tensors' bytes in one message."""
    return {name: tensor.data for name, tensor in message.inputs.items()}


def answer_to_proto(answer: Answer) -> prediction_pb2.PredictResponse:
    """The whole answer in one message; raises TooLarge where it does not fit protobuf's 2 GiB."""
    size = sum(array.nbytes for array in answer.outputs.values())
    if size > _LARGEST_ANSWER:
        raise TooLarge(f"the answer has {size} bytes, too many for one message; use PredictStream")
    outputs = {name: tensors.to_proto(array) for name, array in answer.outputs.items()}
    return prediction_pb2.PredictResponse(
        model=answer.model, version=answer.version, signature=answer.signature, outputs=outputs
    )


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
    left = sum(map(len, data.values()))
    for part in cut(data, limit):
        for name, piece in part.items():
            message.outputs[name].data = bytes(piece)
            left -= len(piece)
        yield message, left > 0
        message = prediction_pb2.PredictResponse()


def status_to_proto(
    versions: Sequence[ServedVersion], platform: str, jax_version: str
) -> prediction_pb2.GetStatusResponse:
    """The worker's status."""
    return prediction_pb2.GetStatusResponse(
        versions=map(artifact.served_version_to_proto, versions),
        platform=platform,
        jax_version=jax_version,
    )
