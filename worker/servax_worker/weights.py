"""Maps weights out of safetensors files, at the places that the registry read from headers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.dtypes import numpy_dtype
from servax.errors import InvalidTensor
from servax.types import StoredTensor, TensorSpec
from servax_worker.errors import CannotServe


def map_weights(
    specs: Iterable[TensorSpec], stored: Mapping[str, tuple[memoryview, StoredTensor]]
) -> dict[str, NDArray[Any]]:
    """Read-only views of the arrays that `specs` name; nothing is copied.

    `stored` gives, by name, the mapped file and what lies in it. Raises CannotServe where a tensor
    is missing, lies outside of its file, or is not what its spec says.
    """
    arrays = {}
    for spec in specs:
        if spec.name not in stored:
            raise CannotServe(f"weight '{spec.name}' is in none of the version's files")
        shard, tensor = stored[spec.name]
        if (tensor.dtype, tuple(map(str, tensor.shape))) != (spec.dtype, spec.shape):
            raise CannotServe(
                f"the program takes weight {spec}, stored is {tensor.dtype}{list(tensor.shape)}"
            )
        arrays[spec.name] = map_tensor(shard, tensor)
    return arrays


def map_tensor(shard: memoryview, tensor: StoredTensor) -> NDArray[Any]:
    """A read-only view of what lies in a mapped file; raises CannotServe where it does not."""
    try:
        dtype = numpy_dtype(tensor.dtype)
    except InvalidTensor as error:
        raise CannotServe(f"stored tensor '{tensor.name}': {error}") from error
    fits = 0 <= tensor.offset <= len(shard) - tensor.size
    if not fits or math.prod(tensor.shape) * dtype.itemsize != tensor.size:
        raise CannotServe(
            f"stored tensor '{tensor.name}' {tensor.dtype}{list(tensor.shape)} is said to lie at "
            f"byte {tensor.offset} and to take {tensor.size}, in a file of {len(shard)}"
        )
    data = shard[tensor.offset : tensor.offset + tensor.size]
    return np.frombuffer(data, dtype).reshape(tensor.shape)
