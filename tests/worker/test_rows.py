"""Rows of several arrays become one array and are cut apart again."""

import ml_dtypes
import numpy as np
import pytest

from servax_worker.rows import join, restore, split


def test_padding_repeats_the_last_row():
    """Joined rows keep their order, and what is missing is a copy of the last one."""
    joined = join([{"x": np.array([[1, 2]])}, {"x": np.array([[3, 4], [5, 6]])}], 5)

    assert joined["x"].tolist() == [[1, 2], [3, 4], [5, 6], [5, 6], [5, 6]]


@pytest.mark.parametrize("dtype", ["bool", "float16", "complex64", "int64", "bfloat16", "int4"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_types_and_alignment(dtype, shape):
    """Arrays of any type and rank stay what they are, and begin where XLA reads them in place."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    parts = [{"x": np.ones((rows, *shape), kind)} for rows in (1, 2)]

    joined = join(parts, 4)["x"]

    assert (joined.dtype, joined.shape) == (kind, (4, *shape))
    assert joined.ctypes.data % 64 == 0
    assert np.array_equal(joined, np.ones((4, *shape), kind))


def test_parts_are_read_only_views():
    """What one caller gets cannot be used to change what another one gets."""
    whole = {"y": np.arange(6).reshape(3, 2)}

    first, second = split(whole, [1, 2])

    assert (first["y"].tolist(), second["y"].tolist()) == ([[0, 1]], [[2, 3], [4, 5]])
    assert not first["y"].flags.writeable
    assert not second["y"].flags.writeable


def test_restoring():
    """The parts of a call that ran in several batches are put together, read-only."""
    whole = restore([{"y": np.array([1])}, {"y": np.array([2, 3])}])

    assert whole["y"].tolist() == [1, 2, 3]
    assert not whole["y"].flags.writeable
