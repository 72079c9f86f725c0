"""How arguments and results become names of inputs and outputs."""

from collections import Counter
from collections.abc import Sequence

from servax_registry.artifact import Argument, Result
from servax_registry.errors import InvalidProgram


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
