"""Checks that a program can stand in for that of a signature, for other releases of JAX.

Whether it computes the same, only running it can tell: workers do, with the golden example.
"""

import re
from collections.abc import Sequence

from servax_registry.artifact import Argument, Program, Result, Signature
from servax_registry.errors import Mismatch, listed

_TOKEN = re.compile(r"\w+|\S")


def check_encoding(signature: Signature, program: Program) -> None:
    """Raise Mismatch unless a program takes and gives what that of the signature does.

    Flat arguments and results count, in their order, not what they are called. Symbolic dimensions
    have to have the same names; releases of JAX may order the terms of an expression differently.
    """
    original = signature.inspected
    differences = [
        f"{what} {listed(list(map(str, given)))} instead of {listed(list(map(str, wanted)))}"
        for what, given, wanted in (
            ("platforms", program.platforms, original.platforms),
            ("devices", [program.device_count], [original.device_count]),
        )
        if list(given) != list(wanted)
    ]
    differences += _differences("argument", program.arguments, original.arguments)
    differences += _differences("result", program.results, original.results)
    if differences:
        raise Mismatch(
            f"it is no encoding of signature {signature.name!r}, it has "
            f"{listed(differences, '; ')}; publish it as a version of its own"
        )


def _differences(
    kind: str, given: Sequence[Argument | Result], wanted: Sequence[Argument | Result]
) -> list[str]:
    if len(given) != len(wanted):
        return [f"{len(given)} {kind}s instead of {len(wanted)}"]
    return [
        f"{kind} {position} {_text(one)} instead of {_text(other)}"
        for position, (one, other) in enumerate(zip(given, wanted, strict=True))
        if one.dtype != other.dtype or _ordered(one.shape) != _ordered(other.shape)
    ]


def _ordered(shape: Sequence[str]) -> list[list[str]]:
    return [sorted(_TOKEN.findall(size)) for size in shape]


def _text(spec: Argument | Result) -> str:
    return f"{spec.dtype}[{','.join(spec.shape)}]"
