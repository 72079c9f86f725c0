"""Which programs are refused because they cannot run elsewhere."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.export import _export

from servax_registry.errors import InvalidProgram
from servax_registry.inspection import GUARANTEED_STABLE, refuse_unportable
from servax_registry.inspection.exported import read_program


@pytest.fixture(scope="module")
def program():
    """A program with custom calls that every JAX has."""
    shape = export.symbolic_shape("b, 4, 4")
    made = export.export(jax.jit(jnp.linalg.cholesky))(jax.ShapeDtypeStruct(shape, jnp.float32))
    return read_program(bytes(made.serialize()))


def test_the_allowed_targets_are_those_of_jax():
    """What JAX exports without a disabled check is allowed, and nothing else is."""
    assert _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE == GUARANTEED_STABLE


def test_stable_custom_calls_are_portable(program):
    """A program with custom calls that JAX keeps stable is taken."""
    assert set(program.custom_calls) == {"lapack_spotrf_ffi", "shape_assertion"}
    refuse_unportable(program)


def test_other_custom_calls_are_refused(program):
    """Custom calls that JAX does not promise to keep are refused by name, with the remedy."""
    foreign = dataclasses.replace(program, custom_calls=("mine", "shape_assertion", "yours"))

    with pytest.raises(InvalidProgram, match=r"custom calls .*\(mine, yours\); .*operator allow"):
        refuse_unportable(foreign)
    with pytest.raises(InvalidProgram, match=r"\(yours\)"):
        refuse_unportable(foreign, allowed={"mine"})
    refuse_unportable(foreign, allowed={"mine", "yours"})


@pytest.mark.parametrize(
    "target",
    [
        *("xla_python_cpu_callback", "xla_python_gpu_callback", "xla_ffi_python_cpu_callback"),
        *("xla_ffi_python_gpu_callback", "xla_ffi_partitioned_python_cpu_callback"),
    ],
)
def test_callbacks_are_refused_with_the_reason(program, target):
    """A call back into Python is refused as such, because no worker has that process."""
    callback = dataclasses.replace(program, custom_calls=("other", target))

    with pytest.raises(InvalidProgram, match=rf"calls back into the Python process.*\({target}\)"):
        refuse_unportable(callback)


@pytest.mark.parametrize("effects", [("OrderedDebugEffect",), ("infeed", "outfeed")])
def test_effects_are_refused(program, effects):
    """A program with effects is refused, and they are named."""
    with pytest.raises(InvalidProgram, match=rf"side effects.*{', '.join(effects)}"):
        refuse_unportable(dataclasses.replace(program, effects=effects))


def test_disabled_checks_are_left_to_the_workers(program):
    """A disabled safety check is no reason against storing a program."""
    refuse_unportable(dataclasses.replace(program, disabled_checks=("platform",)))
