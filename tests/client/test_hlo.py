"""The text of programs."""

import sys

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.interpreters import mlir

from servax.errors import FailedPrecondition, InvalidArgument
from servax.hlo import retarget, stablehlo_text


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

    for call in (lambda: stablehlo_text(b"", limit=100), lambda: retarget(b"", "1.10.0")):
        with pytest.raises(FailedPrecondition, match=r"pip install 'servax\[export\]'"):
            call()


def test_a_program_is_written_for_older_releases():
    """What was retargeted is in the version of StableHLO that was asked for, and computes the same,
    for any size.
    """
    serialized = program(lambda x: jax.nn.softmax(jnp.tanh(x) @ jnp.ones((3, 3))), "b", 3)

    written = retarget(serialized, "1.10.0")

    assert b"StableHLO_v1.10.0" in written
    x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    found, wanted = (export.deserialize(bytearray(it)).call(x) for it in (written, serialized))
    assert (found == wanted).all()


@pytest.mark.parametrize("target", ["0.1.0", "99.0.0", "newest", ""])
def test_what_cannot_be_written_is_refused(target):
    """A version of StableHLO that JAX does not write is refused with those that it does."""
    with pytest.raises(
        InvalidArgument, match=rf"StableHLO '{target}': .* it writes 0\.9\.0 to 1\."
    ):
        retarget(program(jnp.sin, "b"), target)


def test_what_is_no_program_is_not_retargeted():
    """Bytes that are no program are refused as such."""
    with pytest.raises(InvalidArgument, match="cannot read the program"):
        retarget(b"no program", "1.10.0")
