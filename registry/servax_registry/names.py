"""What a legal name is, and how arguments and results become names of inputs and outputs."""

import re
from collections import Counter
from collections.abc import Sequence

from servax_registry.artifact import Argument, Result
from servax_registry.errors import InvalidName, InvalidProgram

_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_model(name: str) -> None:
    """Raise InvalidName unless `name` can be a model's."""
    _check(
        _MODEL, "model name", name, "a-z, 0-9, '.', '_' and '-', of which the first is a-z or 0-9"
    )


def check_alias(name: str) -> None:
    """Raise InvalidName unless `name` can be an alias."""
    _check(_ALIAS, "alias", name, "a-z, 0-9, '.', '_' and '-', of which the first is a-z")


def check_signature(name: str) -> None:
    """Raise InvalidName unless `name` can be a signature's."""
    _check(
        _SIGNATURE,
        "signature name",
        name,
        "A-Z, a-z, 0-9, '.', '_' and '-', of which the first is neither '.' nor '-'",
    )


def check_digest(digest: str) -> None:
    """Raise InvalidName unless `digest` has the form of a blob's digest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidName(
            f"{digest[:80]!a} is no digest; it must be 'sha256:' and 64 lower-case hexadecimal "
            "digits"
        )


def _check(pattern: re.Pattern[str], kind: str, name: str, letters: str) -> None:
    if not pattern.fullmatch(name):
        shown = f"{name[:40]!a}… ({len(name)} characters)" if len(name) > 128 else f"{name!a}"
        raise InvalidName(f"{kind} {shown} is not legal; it must be 1 to 128 characters: {letters}")


def name_inputs(arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Name every argument that callers supply.

    An array that is a parameter itself takes the parameter's name. One inside a dict takes its
    key path joined with dots, preceded by the parameter's name only where two parameters would
    otherwise give the same name, and then for all of their entries. One inside a sequence takes
    the parameter's name and its path ("xs.0"). Raises InvalidProgram if two names remain equal.
    """
    full: set[str] = set()
    while True:
        names = [_input_name(argument, full) for argument in arguments]
        taken = Counter(names)
        ambiguous = {
            argument.root
            for argument, name in zip(arguments, names, strict=True)
            if argument.keyed and argument.path and (taken[name] > 1 or not name)
        }
        if ambiguous <= full:
            return _unique(names, "arguments")
        full |= ambiguous


def _input_name(argument: Argument, full: set[str]) -> str:
    if argument.keyed and argument.path and argument.root not in full:
        return ".".join(argument.path)
    return ".".join((argument.root, *argument.path))


def name_outputs(results: Sequence[Result]) -> tuple[str, ...]:
    """Name every result.

    A single array is "output". One inside a dict takes its key path joined with dots; one inside
    a sequence "output" and its path ("output.0"). Raises InvalidProgram if two names are equal.
    """
    return _unique([_output_name(result.path) for result in results], "results")


def _output_name(path: tuple[str, ...]) -> str:
    # A sequence's path begins with an index; so may a dict's, whose names are then as good.
    if not path or not path[0] or path[0].isdecimal():
        return ".".join(("output", *path))
    return ".".join(path)


def _unique(names: list[str], what: str) -> tuple[str, ...]:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise InvalidProgram(
            f"{count} {what} would all be called {name[:80]!r}; rename a parameter or a dict key "
            "(one that contains a dot, for instance) and export again"
        )
    return tuple(names)
