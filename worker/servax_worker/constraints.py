"""Relations between symbolic dimensions that a program was exported with.

JAX keeps the constraints of an `export.SymbolicScope` in no field of a serialized export. What is
left of them are the shape assertions in the module, whose texts are stored in its bytecode as they
are. Without them, a size that breaks a constraint would only fail to compile, with a message that
does not tell why.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from servax_worker.dimensions import Dimension, DimensionError

_COMPARISON = re.compile(r"(.+?)(==|>=|<=)(.+)", re.DOTALL)
# How jax.export words the assertion of a constraint (JAX 0.10 to 0.12).
_ASSERTION = re.compile(rb"symbolic shape constraint ([^\0]{1,4096}?)\. Expected")


@dataclass(frozen=True)
class Constraint:
    """A relation between dimensions that must hold, as in `export.SymbolicScope`."""

    text: str
    _left: Dimension
    _comparison: str
    _right: Dimension

    @classmethod
    def parse(cls, text: str) -> "Constraint":
        """Reads "b <= 64", "mod(b, 8) == 0", "t >= 2*b"; raises DimensionError."""
        match = _COMPARISON.fullmatch(text)
        if match is None:
            raise DimensionError(f"'{text}' is not a comparison with ==, >= or <=")
        left, comparison, right = match.groups()
        return cls(text.strip(), Dimension.parse(left), comparison, Dimension.parse(right))

    def __str__(self) -> str:
        return self.text

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that it relates."""
        return self._left.symbols | self._right.symbols

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the relation is true where each symbol has its size; raises DimensionError."""
        left, right = self._left.evaluate(sizes), self._right.evaluate(sizes)
        return {"==": left == right, ">=": left >= right, "<=": left <= right}[self._comparison]


def read_constraints(module: bytes) -> tuple[Constraint, ...]:
    """The constraints that a serialized module asserts, as far as they can be read.

    One that cannot be read is left out: the compiler still holds the program to it.
    """
    constraints = {}
    for match in _ASSERTION.finditer(module):
        text = match.group(1).decode(errors="replace")
        try:
            constraints[text] = Constraint.parse(text)
        except DimensionError:
            continue
    return tuple(constraints.values())
