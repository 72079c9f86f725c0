"""Golden examples: what is read, and what counts as reproduced."""

import ml_dtypes
import numpy as np
import pytest

from servax.types import Blob, GoldenExample, StoredTensor
from servax_worker.errors import CannotServe
from servax_worker.golden import Golden


def golden(expected, rtol=0.0, atol=0.0):
    """An example with the lone output y."""
    return Golden("s", {}, {"y": np.asarray(expected)}, rtol, atol)


def test_arrays_are_read_where_they_lie():
    """Inputs and outputs are views of the mapped file, told apart by their names."""
    x, y = np.arange(3, dtype=np.float32), np.arange(2, dtype=np.int32)
    data = bytes(8) + x.tobytes() + y.tobytes()
    tensors = (
        StoredTensor("inputs/a/b", "float32", (3,), 8, 12),
        StoredTensor("outputs/y", "int32", (2,), 20, 8),
    )
    example = GoldenExample(Blob("sha256:", len(data)), 0.5, 0.25, tensors)

    read = Golden.read("s", example, memoryview(data))

    assert list(read.inputs) == ["a/b"]
    np.testing.assert_array_equal(read.inputs["a/b"], x)
    np.testing.assert_array_equal(read.outputs["y"], y)
    assert (read.rtol, read.atol) == (0.5, 0.25)


def test_what_lies_outside_of_the_file_is_refused():
    """A tensor that is said to lie beyond the end is refused, not read."""
    tensors = (StoredTensor("inputs/x", "float32", (3,), 8, 12),)

    with pytest.raises(CannotServe, match="file of 10"):
        Golden.read("s", GoldenExample(Blob("d", 10), 0, 0, tensors), memoryview(bytes(10)))


@pytest.mark.parametrize(
    ("expected", "actual", "rtol", "atol"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0, 0),
        ([1.0, 100.0], [1.0, 101.0], 0.01, 0),
        ([0.0], [0.1], 0, 0.1),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], 0, 0),
        ([1 + 1j], [1 + 1.001j], 0.01, 0),
        ([True, False], [True, False], 0, 0),
        ([2**62 + 1], [2**62 + 1], 0, 0),
        ([7], [8], 0, 1),
        (3.0, 3.0, 0, 0),
        (np.zeros((0, 2)), np.zeros((0, 2)), 0, 0),
        (
            np.array([1.5], ml_dtypes.bfloat16),
            np.array([1.5078125], ml_dtypes.bfloat16),
            0.01,
            0,
        ),
    ],
)
def test_what_is_within_the_tolerance_matches(expected, actual, rtol, atol):
    """Equal elements, and those within the tolerance, reproduce the example, for any dtype."""
    expected = np.asarray(expected)

    golden(expected, rtol, atol).check({"y": np.asarray(actual, expected.dtype)})


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.5, 3.2], r"2 of 3 elements of 'y' .* \[1\]: 2.5 instead of 2.0"),
        ([np.nan], [1.0], "1.0 instead of nan"),
        ([1.0], [np.nan], "nan instead of 1.0"),
        ([np.inf], [-np.inf], "-inf instead of inf"),
        ([1e308], [np.inf], "inf instead of"),
        ([True], [False], "False instead of True"),
        ([2**62 + 1], [2**62], f"{2**62} instead of {2**62 + 1}"),
        ([[1, 2], [3, 4]], [[1, 2], [9, 4]], r"\[1,0\]: 9 instead of 3"),
    ],
)
def test_the_worst_element_is_told(expected, actual, message):
    """What is off is refused, with the element that is furthest off."""
    expected = np.asarray(expected)

    with pytest.raises(CannotServe, match=message):
        golden(expected, rtol=0.01 if expected.dtype.kind == "f" else 0.0).check(
            {"y": np.asarray(actual, expected.dtype)}
        )


@pytest.mark.parametrize("outputs", [{}, {"y": np.zeros(2)}, {"y": np.zeros(1, np.float32)}])
def test_outputs_of_another_kind_are_refused(outputs):
    """A missing output, another shape and another dtype are named."""
    with pytest.raises(CannotServe, match="other outputs than its golden example has: 'y'"):
        golden([0.0]).check(outputs)
