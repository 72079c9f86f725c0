"""The golden example of a signature: inputs, and the outputs that they must give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.types import GoldenExample
from servax_worker.errors import CannotServe
from servax_worker.weights import map_tensor

Arrays = Mapping[str, NDArray[Any]]

_WIDER = {"c": np.complex128}


@dataclass(frozen=True)
class Golden:
    """What a program is to be called with, and what must come of it, by name."""

    signature: str
    inputs: Arrays
    outputs: Arrays
    rtol: float
    atol: float

    @classmethod
    def read(cls, signature: str, example: GoldenExample, blob: memoryview) -> "Golden":
        """Read-only views of the arrays in the mapped blob; raises CannotServe."""
        inputs: dict[str, NDArray[Any]] = {}
        outputs: dict[str, NDArray[Any]] = {}
        for tensor in example.tensors:
            group, _, name = tensor.name.partition("/")
            (inputs if group == "inputs" else outputs)[name] = map_tensor(blob, tensor)
        return cls(signature, inputs, outputs, example.rtol, example.atol)

    def check(self, outputs: Arrays) -> None:
        """Raises CannotServe, with the worst element, where an output is not as expected.

        It is where abs(actual - expected) <= atol + rtol * abs(expected), or where both are NaN or
        the same.
        """
        for name, expected in self.outputs.items():
            actual = outputs.get(name)
            if actual is None or (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
                raise CannotServe(
                    f"signature '{self.signature}' gives other outputs than its golden example "
                    f"has: '{name}'"
                )
            self._compare(name, actual, expected)

    def _compare(self, name: str, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        wider = _WIDER.get(expected.dtype.kind, np.float64)
        found, wanted = actual.astype(wider), expected.astype(wider)
        with np.errstate(invalid="ignore", over="ignore"):
            error, allowed = np.abs(found - wanted), self.atol + self.rtol * np.abs(wanted)
            # As they came: two large integers may differ and give one float64.
            same = (actual == expected) | (np.isnan(found) & np.isnan(wanted))
            matches = same | ((error <= allowed) & (allowed > 0) & np.isfinite(wanted))
            excess = np.where(matches, -1.0, np.nan_to_num(error - allowed, nan=np.inf))
        if matches.all():
            return
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        index = ",".join(map(str, worst))
        raise CannotServe(
            f"signature '{self.signature}' does not reproduce its golden example: "
            f"{np.count_nonzero(~matches)} of {matches.size} elements of '{name}' are off, the "
            f"worst at [{index}]: {actual[worst]} instead of {expected[worst]}, with rtol "
            f"{self.rtol} and atol {self.atol}"
        )
