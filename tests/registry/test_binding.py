"""Which arguments are weights, and what is said when they do not fit."""

import pytest

from servax_registry.artifact import Argument, Blob, Program, Result, StoredTensor, WeightsShard
from servax_registry.binding import bind
from servax_registry.errors import InvalidWeights, Mismatch


def argument(root, *path, shape=("3",), dtype="float32"):
    """Make an argument inside a dict, or one that is the parameter itself."""
    return Argument(root, path, bool(path), dtype, shape)


def program(*arguments):
    """Make a program with these arguments."""
    result = Result((), "float32", ("b",))
    return Program("f", arguments, (result,), ("cpu",), 1, 10, 3, "1.0.0", "", (), (), ())


def shard(*names, shape=(3,), dtype="float32"):
    """Make a shard that holds tensors of these names."""
    tensors = tuple(StoredTensor(name, dtype, shape, 12 * i, 12) for i, name in enumerate(names))
    return WeightsShard(Blob("sha256:" + "0" * 64, 1000), tensors)


def bound(programs, *shards):
    """Give the names of inputs and weights of every signature."""
    named = [(f"s{i}", Blob("sha256:" + "1" * 64, 9), item) for i, item in enumerate(programs)]
    return [
        ([spec.name for spec in signature.inputs], [spec.name for spec in signature.weights])
        for signature in bind(named, shards)
    ]


X = argument("x", shape=("b",))


def test_the_parameter_whose_leaves_are_stored_takes_the_weights():
    """Every leaf of that parameter is a weight with its position; the rest are inputs."""
    item = program(argument("params", "a", "w"), argument("params", "b"), X)

    (signature,) = bind([("s", Blob("sha256:" + "1" * 64, 9), item)], [shard("b"), shard("a.w")])

    assert [(spec.name, spec.position) for spec in signature.weights] == [("a.w", 0), ("b", 1)]
    assert [(spec.name, spec.shape, spec.position) for spec in signature.inputs] == [
        ("x", ("b",), 2)
    ]


def test_several_parameters_can_take_weights():
    """Parameters with different keys, such as params and batch_stats, are all bound."""
    item = program(argument("params", "w"), argument("stats", "mean"), X)

    assert bound([item], shard("w", "mean")) == [(["x"], ["w", "mean"])]


def test_signatures_share_weights():
    """Each signature takes what it names; one may take none as long as another does."""
    programs = [program(argument("p", "w"), X), program(argument("q", "v"), X), program(X)]

    assert bound(programs, shard("w", "v")) == [(["x"], ["w"]), (["x"], ["v"]), (["x"], [])]


def test_inputs_may_share_keys_with_weights():
    """Where two parameters have the same keys, the one of the right shapes takes the weights."""
    item = program(argument("batch", "w", shape=("b",)), argument("params", "w"))

    assert bound([item], shard("w")) == [(["w"], ["w"])]


@pytest.mark.parametrize(
    ("item", "shards", "pattern"),
    [
        (
            program(argument("p", "w", shape=("4",)), X),
            [shard("w")],
            r"'w' is float32\[3\], the program takes float32\[4\]",
        ),
        (
            program(argument("p", "w", dtype="bfloat16"), X),
            [shard("w")],
            r"'w' is float32\[3\], the program takes bfloat16\[3\]",
        ),
        (program(argument("p", "w", shape=("b",)), X), [shard("w")], r"takes float32\[b\]"),
        (
            program(argument("p", "w"), argument("p", "v"), X),
            [shard("w")],
            "of the 2 arrays in its parameter 'p', 1 are not among the stored tensors: v",
        ),
        (
            program(argument("p", "w"), X),
            [shard("w", "u")],
            "1 of the 2 stored tensors are used by no signature: u",
        ),
        (program(X), [shard("w")], "no parameter of s0 takes any of them; its parameters are x"),
        (program(), [shard("w")], "it has no parameters"),
        (
            program(argument("p", "w"), argument("q", "w")),
            [shard("w")],
            "parameters p, q would take the same weights, w",
        ),
        (
            program(*[argument("p", str(i), shape=("4",)) for i in range(9)]),
            [shard(*map(str, range(9)))],
            "9 of its weights differ .*; and 4 more",
        ),
    ],
)
def test_what_does_not_fit_is_explained(item, shards, pattern):
    """A mismatch names the tensors, both shapes where they differ, and how many there are."""
    with pytest.raises(Mismatch, match=pattern):
        bound([item], *shards)


def test_a_name_is_stored_once():
    """Two shards with one name are an error that shows it."""
    with pytest.raises(InvalidWeights, match="'w'"):
        bound([program(argument("p", "w"))], shard("w"), shard("w"))


def test_an_array_of_its_own_is_never_a_weight():
    """Weights are matched by key path, which a parameter that is an array does not have."""
    with pytest.raises(Mismatch, match="no parameter"):
        bound([program(argument("w"))], shard("w"))
