"""Weights are views into mapped files, and only where they lie as they are said to."""

import ml_dtypes
import numpy as np
import pytest

from servax.types import StoredTensor, TensorSpec
from servax_worker.errors import CannotServe
from servax_worker.weights import map_weights

SHARD = memoryview(bytes(range(64)))


def stored(name="w", dtype="float32", shape=(2, 3), offset=8, size=24):
    """What the registry says of a tensor."""
    return {name: (SHARD, StoredTensor(name, dtype, shape, offset, size))}


def test_views_share_the_file():
    """An array shows the file's bytes at the tensor's place, without a copy, read-only."""
    arrays = map_weights([TensorSpec("w", "float32", ("2", "3"), 0)], stored())

    assert arrays["w"].tobytes() == bytes(range(8, 32))
    assert arrays["w"].shape == (2, 3)
    assert not arrays["w"].flags.writeable
    assert np.shares_memory(arrays["w"], np.frombuffer(SHARD, np.uint8))


def test_other_types_and_scalars():
    """Types of ml_dtypes, scalars and empty arrays are mapped as well."""
    specs = [
        TensorSpec("a", "bfloat16", ("2",), 0),
        TensorSpec("b", "int8", (), 1),
        TensorSpec("c", "float32", ("0", "4"), 2),
    ]
    arrays = map_weights(
        specs,
        stored("a", "bfloat16", (2,), 0, 4)
        | stored("b", "int8", (), 63, 1)
        | stored("c", "float32", (0, 4), 64, 0),
    )

    assert arrays["a"].dtype == ml_dtypes.bfloat16
    assert arrays["b"] == 63
    assert arrays["c"].shape == (0, 4)


@pytest.mark.parametrize(
    ("spec", "tensor", "message"),
    [
        (("v", "float32", ("2", "3")), {}, "weight 'v' is in none of the version's files"),
        (("w", "float32", ("3", "2")), {}, r"takes weight w: float32\[3,2\], stored is"),
        (("w", "float16", ("2", "3")), {}, "stored is float32"),
        (("w", "float32", ("2", "3")), {"offset": 48}, "said to lie at byte 48"),
        (("w", "float32", ("2", "3")), {"offset": -8}, "said to lie at byte -8"),
        (("w", "float32", ("2", "3")), {"size": 20}, "to take 20"),
        (("w", "text", ("2", "3")), {"dtype": "text"}, "unknown dtype 'text'"),
    ],
)
def test_what_does_not_fit_is_told(spec, tensor, message):
    """A tensor that is missing, different, or outside of its file is an error that names it."""
    with pytest.raises(CannotServe, match=message):
        map_weights([TensorSpec(*spec, 0)], stored(**tensor))
