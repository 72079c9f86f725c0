"""Requests are checked against the signature, and told what is wrong."""

import ml_dtypes
import numpy as np
import pytest

from servax.types import Blob, Signature, TensorSpec
from servax_worker.constraints import Constraint
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.signature import SignatureChecker, callers_view


def signature(*inputs, outputs=(("y", "float32", ("b",)),)):
    """A signature with the given (name, dtype, shape) arrays."""

    def specs(arrays):
        return tuple(
            TensorSpec(name, dtype, shape, index)
            for index, (name, dtype, shape) in enumerate(arrays)
        )

    blob = Blob("sha256:" + "0" * 64, 1)
    return Signature(
        "serving_default", blob, "f", specs(inputs), (), specs(outputs), ("cpu",), 1, 10, 3,
        "1.15.0", "",
    )  # fmt: skip


CHECKER = SignatureChecker(
    signature(("tokens", "int32", ("b", "256")), ("scale", "float32", ("b",)))
)
GOOD = {"tokens": np.zeros((2, 256), np.int32), "scale": np.zeros(2, np.float32)}


def test_sizes_are_found():
    """What fits gives the size of every symbol."""
    assert CHECKER.check(GOOD) == {"b": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens": np.zeros((1, 256), np.int64), "scale": np.zeros(1, np.float32)},
            r"input 'tokens': got int64\[1,256\], the signature takes int32\[b,256\]; cast it",
        ),
        ({"tokens": np.zeros((2, 256), ">i4")}, "swap its bytes"),
        ({"tokens": np.zeros(256, np.int32)}, "it has 1 dimensions instead of 2"),
        ({"tokens": np.zeros((2, 255), np.int32)}, "dimension 1 is 255 instead of 256"),
        (
            {"scale": np.zeros(3, np.float32)},
            r"dimension 0 of input 'scale' is 3 where 'b' is 2 "
            r"\(b is 2 by dimension 0 of input 'tokens'\)",
        ),
        (
            {"tokens": np.zeros((0, 256), np.int32), "scale": np.zeros(0, np.float32)},
            "is 0, which no size b >= 1",
        ),
        (
            {"token": np.zeros(1)},
            r"no input is called 'token'; the signature 'serving_default' takes "
            r"tokens: int32\[b,256\], scale: float32\[b\]",
        ),
        ({"scale": np.array(["a", "b"])}, "cast it"),
        ({"scale": np.zeros(2, ml_dtypes.bfloat16)}, r"got bfloat16\[2\]"),
    ],
)
def test_misfits_are_told(changes, message):
    """A misfit names the input, what came and what is taken."""
    with pytest.raises(InvalidInput, match=message):
        CHECKER.check(GOOD | changes)


def test_missing_inputs_are_told():
    """A missing input is named together with what the signature takes."""
    with pytest.raises(InvalidInput, match="missing input 'scale'; the signature"):
        CHECKER.check({"tokens": GOOD["tokens"]})


def test_all_problems_come_at_once():
    """One error lists the problems of every input."""
    with pytest.raises(InvalidInput) as caught:
        CHECKER.check({"tokens": np.zeros((2, 255)), "scale": np.zeros((), np.float32)})

    assert "cast it; dimension 1 is 255" in str(caught.value)
    assert "input 'scale'" in str(caught.value)


def test_constraints_are_checked():
    """A size that breaks a constraint of the export is refused with the constraint."""
    checker = SignatureChecker(
        signature(("x", "float32", ("b",))), [Constraint.parse("mod(b, 8) == 0")]
    )

    assert checker.check({"x": np.zeros(16, np.float32)}) == {"b": 16}
    with pytest.raises(InvalidInput, match=r"b=12 does not meet 'mod\(b, 8\) == 0'"):
        checker.check({"x": np.zeros(12, np.float32)})


def test_keys_are_shown_as_their_data():
    """Callers meet typed random keys as uint32 with the width of the implementation."""
    shown = callers_view(signature(("k", "key<fry>", ("n",)), ("r", "key<rbg>", ())))

    assert [str(spec) for spec in shown.inputs] == ["k: uint32[n,2]", "r: uint32[4]"]


def test_outputs_are_selected():
    """No names mean all outputs; an unknown one is told with those that there are."""
    assert CHECKER.select(()) == ("y",)
    assert CHECKER.select(["y"]) == ("y",)
    with pytest.raises(InvalidInput, match="no output is called 'z'; the signature gives 'y'"):
        CHECKER.select(["z"])


def test_examples_fit():
    """The example inputs pass the check they are an example for, with integers that may index."""
    example = CHECKER.example({"b": 3})

    assert CHECKER.check(example) == {"b": 3}
    assert not example["tokens"].any()


def test_outputs_that_differ_are_told():
    """An output that is not what the signature says is an error that shows both."""
    with pytest.raises(CannotServe, match=r"came as float32\[3\], the signature says float32\[b\]"):
        CHECKER.check_outputs({"y": np.zeros(3, np.float32)}, {"b": 2})


@pytest.mark.parametrize(("dtype", "shape"), [("text", ("b",)), ("int32", ("b +",))])
def test_unknown_notation_cannot_be_served(dtype, shape):
    """A signature that this worker cannot read is refused when it is loaded, not when called."""
    with pytest.raises(CannotServe, match="'x' in the artifact's signature"):
        SignatureChecker(signature(("x", dtype, shape)))


def test_names_are_unambiguous():
    """A signature that names two arrays alike is refused, whichever way they go."""
    twice = (("x", "float32", ("b",)), ("x", "float32", ("b",)))
    with pytest.raises(CannotServe, match=r"names an array twice: \['x', 'x'\]"):
        SignatureChecker(signature(*twice))
    with pytest.raises(CannotServe, match="names an array twice"):
        SignatureChecker(signature(outputs=twice))


def test_long_lists_of_names_are_cut():
    """A request with very many unknown inputs is told some of them and how many more."""
    with pytest.raises(InvalidInput, match=r"'0', '1', '10', .* and 80 more; missing input"):
        CHECKER.check({str(index): np.zeros(1) for index in range(100)})


def test_the_size_of_an_answer_is_known_beforehand():
    """What the outputs take is computed from dtypes and sizes."""
    checker = SignatureChecker(
        signature(
            ("x", "float32", ("b",)),
            outputs=(("y", "float32", ("2*b", "3")), ("z", "int8", ()), ("k", "key<fry>", ("b",))),
        )
    )

    assert checker.output_bytes(["y", "z", "k"], {"b": 5}) == 10 * 3 * 4 + 1 + 5 * 2 * 4
    assert checker.output_bytes(["z"], {"b": 5}) == 1
