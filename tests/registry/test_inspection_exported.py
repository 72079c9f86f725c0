"""What is read of exports, against JAX itself; and that nothing else is ever accepted."""

import collections
import dataclasses
import functools
import inspect
import io
import random
import typing
import zipfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax._src.export import serialization_generated as schema
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import flatbuffer
from servax_registry.inspection.exported import read_program


class Pair(typing.NamedTuple):
    """A pytree that exports can hold once it is registered."""

    left: Any
    right: Any


export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")


class Model:
    """A model whose call and method are exported."""

    def __call__(self, image, *, scale=None):
        """The call."""
        return image

    def features(self, image):
        """A method."""
        return image


SCOPE = export.SymbolicScope()


def spec(*sizes: int | str, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract array; a string is a symbolic dimension."""
    if not any(isinstance(size, str) for size in sizes):
        return jax.ShapeDtypeStruct(sizes, dtype)
    shape = export.symbolic_shape(", ".join(map(str, sizes)), scope=SCOPE)
    return jax.ShapeDtypeStruct(shape, dtype)


def exported(function, *args, platforms=("cpu",), **kwargs) -> export.Exported:
    """Exports a function for abstract arguments."""
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    return export.export(jitted, platforms=platforms)(*args, **kwargs)


def read(exported: export.Exported) -> Program:
    """Reads an export as the registry gets it."""
    return read_program(bytes(exported.serialize()))


VECTOR = spec(3)
WV = {"w": {"v": VECTOR}, "b": VECTOR}
ODD = {"a'b": {'c]"d': VECTOR}, "é\n": VECTOR}
WEIGHTS = {f"blocks.{index}.kernel": VECTOR for index in range(70)}


def case(
    name: str,
    function: Any,
    *args: Any,
    platforms: tuple[str, ...] = ("cpu",),
    parameters: tuple[str, ...] | None = None,
    **kwargs: Any,
) -> Any:
    """A function, its arguments, and its parameters where its signature does not tell them."""
    return pytest.param(
        SimpleNamespace(
            function=function,
            args=args,
            kwargs=kwargs,
            platforms=platforms,
            parameters=parameters or tuple(inspect.signature(function).parameters),
        ),
        id=name,
    )


CASES = [
    case("array", lambda tokens: tokens + 1, VECTOR),
    case("two", lambda x, y: x + y, VECTOR, VECTOR),
    case("dict", lambda params, x: params["w"]["v"] + params["b"] + x, WV, VECTOR),
    case("seventy", lambda params, tokens: sum(params.values()) + tokens, WEIGHTS, VECTOR),
    case("sequences", lambda params, x: params[0] + params[1][0] + x, [VECTOR, (VECTOR,)], VECTOR),
    case("namedtuple", lambda p, x: (p.left + x, p.right[0]), Pair(VECTOR, [VECTOR]), VECTOR),
    case("ordered dict", lambda p: p["z"] + p["a"], collections.OrderedDict(z=VECTOR, a=VECTOR)),
    case("none", lambda x, state: x + state["b"], VECTOR, {"a": None, "b": VECTOR}),
    case("odd keys", lambda p: p["a'b"]["c]\"d"] + p["é\n"], ODD),
    case("keywords", lambda x, *, k, bias: x * k + bias["b"], VECTOR, k=VECTOR, bias={"b": VECTOR}),
    case("by keyword", lambda x, y: x + y, VECTOR, y=VECTOR),
    case("unused and symbolic", lambda x, unused, y: x + y, spec("b", 3), spec("b"), spec("b", 3)),
    case("unused and kept", jax.jit(lambda x, unused: x, keep_unused=True), VECTOR, VECTOR),
    case("method", Model().features, VECTOR),
    case("callable", Model(), VECTOR),
    case("partial", functools.partial(lambda w, x, y: x * w + y, 2.0), VECTOR, VECTOR),
    case("static", jax.jit(lambda n, x: x * n, static_argnums=0), 3, VECTOR, parameters=("x",)),
    case("donated", jax.jit(lambda x, y: x + y, donate_argnums=0), VECTOR, VECTOR),
    case("inner main", lambda main: jax.jit(lambda inner: inner * 2)(main), VECTOR),
    case("platforms", lambda x, y: (x, y), VECTOR, VECTOR, platforms=("cpu", "cuda", "tpu")),
    case(
        "symbolic platforms", lambda x, y: {"r": x, "s": None, "t": ()},
        spec("b", "2*b + 1"), spec("floordiv(b, 2)", "t"), platforms=("cpu", "cuda"),
    ),
    case("scalars", lambda x, y: x * y, VECTOR, 3.0),
    case("powers", lambda x: jnp.outer(x, x).reshape(-1), spec("b")),
    case("key", lambda key: jax.random.bits(key), jax.eval_shape(lambda: jax.random.key(0))),
    case("nothing", lambda: jnp.zeros((2, 0)), parameters=()),
    case("cholesky", lambda matrix: jnp.linalg.cholesky(matrix), spec("b", 4, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_arguments_and_results_are_those_that_jax_knows(case):
    """Names, paths, dtypes and shapes equal what the signature and JAX's own trees say."""
    made = exported(case.function, *case.args, platforms=case.platforms, **case.kwargs)
    flat, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(made.in_tree, list(range(len(made.in_avals))))
    )
    expected = []
    for (half, first, *steps), _ in flat:
        root = case.parameters[first.idx] if half.idx == 0 else first.key
        path = tuple(key_of(step) for step in steps)
        keyed = all(isinstance(step, jax.tree_util.DictKey) for step in steps)
        expected.append((root, path, keyed))
    flat, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(made.out_tree, list(range(len(made.out_avals))))
    )
    results = [tuple(map(key_of, path)) for path, _ in flat]

    program = read(made)

    assert expected == [(a.root, a.path, a.keyed) for a in program.arguments]
    assert results == [result.path for result in program.results]
    for avals, described in (
        (made.in_avals, program.arguments),
        (made.out_avals, program.results),
    ):
        assert [described_aval(aval) for aval in avals] == [(a.dtype, a.shape) for a in described]


def key_of(step: Any) -> str:
    """The text of one step of a JAX key path; of a NamedTuple's field, its index."""
    match step:
        case jax.tree_util.DictKey(key=key):
            return str(key)
        case jax.tree_util.GetAttrKey(name=name):
            return str(Pair._fields.index(name))
        case _:
            return str(step.idx)


def described_aval(aval: Any) -> tuple[str, tuple[str, ...]]:
    """The dtype's name and the dimensions of an aval, as JAX prints them."""
    return aval.dtype.name, tuple(map(str, aval.shape))


@pytest.mark.parametrize("case", CASES)
def test_the_rest_is_what_jax_says_of_the_export(case):
    """Everything but arguments and results equals the fields of JAX's Exported."""
    made = exported(case.function, *case.args, platforms=case.platforms, **case.kwargs)

    program = read(made)

    assert made.fun_name == program.function_name
    assert made.platforms == program.platforms
    assert made.nr_devices == program.device_count
    assert made.calling_convention_version == program.calling_convention_version
    assert program.jax_version in ("", jax.__version__)
    assert program.serialization_version >= 3
    assert f"StableHLO_v{program.stablehlo_version}\0".encode() in made.mlir_module_serialized
    assert (program.disabled_checks, program.effects) == ((), ())
    assert set(program.custom_calls) <= {"shape_assertion", "lapack_spotrf_ffi"}


def test_dropped_arguments_are_named_after_their_position():
    """An argument that JAX dropped from the module is called arg and its position."""
    program = read(exported(lambda x, unused, y: x + y, VECTOR, VECTOR, VECTOR))

    assert [argument.root for argument in program.arguments] == ["x", "arg1", "y"]


def test_a_dropped_argument_does_not_take_the_name_of_another():
    """The name that stands in for a missing one is never that of a real parameter."""
    program = read(exported(lambda arg1, unused, *, arg2: arg1 + arg2, VECTOR, VECTOR, arg2=VECTOR))

    assert [argument.root for argument in program.arguments] == ["arg1", "arg1_", "arg2"]


@pytest.mark.parametrize("count", [1, 3])
def test_variadic_arguments_are_items_of_their_parameter(count):
    """The arguments of *xs are xs and an index, however many there are."""
    program = read(exported(lambda *xs: sum(x["a"] for x in xs), *[{"a": VECTOR}] * count))

    assert [("xs", (str(index), "a"), False) for index in range(count)] == [
        (argument.root, argument.path, argument.keyed) for argument in program.arguments
    ]


def test_variadic_keywords_are_their_own_parameters():
    """The arguments of **kw are named by their keywords."""
    program = read(exported(lambda **kw: kw["p"] + kw["q"]["r"], p=VECTOR, q={"r": VECTOR}))

    assert [(a.root, a.path) for a in program.arguments] == [("p", ()), ("q", ("r",))]


def test_several_devices():
    """The device count is read of an export for two devices, whose module has mesh operations."""
    mesh = AbstractMesh((2,), ("d",))
    sharded = NamedSharding(mesh, PartitionSpec("d"))
    made = exported(
        jax.jit(lambda p, x: p["w"] * x, in_shardings=sharded),
        {"w": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharded)},
        jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharded),
    )

    program = read(made)

    assert program.device_count == 2
    assert [(a.root, a.path) for a in program.arguments] == [("p", ("w",)), ("x", ())]


def test_custom_nodes_are_named_and_ordered_dicts_are_none():
    """Only classes that a worker has to stand in for are told as custom nodes."""
    made = exported(
        lambda pair, ordered: Pair(pair.left, ordered["k"]),
        Pair(VECTOR, VECTOR),
        collections.OrderedDict(k=VECTOR),
    )

    program = read(made)

    assert program.custom_nodes == ("tests.Pair",)


def test_disabled_checks_are_told_as_jax_prints_them():
    """Safety checks that the publisher disabled are told by JAX's own names."""
    checks = [
        export.DisabledSafetyCheck.platform(),
        export.DisabledSafetyCheck.custom_call("target"),
    ]
    made = export.export(jax.jit(lambda x: x), disabled_checks=checks)(VECTOR)

    assert tuple(map(str, checks)) == read(made).disabled_checks


DTYPES = [
    *("bool", "int4", "int8", "int16", "int32", "uint4", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float4_e2m1fn", "float8_e3m4"),
    *("float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_the_name_that_jax_gives_it(name):
    """A dtype comes back by the name by which JAX made it."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))

    program = read(exported(lambda x: x, spec(2, dtype=dtype)))

    assert (name, name) == (program.arguments[0].dtype, program.results[0].dtype)


def test_every_dtype_of_the_schema_is_known():
    """The reader knows each element type that the installed JAX can serialize."""
    known = {value for name, value in vars(schema.DType).items() if not name.startswith("_")}
    made = exported(lambda x: x, VECTOR)
    names = {read_program(with_dtype(made, value)).arguments[0].dtype for value in known}

    assert len(known) == len(names)
    assert {"float0", "key<fry>", "key<rbg>", "key<unsafe_rbg>", *DTYPES} <= names


def with_dtype(made: export.Exported, value: int) -> bytes:
    """The export with the element type of every aval overwritten."""
    blob = made.serialize()
    root = schema.Exported.GetRootAs(blob)
    for get, count in (
        (root.InAvals, root.InAvalsLength()),
        (root.OutAvals, root.OutAvalsLength()),
        *([(root.UniqueAvals, root.UniqueAvalsLength())] if root.UniqueAvalsLength() else []),
    ):
        for index in range(count):
            overwrite(blob, get(index)._tab, 2, value, 1)
    return bytes(blob)


def overwrite(blob: bytearray, table: Any, field: int, value: int, size: int) -> None:
    """Overwrites the number that a table has in a field."""
    position = table.Pos + table.Offset(4 + 2 * field)
    blob[position : position + size] = value.to_bytes(size, "little")


@functools.cache
def small() -> export.Exported:
    """An export of two kilobytes, with a dict argument, a symbol, and two results."""
    return exported(lambda params, x: (params["w"] + x, {"r": x}), {"w": VECTOR}, spec("b", 3))


@functools.cache
def blob() -> bytes:
    """`small`, serialized."""
    return bytes(small().serialize())


def test_only_one_of_the_two_layouts_is_needed():
    """A blob with either layout of its avals alone reads as the one with both."""
    complete = read_program(blob())
    root = schema.Exported.GetRootAs(blob())
    if not root.UniqueAvalsLength():
        pytest.skip("this JAX writes the old layout only")
    for fields in (["InAvals", "OutAvals"], ["InAvalsIdxs", "OutAvalsIdxs", "UniqueAvals"]):
        stripped = bytearray(blob())
        for field in fields:
            erase(stripped, EXPORTED_FIELDS.index(field))

        assert complete == read_program(bytes(stripped))


EXPORTED_FIELDS = [
    *("SerializationVersion", "FunctionName", "InTree", "InAvals", "OutTree", "OutAvals"),
    *("NrDevicesShort", "InShardings", "OutShardings", "Platforms", "OrderedEffects"),
    *("UnorderedEffects", "DisabledChecks", "MlirModuleSerialized", "CallingConventionVersion"),
    *("ModuleKeptVarIdx", "UsesGlobalConstants", "Vjp", "NrDevices", "UniqueAvals"),
    *("UniqueAbstractMeshes", "UniqueNamedShardings", "InAvalsIdxs", "OutAvalsIdxs"),
    *("InShardingsIdxs", "OutShardingsIdxs", "JaxVersion"),
]


def erase(blob: bytearray, field: int) -> None:
    """Makes a field of the table Exported absent."""
    table = schema.Exported.GetRootAs(blob)._tab
    vtable = table.Pos - table.Get(flatbuffers.number_types.SOffsetTFlags, table.Pos)
    blob[vtable + 4 + 2 * field : vtable + 6 + 2 * field] = b"\0\0"


@pytest.mark.parametrize(
    "field",
    ["FunctionName", "InTree", "OutTree", "Platforms", "NrDevices", "MlirModuleSerialized"],
)
def test_every_required_field_is_missed(field):
    """A blob without one of the fields that each export has is refused."""
    damaged = bytearray(blob())
    erase(damaged, EXPORTED_FIELDS.index(field))

    with pytest.raises(InvalidProgram):
        read_program(bytes(damaged))


def test_every_prefix_is_refused():
    """However much of the end of a blob is missing, it is refused."""
    whole = blob()
    for size in range(len(whole)):
        with pytest.raises(InvalidProgram, match=r"empty|truncated|not a jax.export blob|damaged"):
            read_program(whole[:size])


def zipped() -> bytes:
    """A small zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model", "weights")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\0", "not a jax.export blob", id="a byte"),
        pytest.param(b"\0" * 4096, "not a jax.export blob", id="zeros"),
        pytest.param(b"A model that I trained.\n" * 99, "not a jax.export blob", id="text"),
        pytest.param(zipped(), "not a jax.export blob", id="zip"),
        pytest.param(random.Random(0).randbytes(4096), "not a jax.export blob", id="noise"),
    ],
)
def test_other_files_are_told_from_exports(foreign, message):
    """Bytes that were never an export are refused as such."""
    with pytest.raises(InvalidProgram, match=message):
        read_program(foreign)


def test_a_bare_module_is_told_from_an_export():
    """The module of an export is not the export."""
    with pytest.raises(InvalidProgram, match=r"not a jax\.export blob"):
        read_program(small().mlir_module_serialized)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    """No random bytes are taken for an export, and none do anything but be refused."""
    with pytest.raises(InvalidProgram):
        read_program(noise)


def test_a_newer_serialization_version_is_refused_as_such():
    """What a later JAX wrote in a later layout is told as that, with the remedy."""
    newer = bytearray(blob())
    overwrite(newer, schema.Exported.GetRootAs(newer)._tab, 0, 99, 2)

    with pytest.raises(InvalidProgram, match=r"written by a newer JAX.*version 99.*upgrade"):
        read_program(bytes(newer))


def test_unknown_fields_are_told_as_newer():
    """A table with more fields than the schema has is what a later JAX wrote."""
    builder = flatbuffers.Builder()
    module = builder.CreateByteVector(b"ML\xefR\rStableHLO_v1.15.0\0")
    builder.StartObject(40)
    builder.PrependUOffsetTRelativeSlot(13, module, 0)
    builder.PrependUint8Slot(39, 1, 0)
    builder.Finish(builder.EndObject())

    with pytest.raises(InvalidProgram, match="written by a newer JAX"):
        read_program(bytes(builder.Output()))


def test_an_unknown_dtype_is_told_as_newer():
    """An element type that the schema does not have is what a later JAX wrote, or damage."""
    with pytest.raises(InvalidProgram, match="newer JAX, or damaged: element type 99"):
        read_program(with_dtype(small(), 99))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module_kept_var_idx": (0, 2)}, "of 2 arguments, its module takes"),
        ({"module_kept_var_idx": (1, 0)}, "of 2 arguments, its module takes"),
        ({"in_tree": jax.tree.structure(((0,), {}))}, "1 arguments, but 2 are described"),
        ({"in_tree": jax.tree.structure((0, 0))}, "input tree is not"),
        ({"out_tree": jax.tree.structure((0, 0, 0))}, "3 results, but 2 are described"),
        ({"platforms": ()}, "platforms"),
        ({"platforms": ("cpu", "cpu")}, "platforms"),
        ({"platforms": ("../x",)}, "no platform"),
        ({"nr_devices": 0}, "for 0 devices"),
        ({"fun_name": ""}, "no function name"),
        ({"mlir_module_serialized": b"module {}"}, "not a jax.export blob"),
        ({"mlir_module_serialized": b"ML\xefR"}, "not a jax.export blob"),
        ({"mlir_module_serialized": b"ML\xefR\rStable"}, "header of its MLIR module"),
        ({"mlir_module_serialized": b"ML\xefR\rMLIR21\0"}, "expected StableHLO"),
    ],
)
def test_contradictions_are_refused(changes, message):
    """A blob whose parts do not fit each other is refused, with what does not fit."""
    with pytest.raises(InvalidProgram, match=message):
        read(dataclasses.replace(small(), **changes))


def test_layouts_that_contradict_each_other_are_refused():
    """An old and a new reader would not see different arguments in one blob."""
    root = schema.Exported.GetRootAs(blob())
    if not root.UniqueAvalsLength():
        pytest.skip("this JAX writes the old layout only")
    damaged = bytearray(blob())
    overwrite(damaged, root.InAvals(0)._tab, 2, schema.DType.bf16, 1)

    with pytest.raises(InvalidProgram, match="contradict"):
        read_program(bytes(damaged))


def test_a_module_without_names_is_accepted():
    """Where the module tells no names, the arguments are counted."""
    module = small().mlir_module_serialized.replace(b"_wrapped_jax_export_main", b"_" * 24)
    module = module.replace(b"\0main\0", b"\0____\0")

    program = read(dataclasses.replace(small(), mlir_module_serialized=module))

    assert [(a.root, a.path) for a in program.arguments] == [("arg0", ("w",)), ("arg1", ())]


def test_a_module_that_cannot_be_read_is_refused():
    """A program of which nobody knows what it calls is not accepted."""
    module = small().mlir_module_serialized
    header = module[: module.index(b"\0") + 1]

    with pytest.raises(InvalidProgram, match="what its MLIR module calls cannot be told"):
        read(dataclasses.replace(small(), mlir_module_serialized=header))


def hostile(tree: Callable[[flatbuffers.Builder], int]) -> bytes:
    """A blob whose input tree is what `tree` builds."""
    builder = flatbuffers.Builder()
    module = builder.CreateByteVector(b"ML\xefR\rStableHLO_v1.15.0\0")
    node = tree(builder)
    schema.ExportedStart(builder)
    schema.ExportedAddMlirModuleSerialized(builder, module)
    schema.ExportedAddInTree(builder, node)
    schema.ExportedAddOutTree(builder, node)
    builder.Finish(schema.ExportedEnd(builder))
    return bytes(builder.Output())


def node(builder: flatbuffers.Builder, kind: int, children: list[int]) -> int:
    """A node of a tree."""
    schema.PyTreeDefStartChildrenVector(builder, len(children))
    for child in reversed(children):
        builder.PrependUOffsetTRelative(child)
    vector = builder.EndVector()
    schema.PyTreeDefStart(builder)
    schema.PyTreeDefAddKind(builder, kind)
    schema.PyTreeDefAddChildren(builder, vector)
    return int(schema.PyTreeDefEnd(builder))


def arguments(builder: flatbuffers.Builder, child: int) -> int:
    """The input tree ((child,), {})."""
    positional = node(builder, schema.PyTreeDefKind.tuple, [child])
    keywords = node(builder, schema.PyTreeDefKind.dict, [])
    return node(builder, schema.PyTreeDefKind.tuple, [positional, keywords])


def test_deep_trees_are_refused():
    """A tree that is nested ten thousand deep is refused, not followed."""

    def deep(builder):
        child = node(builder, schema.PyTreeDefKind.leaf, [])
        for _ in range(10_000):
            child = node(builder, schema.PyTreeDefKind.list, [child])
        return arguments(builder, child)

    with pytest.raises(InvalidProgram, match="nested deeper"):
        read_program(hostile(deep))


def test_shared_trees_are_refused():
    """A small blob that unfolds to 2^60 leaves is refused after a bounded part of them."""

    def shared(builder):
        child = node(builder, schema.PyTreeDefKind.leaf, [])
        for _ in range(60):
            child = node(builder, schema.PyTreeDefKind.list, [child, child])
        return arguments(builder, child)

    with pytest.raises(InvalidProgram, match="too large"):
        read_program(hostile(shared))


def test_shared_empty_trees_are_refused(monkeypatch):
    """A small blob that unfolds to 2^60 nodes but no leaf is refused after a bounded part."""
    monkeypatch.setattr(flatbuffer, "_BUDGET", 1 << 16)

    def shared(builder):
        child = node(builder, schema.PyTreeDefKind.none, [])
        for _ in range(60):
            child = node(builder, schema.PyTreeDefKind.list, [child, child])
        return arguments(builder, child)

    with pytest.raises(InvalidProgram, match="too large"):
        read_program(hostile(shared))


def test_single_mutations_are_read_or_refused():
    """Of 2,000 blobs with one damaged spot each, every one is read or refused as InvalidProgram."""
    pristine = blob()
    randomness = random.Random(0)
    refused = 0
    for _ in range(2000):
        mutated = bytearray(pristine)
        position = randomness.randrange(len(mutated))
        match randomness.randrange(4):
            case 0:
                mutated[position] ^= 1 << randomness.randrange(8)
            case 1:
                mutated[position] = randomness.randrange(256)
            case 2:
                word = randomness.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
                mutated[position : position + 4] = word.to_bytes(4, "little")
            case 3:
                end = position + randomness.randrange(64)
                source = randomness.randrange(len(mutated))
                mutated[position:end] = pristine[source : source + end - position]
        try:
            assert isinstance(read_program(bytes(mutated)), Program)
        except InvalidProgram:
            refused += 1

    assert 0 < refused < 2000
