"""Arrays survive `TensorProto`, in every type and in both of its forms."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servax.dtypes import DTYPES
from servax.errors import InvalidTensor
from servax.tensors import from_bytes, wire_bytes
from servax_proto.tfserving import tensor_pb2
from servax_proto.tfserving.tensor_pb2 import TensorProto, TensorShapeProto
from servax_worker.errors import TooLarge, Unsupported
from servax_worker.protocols.tfserving.tensors import from_proto, to_proto

UNKNOWN_TO_TENSORFLOW = {
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e8m0fnu",
}
KNOWN = sorted(DTYPES.keys() - UNKNOWN_TO_TENSORFLOW)
ENOUGH = 1 << 20
LOW_BITS = {"bool": 1, "int4": 15, "uint4": 15}


def shaped(*sizes):
    """A message's shape."""
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


@st.composite
def arrays(draw, dtype):
    """Any array of a type: of any bits that are a value of it."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = math.prod(shape) * DTYPES[dtype].itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    data = data & LOW_BITS.get(dtype, 255)
    if dtype == "int4":
        data = ((data ^ 8) - 8).astype(np.uint8)
    return from_bytes(dtype, shape, data.tobytes())


def test_tensorflow_has_the_other_types():
    """Those of JAX's types that TensorFlow lacks are refused, with the API that has them."""
    for name in UNKNOWN_TO_TENSORFLOW:
        with pytest.raises(Unsupported, match=r"no type for float.*servax\.v1\.Prediction"):
            to_proto(np.zeros(1, DTYPES[name]), content=False)


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("dtype", KNOWN)
@settings(max_examples=30)
@given(data=st.data())
def test_every_array_survives(dtype, content, data):
    """What was made a message and sent becomes the same array again, bit by bit."""
    array = data.draw(arrays(dtype))

    sent = to_proto(array, content=content).SerializeToString()
    back = from_proto(TensorProto.FromString(sent), ENOUGH)

    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert bytes(wire_bytes(back)) == bytes(wire_bytes(array))


@pytest.mark.parametrize(
    ("array", "field", "values"),
    [
        (np.array([1.5, math.inf], np.float32), "float_val", [1.5, math.inf]),
        (np.array([0.1], np.float64), "double_val", [0.1]),
        (np.array([-1, 2], np.int8), "int_val", [-1, 2]),
        (np.array([65535], np.uint16), "int_val", [65535]),
        (np.array([-8, 7], ml_dtypes.int4), "int_val", [-8, 7]),
        (np.array([-(2**63)], np.int64), "int64_val", [-(2**63)]),
        (np.array([2**32 - 1], np.uint32), "uint32_val", [2**32 - 1]),
        (np.array([2**64 - 1], np.uint64), "uint64_val", [2**64 - 1]),
        (np.array([True, False]), "bool_val", [True, False]),
        (np.array([1], np.float16), "half_val", [0x3C00]),
        (np.array([-1], ml_dtypes.bfloat16), "half_val", [0xBF80]),
        (np.array([1 + 2j], np.complex64), "scomplex_val", [1, 2]),
        (np.array([1 - 2j], np.complex128), "dcomplex_val", [1, -2]),
        (np.array([1], ml_dtypes.float8_e5m2), "float8_val", b"\x3c"),
    ],
    ids=lambda value: str(value),
)
def test_values_are_in_the_field_of_their_type(array, field, values):
    """Clients find the elements where TensorFlow's own documentation says."""
    tensor = to_proto(array, content=False)
    found = getattr(tensor, field)

    assert (found if isinstance(found, bytes) else list(found)) == values
    assert not tensor.tensor_content


def test_missing_values_are_the_last():
    """Fewer values than elements: the last one fills the rest; none at all means zeros."""
    one = TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(2, 2), float_val=[3])
    two = TensorProto(dtype=tensor_pb2.DT_INT8, tensor_shape=shaped(4), int_val=[1, -2])
    half = TensorProto(dtype=tensor_pb2.DT_BFLOAT16, tensor_shape=shaped(2), half_val=[0x3F80])
    none = TensorProto(dtype=tensor_pb2.DT_COMPLEX64, tensor_shape=shaped(2))
    scalar = TensorProto(dtype=tensor_pb2.DT_BOOL, bool_val=[True])

    assert from_proto(one, ENOUGH).tolist() == [[3, 3], [3, 3]]
    assert from_proto(two, ENOUGH).tolist() == [1, -2, -2, -2]
    assert from_proto(half, ENOUGH).tolist() == [1, 1]
    assert from_proto(none, ENOUGH).tolist() == [0, 0]
    assert from_proto(scalar, ENOUGH).shape == ()
    assert from_proto(scalar, ENOUGH)


def test_fields_that_are_not_known_change_nothing():
    """A caller may send fields that the protos here lack."""
    known = TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(3), float_val=[1, 2, 3])
    unknown = TensorProto.FromString(known.SerializeToString() + b"\x98\x06\x07")

    assert from_proto(unknown, ENOUGH).tolist() == [1, 2, 3]
    assert from_proto(known, ENOUGH).tolist() == [1, 2, 3]


def test_a_value_cannot_fill_any_memory():
    """A message of a few bytes that stands for gigabytes is refused."""
    tensor = TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(1 << 40), float_val=[1])

    with pytest.raises(TooLarge, match=r"float32\[1099511627776\] has .* a request 1048576"):
        from_proto(tensor, ENOUGH)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(), "it has no dtype"),
        (TensorProto(dtype=tensor_pb2.DT_STRING, string_val=[b"a"]), "DT_STRING: programs of JAX"),
        (TensorProto.FromString(b"\x08\x0d"), "dtype 13 is none of DT_BOOL"),
        (
            TensorProto(
                dtype=tensor_pb2.DT_FLOAT, tensor_shape=TensorShapeProto(unknown_rank=True)
            ),
            "number of its dimensions",
        ),
        (TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(-1)), "negative dimension"),
        (
            TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(2), tensor_content=b"1234"),
            "takes 8 bytes of data, there are 4",
        ),
        (
            TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(1), float_val=[1, 2]),
            "2 values for the 1 elements",
        ),
        (
            TensorProto(dtype=tensor_pb2.DT_FLOAT, tensor_shape=shaped(1), double_val=[1]),
            "values are in double_val, those of float32 are in float_val",
        ),
        (
            TensorProto(dtype=tensor_pb2.DT_UINT8, tensor_shape=shaped(1), int_val=[256]),
            "outside of uint8",
        ),
        (
            TensorProto(dtype=tensor_pb2.DT_INT4, tensor_shape=shaped(1), int_val=[8]),
            "outside of int4",
        ),
        (
            TensorProto(dtype=tensor_pb2.DT_COMPLEX64, tensor_shape=shaped(1), scomplex_val=[1]),
            "a complex number has two",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_array_is_refused(tensor, message):
    """Each way in which a message can be wrong is told."""
    with pytest.raises(InvalidTensor, match=message):
        from_proto(tensor, ENOUGH)
