"""Arrays whose dimension 0 counts rows: joined, padded, and cut apart again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

_ALIGNMENT = 64  # XLA reads arrays in place on a CPU where they begin at a multiple of it


def join(parts: Sequence[Arrays], rows: int) -> Arrays:
    """The parts one below the other, padded to so many rows.

    The last row is repeated: it is valid where an invented one may not be (an index out of range,
    a row of zeros to normalize).
    """
    return {name: _join([part[name] for part in parts], rows) for name in parts[0]}


def split(arrays: Arrays, counts: Sequence[int]) -> list[Arrays]:
    """Read-only views of as many consecutive rows as `counts` says, from the first row on."""
    whole = {name: array.view() for name, array in arrays.items()}
    for array in whole.values():
        array.flags.writeable = False
    parts: list[Arrays] = []
    start = 0
    for count in counts:
        stop = start + count
        parts.append({name: array[start:stop] for name, array in whole.items()})
        start = stop
    return parts


def restore(parts: Sequence[Arrays]) -> Arrays:
    """The parts one below the other, read-only."""
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for array in whole.values():
        array.flags.writeable = False
    return whole


def _join(arrays: Sequence[NDArray[Any]], rows: int) -> NDArray[Any]:
    joined = empty_aligned((rows, *arrays[0].shape[1:]), arrays[0].dtype)
    filled = sum(map(len, arrays))
    np.concatenate(arrays, out=joined[:filled])
    joined[filled:] = joined[filled - 1]
    return joined


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of undefined elements that XLA reads in place on a CPU."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
