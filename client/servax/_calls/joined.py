"""Joins the parts in which a large answer arrives."""

from typing import Any

from numpy.typing import NDArray

from servax.errors import InvalidTensor
from servax.tensors import byte_size, from_bytes
from servax_proto.v1.prediction_pb2 import PredictResponse


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
