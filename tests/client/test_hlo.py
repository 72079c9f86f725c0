"""The text of programs."""

import sys

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.interpreters import mlir

from servax.errors import FailedPrecondition, InvalidArgument
from servax.hlo import stablehlo_text


def program(function, *shape) -> bytes:
    """An export for a float32 array."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(map(str, shape))), jnp.float32)
    return bytes(export.export(jax.jit(function), platforms=("cpu", "cuda"))(spec).serialize())


def test_the_text_is_that_of_jax():
    """The text is the module as JAX itself prints it."""
    serialized = program(lambda x: jnp.linalg.cholesky(x) * 2, "b", 3, 3)

    text = stablehlo_text(serialized, limit=None)

    with mlir.make_ir_context():
        assert text == str(export.deserialize(serialized).mlir_module(serialized=False))
    assert "stablehlo.custom_call @lapack_spotrf_ffi" in text


def test_constants_are_elided():
    """Weights that were baked in do not blow the text up."""
    weights = jnp.arange(1 << 20, dtype=jnp.float32)

    text = stablehlo_text(program(lambda x: x + weights, 1 << 20), limit=None)

    assert "__elided__" in text
    assert len(text) < 4096


def test_the_text_is_bounded():
    """What exceeds the limit is cut off, and how much that is, is told."""
    serialized = program(jnp.sin, "b")
    whole = stablehlo_text(serialized, limit=None)

    assert stablehlo_text(serialized, limit=len(whole)) == whole
    assert stablehlo_text(serialized, limit=9) == (
        f"{whole[:9]}\n… {len(whole) - 9} more characters\n"
    )


@pytest.mark.parametrize("damage", [b"", b"no program", bytes(4096)])
def test_other_bytes_are_refused(damage):
    """Bytes that are no program are refused as such."""
    with pytest.raises(InvalidArgument, match="cannot read the program"):
        stablehlo_text(damage, limit=100)


def test_a_damaged_module_is_refused():
    """A program with a damaged module is refused."""
    serialized = program(jnp.sin, "b")
    start = serialized.index(b"ML\xefR")

    with pytest.raises(InvalidArgument, match="cannot read the program"):
        stablehlo_text(serialized[: start + 40] + bytes(len(serialized) - start - 40), limit=100)


def test_without_jax_the_remedy_is_told(monkeypatch):
    """Where JAX is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "jax.extend.mlir", None)

    with pytest.raises(FailedPrecondition, match=r"pip install 'servax\[export\]'"):
        stablehlo_text(b"", limit=100)
