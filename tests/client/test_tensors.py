"""Arrays to and from messages."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servax import InvalidTensor
from servax.dtypes import DTYPES, dtype_name, numpy_dtype
from servax.tensors import as_array, byte_size, from_proto, header, to_proto, wire_bytes
from servax_proto.v1.tensor_pb2 import Tensor

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def values_of(name: str, count: int, rng: np.random.Generator):
    """Give arbitrary values of a dtype: every bit pattern where every one is a value."""
    dtype = numpy_dtype(name)
    if name == "bool":
        return rng.integers(0, 2, count).astype(dtype)
    if name in ("int4", "uint4"):
        low = -8 if name == "int4" else 0
        return rng.integers(low, low + 16, count).astype(dtype)
    data = rng.bytes(count * dtype.itemsize)
    if name == "float4_e2m1fn":
        data = bytes(byte & 0x0F for byte in data)
    return np.frombuffer(data, dtype, count)


@given(st.sampled_from(sorted(DTYPES)), SHAPES, st.integers(0, 2**32))
def test_every_array_survives_the_round_trip(name, shape, seed):
    """An array of any dtype and shape comes back with the same dtype, shape and bits."""
    count = int(np.prod(shape))
    array = values_of(name, count, np.random.default_rng(seed)).reshape(shape)

    back = from_proto(Tensor.FromString(to_proto(array).SerializeToString()))

    assert (array.dtype, array.shape) == (back.dtype, back.shape)
    assert to_proto(array).data == to_proto(back).data
    if name not in ("int4", "uint4"):  # numpy leaves their upper bits undefined
        assert array.tobytes() == back.tobytes()
    else:
        assert (array == back).all()


def test_there_is_every_dtype_that_the_api_names():
    """The dtypes are exactly those that the documentation of Tensor.dtype lists."""
    source = (Path(__file__).parents[2] / "protos/servax_proto/v1/tensor.proto").read_text()
    documented = re.search(r"by JAX's name: (.*?)\.\n", source.replace("\n  //", ""), re.DOTALL)

    assert documented is not None
    assert sorted(DTYPES) == sorted(documented[1].split(", "))


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_and_its_name_belong_together(name):
    """A dtype's name leads back to the dtype."""
    assert name == dtype_name(numpy_dtype(name))


@pytest.mark.parametrize(
    ("array", "data"),
    [
        (np.array([-8, -1, 7], ml_dtypes.int4), b"\xf8\xff\x07"),
        (np.array([0, 15], ml_dtypes.uint4), b"\x00\x0f"),
        (np.array([1, -6], ml_dtypes.float4_e2m1fn), b"\x02\x0f"),
        (np.array([True, False]), b"\x01\x00"),
        (np.frombuffer(b"\x00\x02", np.bool_), b"\x00\x01"),
        (np.array([1, 256], ">i2"), b"\x01\x00\x00\x01"),
        (np.array([[1, 2], [3, 4]], np.int8).T, b"\x01\x03\x02\x04"),
        (np.arange(6, dtype=np.uint8)[::-2], b"\x05\x03\x01"),
        (np.float32(1), b"\x00\x00\x80\x3f"),
        ([[1, 2]], b"\x01" + bytes(7) + b"\x02" + bytes(7)),
        (True, b"\x01"),
    ],
)
def test_bytes_are_those_of_the_api(array, data):
    """Elements travel in row-major order, little-endian, one byte at least for each."""
    assert data == to_proto(array).data


@pytest.mark.parametrize(
    "value",
    [
        "text",
        b"bytes",
        None,
        object(),
        np.datetime64("2026-01-01"),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, "V2"),
        np.zeros(2, ml_dtypes.int2),
        np.longdouble(1),
        ["a", 1],
        2**70,
    ],
)
def test_what_is_no_array_of_numbers_is_refused(value):
    """Texts, objects, dates, records and dtypes that JAX cannot export are refused by name."""
    with pytest.raises(InvalidTensor, match="cannot be sent"):
        to_proto(value)


def test_a_ragged_list_is_refused():
    """Lists of different lengths are refused."""
    with pytest.raises(InvalidTensor, match="not an array"):
        to_proto([[1], [1, 2]])


def test_an_array_that_numpy_cannot_have_is_refused():
    """What refuses to become a numpy array, as JAX's typed random keys do, is refused with why."""

    class Key:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("use key_data")

    with pytest.raises(InvalidTensor, match="not an array: use key_data"):
        to_proto(Key())


def test_a_masked_array_is_refused():
    """A mask, which would be lost, is refused."""
    with pytest.raises(InvalidTensor, match="filled"):
        to_proto(np.ma.array([1, 2], mask=[True, False]))


def test_an_array_too_large_for_a_message_is_refused():
    """Two GiB are refused before any byte of them is copied."""
    with pytest.raises(InvalidTensor, match="2147483648 bytes do not fit"):
        to_proto(np.empty(2**31, np.int8))


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "said"),
    [
        ("float32", [2], bytes(7), r"takes 8 bytes of data, there are 7"),
        ("float32", [2], bytes(9), r"takes 8 bytes of data, there are 9"),
        ("float32", [], b"", r"takes 4 bytes of data, there are 0"),
        ("float32", [-1], bytes(4), "negative dimension"),
        ("int8", [-1, -1], b"1", "negative dimension"),
        ("float32", [2**62], b"", "larger than any memory"),
        ("int8", [2**32, 2**32], b"", "larger than any memory"),
        ("int8", [0, 2**62, 2**62], b"", "larger than any memory"),
        ("int8", [1] * 65, b"1", "65 dimensions"),
        ("float31", [], bytes(4), "unknown dtype 'float31'"),
        ("object", [], bytes(8), "unknown dtype"),
        ("", [], bytes(8), "unknown dtype"),
        ("bool", [2], b"\x00\x02", "outside of 0 to 1"),
        ("int4", [1], b"\x08", "outside of -8 to 7"),
        ("uint4", [1], b"\x10", "outside of 0 to 15"),
        ("float4_e2m1fn", [1], b"\xf0", "outside of 0 to 15"),
    ],
)
def test_a_message_that_holds_no_array_is_refused(dtype, shape, data, said):
    """Data that does not fit dtype and shape, or is no value of the dtype, is refused."""
    with pytest.raises(InvalidTensor, match=said):
        from_proto(Tensor(dtype=dtype, shape=shape, data=data))


@given(st.text(max_size=20), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), st.binary())
def test_no_message_gives_another_error(dtype, shape, data):
    """Whatever a message says, it gives an array or InvalidTensor."""
    dtype = sorted(DTYPES)[len(dtype) % len(DTYPES)]
    try:
        array = from_proto(Tensor(dtype=dtype, shape=shape, data=data))
    except InvalidTensor:
        return

    assert list(array.shape) == shape


def test_arrays_that_came_are_read_only():
    """An array is a view of what came, and cannot be written to."""
    array = from_proto(to_proto(np.zeros(3)))

    assert not array.flags.writeable


def test_an_array_that_can_be_sent_is_not_copied():
    """Preparing an array in row-major order costs no memory."""
    array = np.zeros((3, 4), np.float32)

    assert as_array(array) is array
    assert np.shares_memory(array, wire_bytes(array))


def test_a_header_and_the_bytes_make_the_message():
    """What travels in parts is what travels in one piece."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    tensor = header(array)
    tensor.data = bytes(wire_bytes(array))

    assert to_proto(array) == tensor
    assert byte_size("int16", (2, 3)) == len(tensor.data)
