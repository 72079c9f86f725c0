"""Argument locations against those that MLIR itself reads; damage loses no more than them."""

import random

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax._src import core, effects
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from servax_registry.errors import InvalidProgram
from servax_registry.inspection.bytecode import Module, read_module
from servax_registry.inspection.cursor import Cursor, UnreadableError

VECTOR = jax.ShapeDtypeStruct((3,), jnp.float32)


class Sequenced(effects.Effect):
    """An ordered effect, for which every call takes and gives a token."""

    def __eq__(self, other):
        return type(self) is type(other)

    def __hash__(self):
        return hash(type(self))


effects.lowerable_effects.add_type(Sequenced)
effects.ordered_effects.add_type(Sequenced)

sequenced = core.Primitive("sequenced")
sequenced.def_effectful_abstract_eval(lambda aval: (aval, {Sequenced()}))


def lower_sequenced(context, operand):
    """Passes the token on."""
    token = context.tokens_in.get(Sequenced())
    context.set_tokens_out(mlir.TokenSet({Sequenced(): token}))
    return [operand]


mlir.register_lowering(sequenced, lower_sequenced)


def add(params, unused, tokens, *more, scale):
    """A function with every kind of parameter."""
    return {"sum": params["w"] + params["b"] + tokens * scale + sum(more)}


def make(function=add, *, size=3, platforms=("cpu",)) -> export.Exported:
    """Exports `function` for vectors."""
    if size == "b":
        (size,) = export.symbolic_shape("b")
    vector = jax.ShapeDtypeStruct((size,), jnp.float32)
    return export.export(jax.jit(function), platforms=platforms)(
        {"w": vector, "b": vector}, vector, vector, vector, vector, scale=vector
    )


def sequenced_add(params, unused, tokens, *more, scale):
    """`add` with an ordered effect."""
    return sequenced.bind(add(params, unused, tokens, *more, scale=scale)["sum"])


def locations_by_mlir(exported: export.Exported) -> list[str]:
    """The names in the locations of the arguments that are no global constants and no tokens."""
    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        functions = {
            ir.StringAttr(operation.attributes["sym_name"]).value: operation
            for operation in module.body.operations
            if "sym_name" in operation.attributes
        }
        function = functions.get("_wrapped_jax_export_main", functions["main"])
        return [
            str(argument.location).split('"')[1]
            for argument, attributes in zip(function.arguments, function.arg_attrs, strict=True)
            if "jax.global_constant" not in attributes and "jax.token" not in attributes
        ]


EXPORTS = {
    "static": make,
    "symbolic": lambda: make(size="b"),
    "platforms": lambda: make(platforms=("cpu", "cuda")),
    "symbolic platforms": lambda: make(size="b", platforms=("cpu", "cuda", "tpu")),
    "ordered effect": lambda: make(sequenced_add),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_locations_are_those_that_mlir_reads(name):
    """The locations of the kept arguments equal those that MLIR's own reader finds."""
    made = EXPORTS[name]()
    module = made.mlir_module_serialized

    read = read_module(module, 0, len(module), len(made.module_kept_var_idx))

    assert locations_by_mlir(made) == list(read.argument_locations)
    assert "params['w']" in read.argument_locations


def test_a_baked_constant_is_skipped():
    """Names are found behind a constant of 16 MB."""
    constant = jnp.arange(4 << 20, dtype=jnp.float32)
    made = export.export(jax.jit(lambda tokens: tokens + constant))(
        jax.ShapeDtypeStruct(constant.shape, constant.dtype)
    )
    module = made.mlir_module_serialized

    assert len(module) > 16 << 20
    assert read_module(module, 0, len(module), 1).argument_locations == ("tokens",)


def test_the_module_may_lie_anywhere():
    """A module is read in place, whatever stands before and after it."""
    module = make().mlir_module_serialized
    surrounded = b"\xff" * 7 + module + b"\xff" * 9

    assert read_module(module, 0, len(module), 5) == read_module(surrounded, 7, len(module), 5)


def test_more_kept_arguments_than_the_function_has_give_no_names():
    """A count that the module contradicts costs the names."""
    module = make().mlir_module_serialized

    assert read_module(module, 0, len(module), 99).argument_locations == ()


def test_another_bytecode_version_gives_no_names():
    """Bytecode of a version that is not known is not guessed at."""
    module = bytearray(make().mlir_module_serialized)
    module[4] = 7 << 1 | 1

    read = read_module(bytes(module), 0, len(module), 5)

    assert read.argument_locations == ()
    assert read.stablehlo_version


def test_a_section_that_occurs_twice_costs_the_names():
    """A module that leaves open which of two sections counts gives no names."""
    module = make().mlir_module_serialized

    assert read_module(module + b"\x05\x01", 0, len(module) + 2, 5).argument_locations == ()


def test_prefixes_lose_at_most_the_names():
    """A module that is cut off anywhere behind its header is accepted without names."""
    module = make().mlir_module_serialized
    header = module.index(b"\0") + 1
    for size in range(header):
        with pytest.raises(InvalidProgram, match="MLIR module"):
            read_module(module[:size], 0, size, 5)
    for size in range(header, len(module)):
        assert read_module(module[:size], 0, size, 5).argument_locations == ()


def test_single_mutations_are_read_or_refused():
    """Of 2,000 modules with one damaged spot, each gives a module or InvalidProgram."""
    pristine = make(size="b").mlir_module_serialized
    randomness = random.Random(0)
    for _ in range(2000):
        mutated = bytearray(pristine)
        position = randomness.randrange(len(mutated))
        mutated[position] = randomness.choice((0, 1, 0x80, 0xFF, randomness.randrange(256)))
        try:
            read = read_module(bytes(mutated), 0, len(mutated), 5)
        except InvalidProgram:
            continue

        assert isinstance(read, Module)
        assert len(read.argument_locations) in (0, 5)


def encode(value: int) -> bytes:
    """A varint, as the format's document describes it."""
    for further in range(8):
        if value < 1 << 7 * (further + 1):
            return (((value << 1) | 1) << further).to_bytes(further + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


@given(st.integers(0, (1 << 64) - 1))
def test_varints_are_read_as_documented(value):
    """A varint of any length gives its value, and the cursor stands behind it."""
    encoded = encode(value)
    cursor = Cursor(encoded, 0, len(encoded))

    assert value == cursor.number()
    assert cursor.at_end()


@pytest.mark.parametrize("value", [0, 127, 128, 1 << 20, (1 << 64) - 1])
def test_varints_that_break_off_are_unreadable(value):
    """A cursor does not read past its end, whatever follows there."""
    encoded = encode(value)
    for size in range(len(encoded)):
        with pytest.raises(UnreadableError):
            Cursor(encoded + b"\xff" * 9, 0, size).number()


def test_aligned_sections_are_found_behind_their_padding():
    """The content of an aligned section begins at a multiple from where the module begins."""
    data = b"??" + b"\x84" + encode(3) + encode(16) + b"\xcb" * 13 + b"abc"
    identifier, content = Cursor(data, 2, len(data)).section()

    assert (identifier, content.take(3)) == (4, b"abc")
    assert content.at_end()
