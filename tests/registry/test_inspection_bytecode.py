"""Argument locations and custom calls against those that MLIR itself reads; nothing is hidden."""

import random

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax._src import core, effects
from jax._src.interpreters import mlir
from jax.experimental import pallas as pl
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from servax_registry.errors import InvalidProgram
from servax_registry.inspection import GUARANTEED_STABLE, operations
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


@pytest.mark.parametrize(
    ("version", "message"),
    [(7, r"a newer StableHLO .* upgrade the registry"), (4, r"an older StableHLO .* a newer JAX")],
)
def test_another_bytecode_version_is_refused_as_such(version, message):
    """Bytecode of a version that is not known is not guessed at, and the remedy is told."""
    module = bytearray(make().mlir_module_serialized)
    module[4] = version << 1 | 1

    with pytest.raises(InvalidProgram, match=message):
        read_module(bytes(module), 0, len(module), 5)


def test_a_section_that_occurs_twice_is_refused():
    """A module that leaves open which of two sections counts cannot be told."""
    module = make().mlir_module_serialized

    with pytest.raises(InvalidProgram, match="section 2 occurs twice"):
        read_module(module + b"\x02\x01", 0, len(module) + 2, 5)


def test_every_prefix_is_refused():
    """A module that is cut off anywhere is refused."""
    module = make().mlir_module_serialized
    for size in range(len(module)):
        with pytest.raises(InvalidProgram, match="MLIR module"):
            read_module(module[:size], 0, size, 5)


def targets_by_mlir(exported: export.Exported) -> tuple[str, ...]:
    """The targets of all custom calls, sorted, as MLIR's own reader finds them."""
    targets = set()

    def visit(operation):
        if operation.operation.name == "stablehlo.custom_call":
            targets.add(ir.StringAttr(operation.attributes["call_target_name"]).value)
        for region in operation.operation.regions:
            for block in region:
                for inner in block:
                    visit(inner)

    with mlir.make_ir_context():
        visit(exported.mlir_module(serialized=False).operation)
    return tuple(sorted(targets))


def spec(*sizes, dtype=jnp.float32, constraints=()):
    """An abstract array; a string is a symbolic dimension."""
    text = ", ".join(map(str, sizes))
    return jax.ShapeDtypeStruct(export.symbolic_shape(text, constraints=constraints), dtype)


GPU = ("cpu", "cuda", "rocm")
ALL = (*GPU, "tpu")
MATRIX, ROWS = spec(4, 4), spec("b", 16)
KEY = jax.eval_shape(lambda: jax.random.key(0))
RBG_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))


def increment(reference, result):
    """A kernel."""
    result[...] = reference[...] + 1


CALLS = {
    "none": (lambda x: x + 1, (MATRIX,), ALL),
    "cholesky": (jnp.linalg.cholesky, (spec("b", 4, 4),), ("cpu", "cuda")),
    "svd": (lambda x: tuple(jnp.linalg.svd(x)), (MATRIX,), ALL),
    "eigh": (lambda x: tuple(jnp.linalg.eigh(x)), (MATRIX,), ALL),
    "eig": (lambda x: tuple(jnp.linalg.eig(x)), (MATRIX,), ("cpu",)),
    "qr": (lambda x: tuple(jnp.linalg.qr(x)), (spec("b", 4, 4),), ALL),
    "lu": (jax.scipy.linalg.lu, (MATRIX,), ALL),
    "schur": (jax.scipy.linalg.schur, (MATRIX,), ("cpu",)),
    "solve": (jnp.linalg.solve, (MATRIX, MATRIX), ALL),
    "top k": (lambda x: jax.lax.top_k(x, 3), (ROWS,), ALL),
    "approximate top k": (lambda x: jax.lax.approx_max_k(x, 3), (ROWS,), ("tpu",)),
    "fft": (jnp.fft.rfft, (ROWS,), ALL),
    "sort": (jnp.sort, (ROWS,), ALL),
    "threefry": (lambda key: jax.random.normal(key, (8,)), (KEY,), ALL),
    "rbg": (lambda key, x: jax.random.normal(key, x.shape), (RBG_KEY, ROWS), GPU),
    "attention": (
        lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True),
        (spec("b", "t", 2, 8),),
        ALL,
    ),
    "constraint": (lambda x: x * 2, (spec("b", "t", constraints=("t >= 8", "b <= 64")),), ALL),
    "dynamic window": (
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 4), (1, 1), "SAME"),
        (ROWS,),
        ALL,
    ),
    "kernel": (
        lambda x: pl.pallas_call(increment, jax.ShapeDtypeStruct((8, 128), jnp.float32))(x),
        (spec(8, 128),),
        ("tpu",),
    ),
    "loop": (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.linalg.cholesky(y), x),
        (MATRIX,),
        GPU,
    ),
    "branches": (
        lambda p, x: jax.lax.cond(p, lambda y: jnp.linalg.qr(y)[0], jnp.linalg.cholesky, x),
        (spec(dtype=jnp.bool_), MATRIX),
        ALL,
    ),
    "composite": (
        lambda x: jax.lax.composite(jnp.linalg.cholesky, "tests.cholesky")(x),
        (MATRIX,),
        ("cpu",),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_custom_calls_are_those_that_mlir_reads(name):
    """The targets equal those that a walk through MLIR's own module finds; JAX permits them all."""
    function, arguments, platforms = CALLS[name]
    made = export.export(jax.jit(function), platforms=platforms)(*arguments)
    module = made.mlir_module_serialized

    read = read_module(module, 0, len(module), len(made.module_kept_var_idx))

    assert targets_by_mlir(made) == read.custom_calls
    assert set(read.custom_calls) <= GUARANTEED_STABLE
    assert read.host_operations == ()


def foreign(target: str = "tests_target", **attributes: str) -> bytes:
    """A module that calls a target of nobody's, which has further attributes."""

    def lower(context, operand):
        call = mlir.custom_call(target, operands=[operand], result_types=[operand.type])
        for name, value in attributes.items():
            call.operation.attributes[name] = ir.StringAttr.get(value)
        return call.results

    primitive = core.Primitive("foreign")
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(primitive, lower)
    checks = [export.DisabledSafetyCheck.custom_call(target)]
    made = export.export(jax.jit(primitive.bind), disabled_checks=checks)(VECTOR)
    return bytes(made.mlir_module_serialized)


def test_calls_with_attributes_are_read():
    """A custom call has the target that its properties say, whatever attributes it has."""
    module = foreign(note="tests_other")

    assert read_module(module, 0, len(module), 1).custom_calls == ("tests_target",)


def test_a_second_target_among_the_attributes_is_refused():
    """A custom call cannot have a target for the reader and another for the compiler."""
    module = foreign(call_target_nam_="tests_other").replace(b"target_nam_", b"target_name")

    with pytest.raises(InvalidProgram, match="a custom call has two targets"):
        read_module(module, 0, len(module), 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\0custom_call_v", b"\0custom_call_w", "an unknown kind of custom call"),
        (b"\0vhlo\0", b"\0mhlo\0", "of an unknown dialect"),
    ],
)
def test_operations_that_may_hide_a_call_are_refused(old, new, message):
    """Custom calls of a later kind, or in another dialect, are refused instead of overlooked."""
    module = foreign()
    assert old in module

    with pytest.raises(InvalidProgram, match=rf"newer JAX .*{message}"):
        read_module(module.replace(old, new), 0, len(module), 1)


def test_operations_that_wait_for_the_host_are_told():
    """Infeed and outfeed, which JAX itself does not write, are among what a module needs."""
    primitive = core.Primitive("outfeed")
    primitive.def_abstract_eval(lambda aval: aval)

    def lower(context, operand):
        hlo.outfeed([operand], hlo.create_token())
        return [operand]

    mlir.register_lowering(primitive, lower)
    module = export.export(jax.jit(primitive.bind))(VECTOR).mlir_module_serialized

    assert read_module(module, 0, len(module), 1).host_operations == ("outfeed",)


def test_deep_nesting_is_refused(monkeypatch):
    """Operations are followed into each other only so deep."""
    monkeypatch.setattr(operations, "_DEPTH_LIMIT", 3)
    module = foreign()
    assert read_module(module, 0, len(module), 1).custom_calls

    monkeypatch.setattr(operations, "_DEPTH_LIMIT", 2)
    with pytest.raises(InvalidProgram, match="nested deeper than 2"):
        read_module(module, 0, len(module), 1)


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
