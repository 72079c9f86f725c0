"""safetensors headers: what the reference writes is read, and everything else is refused."""

import json
import struct
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from servax_registry.artifact import StoredTensor
from servax_registry.errors import InvalidWeights
from servax_registry.inspection import header_size, parse_safetensors_header
from servax_registry.inspection import safetensors as reader


def parse(blob: bytes) -> tuple[StoredTensor, ...]:
    """Reads a whole file as the registry reads the beginning of one."""
    return parse_safetensors_header(blob[: header_size(blob[:8], len(blob))], len(blob))


def build(header: object, data: bytes = b"") -> bytes:
    """A file with this header, given as text or as what JSON is made of."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(
    dtype: str = "F32", shape: Iterable[Any] = (2,), begin: int = 0, end: int = 8, **others: object
) -> dict[str, object]:
    """The description of one tensor."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **others}


def test_what_the_reference_writes_is_read():
    """Names, dtypes, shapes and bytes are those that were saved, in the order of the file."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "b.kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.uint8),
        "ünïcode": np.array([True, False, True]),
        "c": np.arange(3, dtype=np.complex64),
    }
    blob = safetensors.numpy.save(arrays, metadata={"format": "np"})

    tensors = parse(blob)

    assert arrays.keys() == {tensor.name for tensor in tensors}
    assert sorted(tensors, key=lambda tensor: tensor.offset) == list(tensors)
    for tensor in tensors:
        array = arrays[tensor.name]
        assert (array.dtype.name, array.shape) == (tensor.dtype, tensor.shape)
        assert array.tobytes() == blob[tensor.offset : tensor.offset + tensor.size]


@pytest.mark.parametrize("name", reader._DTYPES)
def test_every_dtype_is_one_of_jax_and_has_its_size(name):
    """Each dtype that the reference knows maps to a JAX name whose elements are as large."""
    dtype, size = reader._DTYPES[name]
    blob = build({"x": entry(name, (3,), 0, 3 * size)}, bytes(3 * size))

    assert np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize == size
    assert list(dict(safetensors.deserialize(blob))["x"]["shape"]) == [3]
    assert (dtype, (3,), 3 * size) == (
        parse(blob)[0].dtype,
        parse(blob)[0].shape,
        parse(blob)[0].size,
    )


@pytest.mark.parametrize("name", ["F4", "F6_E2M3", "F6_E3M2"])
def test_packed_dtypes_are_refused(name):
    """Elements smaller than a byte are refused with the reason."""
    with pytest.raises(InvalidWeights, match=f"'x'.*{name} are packed"):
        parse(build({"x": entry(name, (8,), 0, 4)}, bytes(4)))


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": {"k": "v"}, "x": entry()},
        {"__metadata__": None, "x": entry()},
        {"x": entry(future=1)},
        json.dumps({"x": entry()}).encode() + b"   ",
    ],
)
def test_metadata_padding_and_further_fields_are_no_obstacle(header):
    """What the format allows beside tensors is passed over."""
    assert [tensor.name for tensor in parse(build(header, bytes(8)))] == ["x"]


def test_a_file_without_tensors_is_well_formed():
    """The empty file that the reference writes has no tensors."""
    assert parse(safetensors.numpy.save({})) == ()


DAMAGED = [
    (b"", "0 bytes"),
    (b"1234567", "7 bytes"),
    (struct.pack("<Q", 1 << 63), "truncated, or not a safetensors file"),
    (struct.pack("<Q", 3) + b"{}", "truncated, or not a safetensors file"),
    (build(b""), "not JSON"),
    (build(b"{"), "not JSON"),
    (build(b"[]"), "not a JSON object"),
    (build(b" {}"), "not a JSON object"),
    (build(b"\xff\xfe{}"), "not JSON"),
    (build('{"x": 1}'.encode("utf-16")), "not JSON"),
    (build(b"[" * 100_000), "nested too deeply"),
    (build(b'{"x":' * 100_000), "nested too deeply"),
    (build(b'{"x": NaN}'), "not JSON"),
    (build(b'{"x": ' + b"9" * 5000 + b"}"), "not JSON"),
    (build({"__metadata__": {"k": 1}}), "__metadata__"),
    (build({"__metadata__": []}), "__metadata__"),
    (build({"__metadata__": [1]}), "__metadata__"),
    (build({"x": 1}), "'x'.*expected its dtype"),
    (build({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)), "'x'.*expected its dtype"),
    (build({"x": entry() | {"data_offsets": [0, 4, 8]}}, bytes(8)), "'x'.*expected its dtype"),
    (build({"x": entry("F31")}, bytes(8)), "'x'.*'F31' is none of BOOL"),
    (build({"x": entry(shape=(-2,))}, bytes(8)), r"'x'.*\[-2\]"),
    (build({"x": entry(shape=(2.0,))}, bytes(8)), r"'x'.*\[2.0\]"),
    (build({"x": entry(shape=(True, 2))}, bytes(8)), r"'x'.*\[True, 2\]"),
    (build({"x": entry(shape=("2",))}, bytes(8)), r"'x'.*\['2'\]"),
    (build({"x": entry(shape=(0, 1 << 63), end=0)}), "'x'.*not at most 64 sizes"),
    (build({"x": entry(shape=(1,) * 65, end=4)}, bytes(4)), "'x'.*not at most 64 sizes"),
    (build({"x": entry(begin=-8, end=0)}, bytes(8)), "'x'.*offsets"),
    (build({"x": entry(begin=8, end=0)}, bytes(8)), "'x'.*takes 8 bytes"),
    (build({"x": entry(end=4)}, bytes(4)), "'x'.*takes 8 bytes, its offsets are 0 to 4"),
    (build({"x": entry(shape=(1 << 62,) * 64)}, bytes(8)), "'x'.*takes"),
    (build({"x": entry()}, bytes(7)), "truncated"),
    (build({"x": entry()}, bytes(9)), "damaged: its tensors end"),
    (build({"x": entry(begin=8, end=16)}, bytes(16)), "'x'.*begins at byte 8"),
    (build({"x": entry(), "y": entry(begin=4, end=12)}, bytes(12)), "'y'.*begins at byte 4"),
    (build({"x": entry(), "y": entry(begin=9, end=17)}, bytes(17)), "'y'.*begins at byte 9"),
    (build({"x": entry(), "y": entry()}, bytes(8)), "'y'.*begins at byte 0"),
    (build(b'{"x": 1, "x": 2}'), "'x' more than once"),
    (build(b'{"x": {"dtype": "F32", "dtype": "F32"}}'), "'dtype' more than once"),
    (build({"\ud800": entry()}, bytes(8)), "not valid Unicode"),
]


@pytest.mark.parametrize(("blob", "message"), DAMAGED, ids=[str(i) for i in range(len(DAMAGED))])
def test_damage_is_refused_with_the_tensor_and_the_values(blob, message):
    """A file that is not well-formed is refused, and the message says where."""
    with pytest.raises(InvalidWeights, match=message):
        parse(blob)


def test_every_prefix_is_refused():
    """However much of the end of a file is missing, it is refused."""
    blob = safetensors.numpy.save({"x": np.arange(3), "y": np.zeros((2, 2))})
    for size in range(len(blob)):
        with pytest.raises(InvalidWeights):
            parse(blob[:size])


def test_a_header_that_is_cut_off_is_refused():
    """A head shorter than the header is told with both lengths."""
    blob = build({"x": entry()}, bytes(8))

    with pytest.raises(InvalidWeights, match="truncated: 20 of the"):
        parse_safetensors_header(blob[:20], len(blob))


def test_a_large_header_is_refused_before_it_is_read():
    """The size of a header is bounded whatever the size of the blob."""
    with pytest.raises(InvalidWeights, match="at most 16777216 are read"):
        header_size(struct.pack("<Q", reader.HEADER_LIMIT + 1), 1 << 40)


def test_a_header_of_too_many_values_is_refused_before_it_is_read(monkeypatch):
    """How many values JSON may become is bounded, whatever small room each takes in the text."""
    monkeypatch.setattr(reader, "COMMA_LIMIT", 4)
    assert len(parse(build({"a": entry()}, bytes(8)))) == 1

    with pytest.raises(InvalidWeights, match="has 5 commas, at most 4 are read"):
        parse(build(b'{"a": [{}, {}, {}, {}, {}, {}]}'))


def test_messages_do_not_repeat_megabytes():
    """A name of any length is shortened in what is told of it."""
    with pytest.raises(InvalidWeights) as refused:
        parse(build({"x" * 100_000: entry("F31")}))

    assert len(str(refused.value)) < 1000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1 << 65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "F4", "x"]) | json_values,
        "shape": st.lists(st.integers(0, 3), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2) | json_values,
    }
)


@given(
    st.dictionaries(st.text(max_size=3), entries | json_values, max_size=3),
    st.binary(max_size=16),
)
def test_whatever_is_read_covers_the_data(header, data):
    """Any JSON at all is refused, or gives tensors that cover the data exactly, in order."""
    blob = build(json.dumps(header).encode(), data)
    try:
        tensors = parse(blob)
    except InvalidWeights:
        return

    end = len(blob) - len(data)
    for tensor in tensors:
        assert end == tensor.offset
        end += tensor.size
    assert end == len(blob)


@given(st.binary(max_size=64))
def test_noise_is_refused(noise):
    """Random bytes do nothing but be refused."""
    with pytest.raises(InvalidWeights):
        parse(noise)
