"""Numbers in JSON documents, to arrays of JAX's types."""

import json
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from servax.dtypes import numpy_dtype
from servax_worker.errors import Unsupported

_MOST_DIMENSIONS = 64  # numpy's


class Misfit(Exception):
    """Why a value is not an array of a type."""


def array_of(value: Any, name: str) -> NDArray[Any]:
    """The array of a value or of nested lists; `name` is JAX's of a type.

    Raises Misfit, and Unsupported for types that JSON has no form for. Floats are rounded, unless
    that turns a number into an infinity, or an integer into another one.
    """
    shape, leaves = _flatten(value)
    dtype = numpy_dtype(name)
    if dtype.kind == "c":
        raise Unsupported(f"JSON has no form for {name}; call over gRPC")
    allowed = {bool} if name == "bool" else {int} if "int" in name else {int, float}
    if not set(map(type, leaves)) <= allowed:
        stranger = next(leaf for leaf in leaves if type(leaf) not in allowed)
        raise Misfit(_why_not(stranger))
    if "int" in name and leaves:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        for extreme in (min(leaves), max(leaves)):
            if not info.min <= extreme <= info.max:
                raise Misfit(f"{extreme} is outside of {info.min} to {info.max}")
    if "int" in name or name == "bool":
        return np.array(leaves, dtype).reshape(shape)
    return _floats(leaves, dtype).reshape(shape)


def _floats(leaves: list[int | float], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        exact = np.array(leaves, np.float64)
    except OverflowError:
        raise Misfit("an integer of hundreds of digits is beyond every float") from None
    with np.errstate(over="ignore"):
        array = exact.astype(dtype)
    lost = (np.isfinite(exact) != np.isfinite(array)) | (np.isnan(exact) != np.isnan(array))
    if dtype in (np.float32, np.float64):
        # As TensorFlow Serving does, which has no narrower types in JSON.
        largest = 2 ** (np.finfo(dtype).nmant + 1)
        for index in np.flatnonzero(np.abs(exact) >= largest):
            leaf = leaves[index]
            lost[index] |= isinstance(leaf, int) and float(array[index]) != leaf
    if lost.any():
        raise Misfit(f"{leaves[int(np.argmax(lost))]} cannot be held")
    return array


def _flatten(value: Any) -> tuple[list[int], list[Any]]:
    """The shape of nested lists, and what is in them."""
    shape: list[int] = []
    level = [value]
    while level and isinstance(level[0], list):
        if len(shape) == _MOST_DIMENSIONS:
            raise Misfit(f"lists are nested deeper than {_MOST_DIMENSIONS}")
        if not all(isinstance(item, list) for item in level):
            raise Misfit(f"lists and values are mixed {len(shape)} lists deep")
        sizes = set(map(len, level))
        if len(sizes) > 1:
            raise Misfit(f"lists {len(shape)} deep have different lengths: {sorted(sizes)[:5]}")
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))
    return shape, level


def _why_not(leaf: Any) -> str:
    if isinstance(leaf, str):
        return f"{json.dumps(leaf[:40])} is text; programs of JAX take numbers"
    if is_base64(leaf):
        return "base64 stands for bytes; programs of JAX take numbers"
    if isinstance(leaf, list):
        return "lists and values are mixed"
    return f"{json.dumps(leaf)[:40]} does not belong there"


def is_base64(value: Any) -> bool:
    """Whether it is {"b64": "…"}, as TensorFlow Serving writes bytes."""
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)
