"""Checks what a publisher declares of a signature against what was read out of its program.

Whether rows really do not influence each other, and whether the golden outputs are right, only
running the program can tell: workers do.
"""

import re
from collections.abc import Sequence

from servax_registry.artifact import Batching, Signature, StoredTensor, TensorSpec
from servax_registry.errors import Mismatch, listed

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_batching(signature: Signature, batching: Batching) -> None:
    """Raise Mismatch unless dimension 0, and no other, of every input and output counts rows."""
    name, symbol = signature.name, batching.symbol
    specs = (*signature.inputs, *signature.outputs)
    if not signature.inputs or not signature.outputs:
        raise Mismatch(
            f"signature {name!r} has no inputs, or no outputs: there are no rows to join"
        )
    if symbol and not _SYMBOL.fullmatch(symbol):
        raise Mismatch(f"{symbol[:40]!r} is no symbolic dimension; name one, such as 'b'")
    counts = {spec.shape[0] if spec.shape else "" for spec in specs}
    if symbol:
        wrong = [spec for spec in specs if not spec.shape or spec.shape[0] != symbol]
        rule = f"dimension 0 of every input and output must be {symbol}"
    else:
        wrong = [] if len(counts) == 1 and counts.pop().isdecimal() else list(specs)
        rule = "dimension 0 of every input and output must be the same number"
    if wrong:
        raise Mismatch(
            f"signature {name!r} cannot be batched: {rule}, but there are "
            f"{listed([_text(spec) for spec in wrong])}"
        )
    mixing = [
        spec
        for spec in specs
        if symbol and any(symbol in _SYMBOL.findall(size) for size in spec.shape[1:])
    ]
    if mixing:
        raise Mismatch(
            f"signature {name!r} cannot be batched: {symbol} is a further dimension of "
            f"{listed([_text(spec) for spec in mixing])}, so rows depend on how many there are"
        )


def check_golden(signature: Signature, tensors: Sequence[StoredTensor]) -> None:
    """Raise Mismatch unless the arrays are those of one call: "inputs/NAME", "outputs/NAME"."""
    wanted = {f"inputs/{spec.name}": spec for spec in signature.inputs}
    wanted |= {f"outputs/{spec.name}": spec for spec in signature.outputs}
    stored = {tensor.name: tensor for tensor in tensors}
    where = f"golden example of signature {signature.name!r}"
    if missing := [name for name in wanted if name not in stored]:
        raise Mismatch(f"{where}: {listed(missing)} missing; store every input and output")
    if unknown := [name for name in stored if name not in wanted]:
        raise Mismatch(
            f"{where}: {listed(unknown)} belong to no input or output; there are "
            f"{listed(list(wanted))}"
        )
    sizes: dict[str, int] = {}
    for name, spec in wanted.items():
        if not _fits(stored[name], spec, sizes):
            known = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            raise Mismatch(
                f"{where}: {name!r} is {stored[name].dtype}[{_shape(stored[name].shape)}], the "
                f"signature has {_text(spec)}" + (f" with {known}" if known else "")
            )


def _fits(tensor: StoredTensor, spec: TensorSpec, sizes: dict[str, int]) -> bool:
    """Tell whether an array may be what `spec` describes; lone symbols keep their `sizes`."""
    dtype, shape = tensor.dtype, tensor.shape
    if spec.dtype.startswith("key<"):  # callers meet a typed key as its data
        return dtype == "uint32" and len(shape) == len(spec.shape) + 1
    if dtype != spec.dtype or len(shape) != len(spec.shape):
        return False
    for size, expected in zip(shape, spec.shape, strict=True):
        if expected.isdecimal() and size != int(expected):
            return False
        if _SYMBOL.fullmatch(expected) and sizes.setdefault(expected, size) != size:
            return False
    return True


def _text(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype}[{','.join(spec.shape)}]"


def _shape(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
