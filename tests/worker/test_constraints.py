"""Constraints are read out of programs that only assert them."""

import pytest
from jax import export

from servax_worker.constraints import Constraint, read_constraints
from servax_worker.dimensions import DimensionError


def test_constraints_survive_serialization(exported, symbolic):
    """Every constraint of the scope is found in the serialized module and means the same."""
    constraints = ("b <= 64", "mod(b, 8) == 0", "t >= 2*b")
    program = exported(lambda x: x * 2, symbolic("b, t", constraints=constraints))
    blob = program.serialize()
    found = read_constraints(export.deserialize(blob).mlir_module_serialized)

    def allowed(b, t):
        return all(constraint.holds({"b": b, "t": t}) for constraint in found)

    assert {"b <= 64", "mod(b, 8) == 0", "t >= 2*b"} <= set(map(str, found))
    assert allowed(8, 16)
    assert not allowed(72, 144)
    assert not allowed(4, 16)
    assert not allowed(8, 15)


def test_without_constraints_there_are_none(exported, symbolic):
    """A program exported without constraints yields none."""
    blob = exported(lambda x: x * 2, symbolic("b, t")).serialize()

    assert read_constraints(export.deserialize(blob).mlir_module_serialized) == ()


@pytest.mark.parametrize("text", ["b", "b < 3", "b == ", "== 3", "b = 3"])
def test_what_is_no_comparison_is_refused(text):
    """Text that is no comparison gives an error instead of a constraint."""
    with pytest.raises(DimensionError):
        Constraint.parse(text)


def test_what_cannot_be_read_is_left_out():
    """An assertion in words that are no constraint is skipped, not an error."""
    module = b"symbolic shape constraint what ever. Expected ... constraint b <= 3. Expected"

    assert read_constraints(module) == ()
