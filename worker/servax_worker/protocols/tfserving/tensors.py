"""Arrays to and from `tensorflow.TensorProto`.

The elements of a message are in `tensor_content`, as bytes, or in the repeated field that belongs
to its type. There, as TensorFlow has it (`Tensor::FromProto`), the last value fills up what is
missing, and no value at all means zeros.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.dtypes import dtype_name, numpy_dtype
from servax.errors import InvalidTensor
from servax.tensors import as_array, byte_size, from_bytes, wire_bytes
from servax_proto.tfserving import tensor_pb2
from servax_proto.tfserving.tensor_pb2 import DataType, TensorProto
from servax_worker.errors import TooLarge, Unsupported

_TYPES: Mapping[str, tuple[DataType, str]] = MappingProxyType(
    {
        "bool": (tensor_pb2.DT_BOOL, "bool_val"),
        "int4": (tensor_pb2.DT_INT4, "int_val"),
        "int8": (tensor_pb2.DT_INT8, "int_val"),
        "int16": (tensor_pb2.DT_INT16, "int_val"),
        "int32": (tensor_pb2.DT_INT32, "int_val"),
        "int64": (tensor_pb2.DT_INT64, "int64_val"),
        "uint4": (tensor_pb2.DT_UINT4, "int_val"),
        "uint8": (tensor_pb2.DT_UINT8, "int_val"),
        "uint16": (tensor_pb2.DT_UINT16, "int_val"),
        "uint32": (tensor_pb2.DT_UINT32, "uint32_val"),
        "uint64": (tensor_pb2.DT_UINT64, "uint64_val"),
        "float16": (tensor_pb2.DT_HALF, "half_val"),
        "bfloat16": (tensor_pb2.DT_BFLOAT16, "half_val"),
        "float32": (tensor_pb2.DT_FLOAT, "float_val"),
        "float64": (tensor_pb2.DT_DOUBLE, "double_val"),
        "complex64": (tensor_pb2.DT_COMPLEX64, "scomplex_val"),
        "complex128": (tensor_pb2.DT_COMPLEX128, "dcomplex_val"),
        "float8_e4m3b11fnuz": (tensor_pb2.DT_FLOAT8_E4M3B11FNUZ, "float8_val"),
        "float8_e4m3fn": (tensor_pb2.DT_FLOAT8_E4M3FN, "float8_val"),
        "float8_e4m3fnuz": (tensor_pb2.DT_FLOAT8_E4M3FNUZ, "float8_val"),
        "float8_e5m2": (tensor_pb2.DT_FLOAT8_E5M2, "float8_val"),
        "float8_e5m2fnuz": (tensor_pb2.DT_FLOAT8_E5M2FNUZ, "float8_val"),
    }
)
"""What TensorFlow calls a type, and the field for its values."""

_NAMES = {type_: name for name, (type_, _) in _TYPES.items()}

# What the values of a field are, where they are not of the tensor's own type.
_STORED = {
    "int_val": np.int32,
    "half_val": np.int32,
    "scomplex_val": np.float32,
    "dcomplex_val": np.float64,
}

# The fields whose values lie on the wire as in memory, and what they are.
_AS_IN_MEMORY = {
    "bool_val": np.bool_,
    "float_val": np.float32,
    "double_val": np.float64,
    "scomplex_val": np.float32,
    "dcomplex_val": np.float64,
}


def data_type(dtype: str) -> DataType:
    """TensorFlow's name of one of JAX's types; raises Unsupported where it has none."""
    if dtype not in _TYPES:
        raise Unsupported(
            f"TensorFlow has no type for {dtype}; call with servax.v1.Prediction, which has all"
        )
    return _TYPES[dtype][0]


def from_proto(tensor: TensorProto, max_bytes: int) -> NDArray[Any]:
    """The array of a message.

    Raises InvalidTensor where it is none, and TooLarge where few values are to fill more than
    `max_bytes`.
    """
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise InvalidTensor(_why_not(tensor.dtype))
    if tensor.tensor_shape.unknown_rank:
        raise InvalidTensor("the number of its dimensions is left open")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return from_bytes(name, shape, tensor.tensor_content)
    size = byte_size(name, shape)
    if size > max_bytes:
        raise TooLarge(
            f"{name}{shape} has {size} bytes, a request {max_bytes} (--max-message-bytes of the "
            f"worker)"
        )
    values = _values(tensor, name)
    count = math.prod(shape)
    if len(values) > count:
        raise InvalidTensor(f"{len(values)} values for the {count} elements of {name}{shape}")
    if len(values) < count:
        last = values[-1:] if len(values) else np.zeros(1, values.dtype)
        values = np.concatenate([values, np.repeat(last, count - len(values))])
    return values.reshape(shape)


def to_proto(array: NDArray[Any], *, content: bool) -> TensorProto:
    """The message of an array, its elements in `tensor_content` or in the field of its type.

    Raises Unsupported where TensorFlow has no such type.
    """
    array = as_array(array)
    name = dtype_name(array.dtype)
    tensor = TensorProto(dtype=data_type(name))
    tensor.tensor_shape.dim.extend(tensor_pb2.TensorShapeProto.Dim(size=n) for n in array.shape)
    field = _TYPES[name][1]
    if content:
        tensor.tensor_content = bytes(wire_bytes(array))
    elif field == "float8_val":
        tensor.float8_val = bytes(wire_bytes(array))
    elif field in _AS_IN_MEMORY:
        # A hundred times faster than one value after the other.
        data = wire_bytes(array)
        tensor.MergeFromString(_head(field, data.nbytes) + bytes(data))
    else:
        plain = array.view(np.uint16) if field == "half_val" else array
        getattr(tensor, field).extend(plain.ravel().tolist())
    return tensor


def _values(tensor: TensorProto, name: str) -> NDArray[Any]:
    """The values of a message, of which there may be fewer than elements."""
    field, dtype = _TYPES[name][1], numpy_dtype(name)
    for other, _ in tensor.ListFields():
        if other.name.endswith("_val") and other.name != field:
            raise InvalidTensor(f"its values are in {other.name}, those of {name} are in {field}")
    stored = getattr(tensor, field)
    if field == "float8_val":
        return np.frombuffer(stored, dtype)
    values = _fast(tensor, field, len(stored))
    if values is None:
        values = np.fromiter(stored, _STORED.get(field, dtype), len(stored))
    if field == "half_val":
        return values.astype(np.uint16).view(dtype)
    if field in ("scomplex_val", "dcomplex_val"):
        if len(values) % 2:
            raise InvalidTensor(f"{len(values)} values in {field}; a complex number has two")
        return values.view(dtype)
    narrow = values.astype(dtype, copy=False)
    if field == "int_val" and not np.array_equal(narrow.astype(np.int32), values):
        raise InvalidTensor(f"a value in {field} is outside of {name}")
    return narrow


def _fast(tensor: TensorProto, field: str, count: int) -> NDArray[Any] | None:
    """The values of a field as they lie on the wire, where they lie there as in memory."""
    if not count or field not in _AS_IN_MEMORY:
        return None
    dtype = np.dtype(_AS_IN_MEMORY[field])
    head = _head(field, count * dtype.itemsize)
    # Fields come in the order of their numbers, and this is the last: unless a caller has sent
    # what the protos here do not have.
    end = tensor.SerializeToString()[-len(head) - count * dtype.itemsize :]
    return np.frombuffer(end, dtype, offset=len(head)) if end.startswith(head) else None


def _why_not(data_type: int) -> str:
    if data_type == tensor_pb2.DT_STRING:
        return "DT_STRING: programs of JAX take no text or bytes; send numbers"
    if data_type == tensor_pb2.DT_INVALID:
        return "it has no dtype"
    return f"dtype {data_type} is none of {', '.join(map(DataType.Name, _NAMES))}"


def _head(field: str, size: int) -> bytes:
    """What stands before the values of a repeated field of so many bytes: its key, its size."""
    key = TensorProto.DESCRIPTOR.fields_by_name[field].number << 3 | 2
    groups = []
    while size > 0x7F:  # seven bits a byte, the lowest first
        groups.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([key, *groups, size])
