"""How arguments and results become names."""

import pytest

from servax_registry.artifact import Argument, Result
from servax_registry.errors import InvalidProgram
from servax_registry.naming import name_inputs, name_outputs


def argument(root, *path, keyed=True):
    """Make an argument that lies there."""
    return Argument(root, path, keyed and bool(path), "float32", ("b",))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ()),
        ([argument("tokens")], ("tokens",)),
        ([argument("batch", "image"), argument("batch", "mask")], ("image", "mask")),
        ([argument("batch", "a", "b")], ("a.b",)),
        ([argument("xs", "0", keyed=False), argument("xs", "1", keyed=False)], ("xs.0", "xs.1")),
        ([argument("p", "layers", "0", "w", keyed=False)], ("p.layers.0.w",)),
        # One parameter's name is another's key.
        (
            [argument("x"), argument("batch", "x"), argument("batch", "y")],
            ("x", "batch.x", "batch.y"),
        ),
        # Two dicts share a key: all of their entries are told apart.
        (
            [argument("a", "x"), argument("a", "y"), argument("b", "x"), argument("c", "z")],
            ("a.x", "a.y", "b.x", "z"),
        ),
        # What was told apart collides with a third: it is told apart as well.
        (
            [argument("a", "x"), argument("b", "x"), argument("c", "a.x")],
            ("a.x", "b.x", "c.a.x"),
        ),
        ([argument("batch", "")], ("batch.",)),
    ],
)
def test_inputs_take_the_shortest_unambiguous_name(arguments, names):
    """An input has the parameter's name, or its key path, or both where that would be ambiguous."""
    assert name_inputs(arguments) == names


def test_inputs_that_cannot_be_told_apart_are_refused():
    """Keys with dots that give one name twice are an error that shows the name."""
    with pytest.raises(InvalidProgram, match=r"'p\.a\.b'"):
        name_inputs([argument("p", "a", "b"), argument("p", "a.b")])


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([()], ("output",)),
        ([("logits",), ("cache", "k")], ("logits", "cache.k")),
        ([("0",), ("1",)], ("output.0", "output.1")),
        ([("0", "a"), ("1",)], ("output.0.a", "output.1")),
        ([("a", "0")], ("a.0",)),
        ([("",)], ("output.",)),
        ([], ()),
    ],
)
def test_outputs_take_their_key_path(paths, names):
    """An output is "output", its key path, or "output" and its place in the sequence."""
    assert name_outputs([Result(path, "float32", ()) for path in paths]) == names


def test_outputs_that_cannot_be_told_apart_are_refused():
    """Keys with dots that give one name twice are an error."""
    with pytest.raises(InvalidProgram, match=r"2 results .*'a\.b'"):
        name_outputs([Result(("a", "b"), "float32", ()), Result(("a.b",), "float32", ())])
