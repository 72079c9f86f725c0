"""Checks requests against a signature, before JAX sees them.

JAX itself would wrap int64 to int32 or answer a wrong shape with a message about flat argument
numbers. Here every problem of a request is found at once and told in the caller's words. That the
bytes of an array are values of its type is checked where arrays are made (`servax.tensors`).
"""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.dtypes import dtype_name, numpy_dtype
from servax.errors import InvalidTensor
from servax.types import Batching, Signature, TensorSpec
from servax_worker.constraints import Constraint
from servax_worker.dimensions import (
    Dimension,
    DimensionError,
    Equation,
    Unsolvable,
    solve,
)
from servax_worker.errors import CannotServe, InvalidInput

KEY_WIDTHS = {"key<fry>": 2, "key<rbg>": 4, "key<unsafe_rbg>": 4}
"""How many uint32 make up one typed random key of each of JAX's implementations: the last
dimension of what `jax.random.key_data` gives."""

_MOST_NAMES = 20  # in one message
_MOST_KNOWN = 1024


def callers_view(signature: Signature) -> Signature:
    """The signature as callers meet it; what concerns neither of these stays.

    Typed random keys are their uint32 key data: `key<fry>[n]` becomes `uint32[n,2]`. A fixed number
    of rows, where batching is declared, is a symbol: `float32[8,3]` becomes `float32[b,3]`.
    """

    def plain(spec: TensorSpec) -> TensorSpec:
        width = KEY_WIDTHS.get(spec.dtype)
        if width is None:
            return spec
        return replace(spec, dtype="uint32", shape=(*spec.shape, str(width)))

    view = replace(
        signature,
        inputs=tuple(map(plain, signature.inputs)),
        outputs=tuple(map(plain, signature.outputs)),
    )
    fixed = fixed_rows(signature)
    if fixed is None:
        return view
    texts = " ".join(" ".join(spec.shape) for spec in (*view.inputs, *view.outputs))
    taken = re.findall(r"\w+", texts)
    names = itertools.chain(["b"], (f"b{number}" for number in itertools.count()))
    symbol = next(name for name in names if name not in taken)

    def any_rows(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=(symbol, *spec.shape[1:]))

    return replace(
        view,
        inputs=tuple(map(any_rows, view.inputs)),
        outputs=tuple(map(any_rows, view.outputs)),
        batching=Batching(symbol, fixed),
    )


def fixed_rows(signature: Signature) -> int | None:
    """The number of rows of every call, where batching is declared for a fixed number.

    Raises CannotServe where it is, but the inputs and outputs have no such number in common.
    """
    if signature.batching is None or signature.batching.symbol:
        return None
    first = {spec.shape[:1] for spec in (*signature.inputs, *signature.outputs)}
    for shape in first:
        if len(first) == 1 and shape and shape[0].isdecimal() and signature.inputs:
            return int(shape[0])
    raise CannotServe(
        f"signature '{signature.name}' declares batching over a fixed number of rows, but its "
        f"inputs and outputs do not all begin with the same number"
    )


class SignatureChecker:
    """Checks requests for one signature, in the callers' view of it."""

    def __init__(self, signature: Signature, constraints: Sequence[Constraint] = ()):
        """Parses the signature's dimensions.

        `constraints` must hold besides what the dimensions say themselves. Raises CannotServe
        where the signature is not one that this worker understands.
        """
        self.signature = callers_view(signature)
        self.fixed = fixed_rows(signature) is not None
        """Whether the program takes one number of rows only."""
        self.constraints = tuple(constraints)
        self._inputs = {spec.name: _Array(spec) for spec in self.signature.inputs}
        self._outputs = {spec.name: _Array(spec) for spec in self.signature.outputs}
        for specs in (self.signature.inputs, self.signature.outputs):
            names = [spec.name for spec in specs]
            if len(set(names)) < len(names):
                raise CannotServe(f"the artifact's signature names an array twice: {names}")
        dimensions = [dim for array in self._inputs.values() for dim in array.dimensions]
        self.symbols = tuple(sorted({symbol for dim in dimensions for symbol in dim.symbols}))
        self._known: dict[Any, Mapping[str, int]] = {}  # the sizes of shapes that passed before
        self.row_symbol = self._row_symbol()
        """The symbol that counts rows, where batching is declared; "" otherwise."""
        # Requests of rows are padded and cut to rows that the program takes.
        self._callers_constraints = [
            each for each in self.constraints if self.row_symbol not in each.symbols
        ]

    def check(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, int]:
        """Finds the size of every symbol.

        Raises InvalidInput that lists every problem: missing and unknown names, dtypes (nothing is
        ever cast), byte order, bytes that are no value of their type, ranks and sizes.
        """
        shapes = tuple((name, array.dtype, array.shape) for name, array in inputs.items())
        if (known := self._known.get(shapes)) is not None:
            return known
        problems = list(self._name_problems(inputs))
        equations: list[Equation] = []
        for name, expected in self._inputs.items():
            if name not in inputs:
                continue
            if problem := expected.problem(inputs[name]):
                problems.append(problem)
            else:
                equations += expected.equations(inputs[name])
        sizes: dict[str, int] = {}
        try:
            sizes = solve(equations)
        except Unsolvable as error:
            if not problems:  # an input that is wrong already may leave symbols undetermined
                problems += error.problems
        except DimensionError as error:
            problems.append(str(error))
        if problems:
            raise InvalidInput("; ".join(problems))
        self._check(self._callers_constraints, sizes)
        if len(self._known) < _MOST_KNOWN:
            self._known[shapes] = sizes
        return sizes

    def check_constraints(self, sizes: Mapping[str, int]) -> None:
        """Raises InvalidInput where a constraint does not hold at `sizes`, as the program has them.

        `check` leaves those out that concern the number of rows.
        """
        self._check(self.constraints, sizes)

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether every constraint holds at `sizes`."""
        return all(_holds(relation, sizes) for relation in self.constraints)

    def _check(self, constraints: Sequence[Constraint], sizes: Mapping[str, int]) -> None:
        broken = [str(relation) for relation in constraints if not _holds(relation, sizes)]
        if broken:
            at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            raise InvalidInput(
                f"{at} does not meet {_quoted(broken)}, which the program was exported with"
            )

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """The outputs to return: `names`, or all when there are none; raises InvalidInput."""
        wanted = tuple(names) or tuple(self._outputs)
        unknown = sorted(set(wanted) - self._outputs.keys())
        if unknown:
            raise InvalidInput(
                f"no output is called {_quoted(unknown)}; the signature gives "
                f"{_quoted(self._outputs)}"
            )
        return wanted

    def output_bytes(self, names: Iterable[str], sizes: Mapping[str, int]) -> int:
        """How many bytes the named outputs take at `sizes`."""
        arrays = (self._outputs[name] for name in names)
        return sum(
            math.prod(dim.evaluate(sizes) for dim in array.dimensions) * array.dtype.itemsize
            for array in arrays
        )

    def example(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        """Inputs of the given sizes that are valid for any program: zeros, and ones for floats.

        Integers are 0 because they may be indices.
        """
        return {
            name: np.full(
                tuple(dim.evaluate(sizes) for dim in array.dimensions),
                0 if array.dtype.kind in "biu" or array.dtype.name in ("int4", "uint4") else 1,
                array.dtype,
            )
            for name, array in self._inputs.items()
        }

    def check_outputs(self, outputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]) -> None:
        """Raises CannotServe where what a program gave is not what its signature says."""
        for name, array in self._outputs.items():
            shape = tuple(dim.evaluate(sizes) for dim in array.dimensions)
            found = outputs[name]
            if (found.dtype, found.shape) != (array.dtype, shape):
                raise CannotServe(
                    f"output '{name}' came as {describe(found)}, the signature says {array} with "
                    f"{dict(sizes)}: the artifact does not say what its program does"
                )

    def _row_symbol(self) -> str:
        batching = self.signature.batching
        if batching is None:
            return ""
        symbol = batching.symbol
        wrong = [
            f"{array.spec}"
            for array in (*self._inputs.values(), *self._outputs.values())
            if array.spec.shape[:1] != (symbol,)
            or any(symbol in dim.symbols for dim in array.dimensions[1:])
        ]
        if wrong or not self._inputs:
            raise CannotServe(
                f"signature '{self.signature.name}' declares batching over '{symbol}', which must "
                f"be the first dimension of every input and output and appear nowhere else: "
                f"{'; '.join(wrong) or 'it has no inputs'}"
            )
        return symbol

    def _name_problems(self, inputs: Mapping[str, NDArray[Any]]) -> Iterable[str]:
        unknown = sorted(inputs.keys() - self._inputs.keys())
        missing = [name for name in self._inputs if name not in inputs]
        if unknown:
            yield f"no input is called {_quoted(unknown)}"
        if missing:
            yield f"missing input {_quoted(missing)}"
        if unknown or missing:
            taken = ", ".join(map(str, self.signature.inputs))
            yield f"the signature '{self.signature.name}' takes {taken or 'no inputs'}"


class _Array:
    """A TensorSpec with its dtype and dimensions parsed."""

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        try:
            self.dtype = numpy_dtype(spec.dtype)
            self.dimensions = tuple(map(Dimension.parse, spec.shape))
        except (InvalidTensor, DimensionError) as error:
            raise CannotServe(f"'{spec.name}' in the artifact's signature: {error}") from error

    def __str__(self) -> str:
        return f"{self.spec.dtype}[{','.join(self.spec.shape)}]"

    def problem(self, array: NDArray[Any]) -> str | None:
        """What is wrong with the array by itself, and what to do."""
        found = []
        if array.dtype.newbyteorder("=") != self.dtype:
            found.append("cast it")
        elif not array.dtype.isnative:
            found.append("swap its bytes to the native order")
        if array.ndim != len(self.dimensions):
            found.append(f"it has {array.ndim} dimensions instead of {len(self.dimensions)}")
        else:
            found += [
                f"dimension {index} is {size} instead of {dimension}"
                for index, (size, dimension) in enumerate(
                    zip(array.shape, self.dimensions, strict=True)
                )
                if not dimension.symbols and size != dimension.evaluate({})
            ]
        if not found:
            return None
        got = f"input '{self.spec.name}': got {describe(array)}, the signature takes {self}"
        return "; ".join([got, *found])

    def equations(self, array: NDArray[Any]) -> Iterable[Equation]:
        """What the array says of the symbols."""
        for index, (size, dim) in enumerate(zip(array.shape, self.dimensions, strict=True)):
            if dim.symbols:
                yield Equation(dim, size, f"dimension {index} of input '{self.spec.name}'")


def describe(array: NDArray[Any]) -> str:
    """An array's type as in "int64[1,256]"."""
    try:
        name = dtype_name(array.dtype)
    except InvalidTensor:
        name = str(array.dtype)
    return f"{name}[{','.join(map(str, array.shape))}]"


def _holds(constraint: Constraint, sizes: Mapping[str, int]) -> bool:
    try:
        return constraint.holds(sizes)
    except DimensionError:
        return False


def _quoted(names: Collection[str]) -> str:
    quoted = [f"'{name}'" for name in itertools.islice(names, _MOST_NAMES)]
    if len(names) > _MOST_NAMES:
        quoted.append(f"and {len(names) - _MOST_NAMES} more")
    return ", ".join(quoted)
