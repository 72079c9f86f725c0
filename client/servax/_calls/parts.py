"""Cuts a large request into parts below gRPC's message limit, and joins the parts of an answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from servax.errors import InvalidTensor
from servax.tensors import byte_size, from_bytes
from servax_proto.v1.prediction_pb2 import PredictRequest, PredictResponse

PART_BYTES = 1 << 20
"""How much tensor data one part carries."""


def cut(
    request: PredictRequest, payloads: Mapping[str, memoryview]
) -> Iterator[tuple[PredictRequest, bool]]:
    """Give the parts of a request, and of each whether more follow.

    `request` has every field but the tensors' data, which `payloads` has by the inputs' names.
    """
    part, room = PredictRequest(), PART_BYTES
    part.CopyFrom(request)
    for name, payload in payloads.items():
        sent = 0
        while sent < len(payload):
            if not room:
                yield part, True
                part, room = PredictRequest(), PART_BYTES
            piece = payload[sent : sent + room]
            part.inputs[name].data = bytes(piece)
            sent += len(piece)
            room -= len(piece)
    yield part, False


class Joined:
    """The parts of one answer, as they arrive."""

    def __init__(self) -> None:
        self._specs: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._data: dict[str, bytearray] = {}

    def add(self, part: PredictResponse) -> None:
        """Take the next part; raises InvalidTensor for more data than a tensor's shape takes."""
        for name, tensor in part.outputs.items():
            if name not in self._specs:  # its first part; later ones have only data
                self._specs[name] = tensor.dtype, tuple(tensor.shape)
                self._data[name] = bytearray()
            data = self._data[name]
            data += tensor.data
            dtype, shape = self._specs[name]
            if len(data) > byte_size(dtype, shape):
                raise InvalidTensor(f"output {name!r}: more data than {dtype}{list(shape)} takes")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the arrays; raises InvalidTensor where data is missing."""
        return {
            name: from_bytes(dtype, shape, self._data[name])
            for name, (dtype, shape) in self._specs.items()
        }
