"""JAX's names of element types and their numpy types.

The names are those of `servax.v1.Tensor.dtype`. Those that numpy lacks come from ml_dtypes, which
JAX itself uses, so that the arrays are the ones that JAX gives and takes.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from servax.errors import InvalidTensor

_NUMPY = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_ML_DTYPES = [
    "int4",
    "uint4",
    "bfloat16",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {name: np.dtype(name) for name in _NUMPY}
    | {name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES}
)
"""Every element type that can be sent."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Give the numpy type of a JAX name; raises InvalidTensor for one that cannot be sent."""
    try:
        return DTYPES[name]
    except KeyError:
        raise InvalidTensor(f"unknown dtype {name!r}; there are {', '.join(DTYPES)}") from None


@lru_cache(256)  # numpy makes the name anew every time, which takes microseconds
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Give JAX's name of a numpy type in any byte order; raises InvalidTensor if it has none."""
    if dtype.name not in DTYPES:
        raise InvalidTensor(
            f"arrays of {dtype} cannot be sent; convert to one of {', '.join(DTYPES)}"
        )
    return dtype.name
