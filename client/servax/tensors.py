"""Arrays to and from `servax.v1.Tensor`.

The elements travel in row-major order, little-endian, without padding, as every platform of JAX
keeps them in memory. A type narrower than a byte takes one byte per element: int4 sign-extended,
uint4 and float4_e2m1fn with the upper bits zero (numpy itself leaves these bits undefined).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servax.dtypes import dtype_name, numpy_dtype
from servax.errors import InvalidTensor
from servax_proto.v1.tensor_pb2 import Tensor

MAX_MESSAGE_BYTES = 2**31 - 1
"""Protobuf's limit for one message, and so for one `Tensor` in one piece."""

_MAX_RANK = 64  # numpy's
_MAX_BYTES = 2**63 - 1

# What a stored byte may be, for the types where not every byte is a value.
_BYTE_RANGES: dict[str, tuple[type[np.int8 | np.uint8], int, int]] = {
    "bool": (np.uint8, 0, 1),
    "int4": (np.int8, -8, 7),
    "uint4": (np.uint8, 0, 15),
    "float4_e2m1fn": (np.uint8, 0, 15),
}


def as_array(value: ArrayLike) -> NDArray[Any]:
    """Give `value` as an array that can be sent: row-major, in native byte order.

    What already is one is not copied. Raises InvalidTensor for texts, objects, dates, records,
    masked arrays and ragged lists.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTensor("a masked array cannot be sent; fill it first (array.filled)")
    try:
        array = np.asarray(value, order="C")
    except (TypeError, ValueError) as error:  # TypeError: arrays of a device, JAX's random keys
        raise InvalidTensor(f"not an array: {error}") from error
    dtype_name(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def wire_bytes(array: NDArray[Any]) -> memoryview:
    """Give the elements of what `as_array` gave as they travel; a view where numpy has them so."""
    name = dtype_name(array.dtype)
    if name == "bool":  # a byte of a numpy bool may have any value in memory
        array = array.view(np.uint8) != 0
    elif name == "int4":
        array = array.astype(np.int8)
    elif name in ("uint4", "float4_e2m1fn"):
        array = array.view(np.uint8) & np.uint8(0x0F)
    return array.reshape(-1).view(np.uint8).data


def header(array: NDArray[Any]) -> Tensor:
    """Give the message of what `as_array` gave, without its data."""
    return Tensor(dtype=dtype_name(array.dtype), shape=array.shape)


def to_proto(value: ArrayLike) -> Tensor:
    """Give the message of an array or of what numpy makes one of; no dtype is ever changed.

    Raises InvalidTensor as `as_array` does, and for 2 GiB or more, which fit no single message.
    """
    tensor = Tensor()
    fill(tensor, value)
    return tensor


def fill(tensor: Tensor, value: ArrayLike) -> None:
    """Make an empty message that of an array, as `to_proto` does, where it is already in another.

    A message that is put into another is copied.
    """
    array = as_array(value)
    if array.nbytes >= MAX_MESSAGE_BYTES:
        raise InvalidTensor(
            f"{array.nbytes} bytes do not fit one message ({MAX_MESSAGE_BYTES}): send it in parts"
        )
    tensor.dtype = dtype_name(array.dtype)
    tensor.shape.extend(array.shape)
    tensor.data = bytes(wire_bytes(array))


def byte_size(dtype: str, shape: Sequence[int]) -> int:
    """Give how many bytes an array takes on the wire.

    Raises InvalidTensor for an unknown dtype, and for a shape that no array can have.
    """
    itemsize = numpy_dtype(dtype).itemsize
    if len(shape) > _MAX_RANK:
        raise InvalidTensor(f"{len(shape)} dimensions; arrays have at most {_MAX_RANK}")
    if min(shape, default=0) < 0:
        raise InvalidTensor(f"negative dimension in shape {list(shape)}")
    # numpy wants this of empty arrays too.
    if math.prod(filter(None, shape)) * itemsize > _MAX_BYTES:
        raise InvalidTensor(f"shape {list(shape)} of {dtype} is larger than any memory")
    return math.prod(shape) * itemsize


def from_bytes(
    dtype: str, shape: Sequence[int], data: bytes | bytearray | memoryview
) -> NDArray[Any]:
    """Give the array that `data` holds: a read-only view, no copy.

    Raises InvalidTensor where `data` is not as long as dtype and shape want it, or holds bytes
    that are no value of the dtype.
    """
    shape = tuple(shape)  # protobuf's own sequences are slow to read
    expected = byte_size(dtype, shape)
    if len(data) != expected:
        raise InvalidTensor(
            f"{dtype}{list(shape)} takes {expected} bytes of data, there are {len(data)}"
        )
    if dtype in _BYTE_RANGES and data:
        kind, low, high = _BYTE_RANGES[dtype]
        stored = np.frombuffer(data, kind)
        if stored.min() < low or stored.max() > high:
            raise InvalidTensor(f"a byte of a {dtype} array is outside of {low} to {high}")
    array: NDArray[Any] = np.frombuffer(data, numpy_dtype(dtype)).reshape(shape)
    array.flags.writeable = False
    return array


def from_proto(tensor: Tensor) -> NDArray[Any]:
    """Give the array of a message, as `from_bytes` does."""
    return from_bytes(tensor.dtype, tensor.shape, tensor.data)
