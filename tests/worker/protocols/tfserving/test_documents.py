"""JSON in rows and in columns, against numpy."""

import json
import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servax.dtypes import DTYPES
from servax.types import TensorSpec
from servax_worker.errors import InvalidInput, Unsupported
from servax_worker.protocols.tfserving.documents import Document, render

REAL = sorted(name for name, dtype in DTYPES.items() if dtype.kind != "c")
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


def spec(name="x", dtype="float32"):
    """An input; nothing looks at its shape."""
    return TensorSpec(name, dtype, ("?",), 0)


def parse(**document):
    """Reads a request."""
    return Document.parse(json.dumps(document).encode())


def arrays(specs, **document):
    """The arrays of a request."""
    return parse(**document).arrays(specs)


def values_of(name, shape, seed):
    """Arbitrary values of a type, NaN and infinities among them."""
    random = np.random.default_rng(seed)
    dtype = DTYPES[name]
    size = math.prod(shape)
    if name == "bool":
        return random.integers(0, 2, shape).astype(dtype)
    if name in ("int4", "uint4", "float4_e2m1fn"):
        return random.integers(0, 8, shape).astype(dtype)
    return np.frombuffer(random.bytes(size * dtype.itemsize), dtype).reshape(shape)


def same(found, expected):
    """Whether two arrays are the same, whatever the bits of a NaN."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if "float" in expected.dtype.name:
        with np.errstate(invalid="ignore"):  # signaling NaNs
            found, expected = found.astype(np.float64), expected.astype(np.float64)
        return np.array_equal(found, expected, equal_nan=True)
    return np.array_equal(found, expected)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=20)
@given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_an_answer_is_a_request(name, shape, seed):
    """What an array is written as in an answer, in rows or in columns, is read as the same array:
    no digit and no NaN is lost in any type.
    """
    array = values_of(name, shape, seed)

    for in_rows, asked, answered in (
        (False, "inputs", "outputs"),
        (True, "instances", "predictions"),
    ):
        if in_rows and not shape[0]:
            continue  # there is no request without a row
        answer = json.loads(render({"y": array}, in_rows=in_rows))
        shape_left = len(shape) if math.prod(shape) else shape.index(0) + 1
        found = arrays([spec(dtype=name)], **{asked: answer[answered]})["x"]
        expected = array if math.prod(shape) else array.reshape(shape[:shape_left])

        assert same(found, expected)


@settings(max_examples=50)
@given(rows=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_rows_are_columns(rows, seed):
    """Several inputs are the same arrays in rows as in columns, and as numpy stacks them."""
    random = np.random.default_rng(seed)
    columns = {
        "a": random.integers(-9, 9, (rows, 2)).astype(np.int32),
        "b": random.random(rows, np.float32),
        "c": random.random((rows, 2, 1)) < 0.5,
    }
    specs = [spec("a", "int32"), spec("b"), spec("c", "bool")]
    by_row = [
        {name: column[index].tolist() for name, column in columns.items()} for index in range(rows)
    ]

    in_rows = arrays(specs, instances=by_row)
    in_columns = arrays(specs, inputs={name: each.tolist() for name, each in columns.items()})

    for name, column in columns.items():
        assert same(in_rows[name], column)
        assert same(in_columns[name], column)
    assert arrays(specs, instances=json.loads(render(columns, in_rows=True))["predictions"])
    assert json.loads(render(columns, in_rows=False))["outputs"].keys() == columns.keys()


def test_forms():
    """One input needs no name; a scalar is a value; the signature is named or the default."""
    ones = [[1, 1]]

    assert arrays([spec()], instances=ones)["x"].tolist() == ones
    assert arrays([spec()], instances=[{"x": [1, 1]}])["x"].tolist() == ones
    assert arrays([spec()], inputs=ones)["x"].tolist() == ones
    assert arrays([spec()], inputs={"x": ones})["x"].tolist() == ones
    assert arrays([spec()], inputs=3)["x"].shape == ()
    assert arrays([], inputs={}) == {}
    assert arrays([spec(), spec("y")], inputs={"y": 1}).keys() == {"y"}
    assert parse(inputs=3).signature == "serving_default"
    assert parse(inputs=3, signature_name="").signature == "serving_default"
    assert parse(inputs=3, signature_name="half").signature == "half"


def test_numbers_that_json_has_not():
    """NaN and the infinities are read and written as TensorFlow Serving does."""
    document = Document.parse(b'{"instances": [NaN, Infinity, -Infinity, 1e2]}')
    (array,) = document.arrays([spec()]).values()

    assert str(array) == "[ nan  inf -inf 100.]"
    assert (
        render({"y": array}, in_rows=True) == '{"predictions": [NaN, Infinity, -Infinity, 100.0]}'
    )


def test_answers_are_short():
    """A float32 has its own digits, not those of the double next to it."""
    array = np.array([0.1, 1, 1e20], np.float32)

    assert render({"y": array}, in_rows=False) == '{"outputs": [0.1, 1.0, 1e+20]}'
    assert render({"y": array.astype(ml_dtypes.bfloat16)[1:2]}, in_rows=False) == (
        '{"outputs": [1.0]}'
    )


def test_several_outputs():
    """Outputs have their names where there are several."""
    outputs = {"a": np.array([[1], [2]]), 'b"': np.array([True, False])}

    assert json.loads(render(outputs, in_rows=True)) == {
        "predictions": [{"a": [1], 'b"': True}, {"a": [2], 'b"': False}]
    }
    assert json.loads(render(outputs, in_rows=False)) == {
        "outputs": {"a": [[1], [2]], 'b"': [True, False]}
    }


@pytest.mark.parametrize(
    "outputs",
    [{"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(())}],
    ids=["different rows", "scalar"],
)
def test_outputs_without_common_rows(outputs):
    """Where outputs have no rows in common, the error says to ask in columns."""
    with pytest.raises(InvalidInput, match=r"no rows in common: 'a'.*send the inputs in columns"):
        render(outputs, in_rows=True)


REFUSED_BODIES = {
    b"": "the body is not JSON",
    b"{": "the body is not JSON",
    b"\xff": "the body is not JSON",
    b"[" * 100_000: "the body is not JSON",
    b"[1]": "not a JSON object",
    b"{}": "neither 'instances' nor 'inputs'",
    b'{"inputs": 1, "instances": [1]}': "both 'instances' and 'inputs'",
    b'{"inputs": 1, "signature_name": 1}': "'signature_name' is not a string",
}


@pytest.mark.parametrize("body", REFUSED_BODIES, ids=lambda body: str(body[:20]))
def test_refused_bodies(body):
    """What is no request is refused."""
    with pytest.raises(InvalidInput, match=REFUSED_BODIES[body]):
        Document.parse(body)


ONE, TWO = [spec()], [spec("a"), spec("b")]
REFUSED_ROWS = {
    "no list": (ONE, {"x": 1}, "not a list of at least one row"),
    "no row": (ONE, [], "not a list of at least one row"),
    "values for two": (TWO, [1], "values, but the signature takes 2 inputs"),
    "missing key": (TWO, [{"a": 1, "b": 1}, {"a": 1}], "row 1 .* with the keys a, b"),
    "another key": (ONE, [{"y": 1}], "row 0 .* with the keys x"),
    "mixed": (ONE, [{"x": 1}, 1], "row 1 of 'instances' is not an object"),
    "different sizes": (ONE, [[1], [1, 2]], r"lists 1 deep have different lengths: \[1, 2\]"),
    "different depths": (ONE, [[1], 1], "mixed 1 lists deep"),
    "deeper": (ONE, [1, [1]], "lists and values are mixed"),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_refused_rows(case):
    """Rows that do not make arrays are refused, and the error says which."""
    specs, instances, message = REFUSED_ROWS[case]

    with pytest.raises(InvalidInput, match=message):
        arrays(specs, instances=instances)


REFUSED_VALUES = {
    "value for two": (TWO, 1, "'inputs' is a value, but the signature takes 2 inputs"),
    "unknown name": (ONE, {"x": 1, "z": 1}, "no input is called 'z'; the signature takes"),
    "text": (ONE, {"x": ["a"]}, "input 'x' takes float32: \"a\" is text"),
    "base64": (ONE, {"b64": "aGk="}, "base64 stands for bytes; programs of JAX take numbers"),
    "base64 inside": (ONE, {"x": [{"b64": "aGk="}]}, "base64 stands for bytes"),
    "null": (ONE, [None], "null does not belong there"),
    "object": (ONE, {"x": [{"y": 1}]}, 'takes float32: {"y": 1} does not belong there'),
    "bool as number": (ONE, [True], "true does not belong there"),
    "number as bool": ([spec(dtype="bool")], [1], "takes bool: 1 does not belong there"),
    "fraction": ([spec(dtype="int32")], [1, 2.5], "takes int32: 2.5 does not belong there"),
    "float as integer": ([spec(dtype="int32")], [1.0], "takes int32: 1.0 does not"),
    "too large": ([spec(dtype="uint8")], [0, 256], "256 is outside of 0 to 255"),
    "too small": ([spec(dtype="uint64")], [-1], "-1 is outside of 0 to 18446744073709551615"),
    "large float": (ONE, [1.0, 1e39], "1e\\+39 cannot be held"),
    "inexact integer": (ONE, [2**24 + 1], "16777217 cannot be held"),
    "endless integer": (ONE, [10**400], "beyond every float"),
    "half": ([spec(dtype="float16")], [65536], "65536 cannot be held"),
    "no infinity": ([spec(dtype="float8_e4m3fn")], [math.inf], "inf cannot be held"),
    "deep": (ONE, eval("[" * 65 + "]" * 65), "nested deeper than 64"),
}


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_refused_values(case):
    """Nothing is cast: a value that is not of its input's type is refused and named."""
    specs, inputs, message = REFUSED_VALUES[case]

    with pytest.raises(InvalidInput, match=message):
        arrays(specs, inputs=inputs)


def test_integers_that_floats_hold():
    """Integers are taken for floats where the type has them exactly."""
    (array,) = arrays(ONE, inputs=[2**24, 2**25, -3]).values()

    assert array.tolist() == [2**24, 2**25, -3]


def test_every_problem_is_told():
    """All inputs that do not fit are named at once."""
    with pytest.raises(InvalidInput, match=r"input 'a' .*; input 'b' "):
        arrays(TWO, inputs={"a": "x", "b": None})


def test_complex_numbers():
    """JSON has no form for complex numbers; the error says where to go."""
    with pytest.raises(Unsupported, match=re.escape("no form for complex64; call over gRPC")):
        arrays([spec(dtype="complex64")], inputs=[1])
    with pytest.raises(Unsupported, match="output 'y': JSON has no form"):
        render({"y": np.zeros(1, np.complex64)}, in_rows=False)
