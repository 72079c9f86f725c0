"""The JSON documents of TensorFlow Serving's REST API, to and from arrays.

    {"instances": [row, row…]}      to  {"predictions": [row, row…]}
    {"inputs": value or {name: …}}  to  {"outputs": value or {name: …}}

A row is a value, or an object of one value for each input. The names are left out where there is
only one input, or output. NaN, Infinity and -Infinity stand for themselves, although JSON has none.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.types import DEFAULT_SIGNATURE, TensorSpec
from servax_worker.errors import InvalidInput, Unsupported
from servax_worker.protocols.numbers import Misfit, array_of, is_base64

_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@dataclass(frozen=True)
class Document:
    """A request: its signature, and its inputs in rows or in columns."""

    signature: str
    in_rows: bool
    values: Any

    @staticmethod
    def parse(body: bytes) -> "Document":
        """Reads a request; raises InvalidInput."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the body is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise InvalidInput("the body is not a JSON object")
        signature = document.get("signature_name", "")
        if not isinstance(signature, str):
            raise InvalidInput("'signature_name' is not a string")
        forms = [form for form in ("instances", "inputs") if form in document]
        if len(forms) != 1:
            raise InvalidInput(
                "the body has both 'instances' and 'inputs'; give one of them"
                if forms
                else "the body has neither 'instances' nor 'inputs'"
            )
        (form,) = forms
        return Document(signature or DEFAULT_SIGNATURE, form == "instances", document[form])

    def arrays(self, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
        """The inputs as arrays of the types that a signature takes.

        Raises InvalidInput that names the inputs whose values are none, and Unsupported for types
        that JSON has no form for. That all inputs are there is left to be checked.
        """
        if self.in_rows:
            columns = _columns(self.values, specs)
        elif isinstance(self.values, dict) and not is_base64(self.values):
            columns = self.values
        else:
            columns = {_only(specs, "'inputs' is a value").name: self.values}
        types = {spec.name: spec.dtype for spec in specs}
        if unknown := sorted(columns.keys() - types.keys()):
            raise InvalidInput(
                f"no input is called '{unknown[0]}'; the signature takes "
                f"{', '.join(map(str, specs))}"
            )
        arrays = {}
        problems = []
        for name, value in columns.items():
            try:
                arrays[name] = array_of(value, types[name])
            except Misfit as misfit:
                problems.append(f"input '{name}' takes {types[name]}: {misfit}")
        if problems:
            raise InvalidInput("; ".join(problems))
        return arrays


def render(outputs: Mapping[str, NDArray[Any]], *, in_rows: bool) -> str:
    """The answer to a request of the same form.

    Raises InvalidInput where outputs do not have a row for each other's, and Unsupported for types
    that JSON has no form for.
    """
    if not in_rows:
        texts = {name: _text(name, array, array.ndim)[0] for name, array in outputs.items()}
        return f'{{"outputs": {_named(texts)}}}'
    sizes = {name: array.shape[0] if array.ndim else None for name, array in outputs.items()}
    if None in sizes.values() or len(set(sizes.values())) > 1:
        shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in outputs.items())
        raise InvalidInput(
            f"the outputs have no rows in common: {shapes}; send the inputs in columns ('inputs')"
        )
    columns = {name: _text(name, array, array.ndim - 1) for name, array in outputs.items()}
    rows = zip(*columns.values(), strict=True)
    named = [_named(dict(zip(columns, row, strict=True))) for row in rows]
    return f'{{"predictions": [{", ".join(named)}]}}'


def _columns(instances: Any, specs: Sequence[TensorSpec]) -> dict[str, list[Any]]:
    if not isinstance(instances, list) or not instances:
        raise InvalidInput("'instances' is not a list of at least one row")
    named = [isinstance(row, dict) and not is_base64(row) for row in instances]
    if not any(named):
        return {_only(specs, "the rows of 'instances' are values").name: instances}
    names = {spec.name for spec in specs}
    for index, row in enumerate(instances):
        if not named[index] or row.keys() != names:
            raise InvalidInput(
                f"row {index} of 'instances' is not an object with the keys "
                f"{', '.join(sorted(names))}"
            )
    return {name: [row[name] for row in instances] for name in names}


def _only(specs: Sequence[TensorSpec], what: str) -> TensorSpec:
    if len(specs) != 1:
        raise InvalidInput(
            f"{what}, but the signature takes {len(specs)} inputs: give an object with the keys "
            f"{', '.join(spec.name for spec in specs)}"
        )
    return specs[0]


def _text(name: str, array: NDArray[Any], depth: int) -> list[str]:
    """The text of each sub-array of so many dimensions, in their order."""
    if array.dtype.kind == "c":
        raise Unsupported(f"output '{name}': JSON has no form for {array.dtype}; call over gRPC")
    if array.dtype == bool:
        texts = ["true" if value else "false" for value in array.ravel().tolist()]
    elif "int" in array.dtype.name:
        texts = list(map(str, array.ravel().tolist()))
    else:
        texts = _float_texts(array.ravel())
    for axis in reversed(range(array.ndim - depth, array.ndim)):
        size, count = array.shape[axis], math.prod(array.shape[:axis])
        starts = range(0, count * size, size) if size else [0] * count
        texts = [f"[{', '.join(texts[start : start + size])}]" for start in starts]
    return texts


def _float_texts(values: NDArray[Any]) -> list[str]:
    """The shortest text that the same type reads as the same value, with a point or an exponent."""
    if not isinstance(values.dtype.type(0), np.floating):  # ml_dtypes have no such text
        with np.errstate(invalid="ignore"):  # signaling NaNs
            values = values.astype(np.float32)
    texts: list[str] = values.astype("U32").tolist()
    if np.isfinite(values).all():
        return texts
    return [_SPECIAL.get(text, text) for text in texts]


def _named(texts: Mapping[str, str]) -> str:
    if len(texts) == 1:
        return next(iter(texts.values()))
    return f"{{{', '.join(f'{json.dumps(name)}: {text}' for name, text in texts.items())}}}"
