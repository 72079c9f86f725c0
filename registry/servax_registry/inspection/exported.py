"""Reads a serialized jax.export.Exported without JAX, and without believing it.

The layout is that of `jax/_src/export/serialization.fbs` in JAX's repository, as of serialization
version 12; the meaning of its fields is that of `serialization.py` beside it. Two layouts of the
arguments and results are in use: one aval each, or, from version 10 on, indices into unique avals.
JAX writes both for a time.
"""

import mmap
import re
from dataclasses import dataclass
from enum import IntEnum

from servax_registry.artifact import Argument, Program, Result
from servax_registry.errors import InvalidProgram
from servax_registry.inspection import bytecode, pytree
from servax_registry.inspection.flatbuffer import Buffer, Table, int8, int16, uint16, uint32

# The newest version whose every field is known here. JAX 0.10 and older write 2 or 3 whatever
# their version is.
NEWEST_SERIALIZATION_VERSION = 12

_EXPECTED = "expected the bytes that exported.serialize() returns"
# Flatbuffers are built from their end, and padded at their beginning.
_ALIGNMENT = 4

_TEXT_LIMIT = 4096
_DEVICE_LIMIT = 1 << 20

_PLATFORM = re.compile(r"[a-z][a-z0-9_]{0,31}")
# As JAX prints dimensions: a number, or arithmetic and function calls over at least one symbol;
# a power is b^2.
_DIMENSION = re.compile(r"[0-9]+|[\w+\-*^(), ]*[^\W\d][\w+\-*^(), ]*")


class _Field(IntEnum):
    """The fields of table Exported; those of shardings and of the vjp are not read."""

    SERIALIZATION_VERSION = 0
    FUNCTION_NAME = 1
    IN_TREE = 2
    IN_AVALS = 3
    OUT_TREE = 4
    OUT_AVALS = 5
    NR_DEVICES_SHORT = 6
    PLATFORMS = 9
    ORDERED_EFFECTS = 10
    UNORDERED_EFFECTS = 11
    DISABLED_CHECKS = 12
    MLIR_MODULE = 13
    CALLING_CONVENTION_VERSION = 14
    MODULE_KEPT_VAR_IDX = 15
    NR_DEVICES = 18
    UNIQUE_AVALS = 19
    IN_AVALS_IDXS = 22
    OUT_AVALS_IDXS = 23
    JAX_VERSION = 26


class _AvalField(IntEnum):
    """The fields of table AbstractValue; the memory space is not read."""

    KIND = 0
    SHAPE = 1
    DTYPE = 2


class _CheckField(IntEnum):
    """The fields of table DisabledSafetyCheck."""

    KIND = 0
    CUSTOM_CALL_TARGET = 1


_EFFECT_TYPE_NAME = 0
_FIELD_COUNT = _Field.JAX_VERSION + 1
_PLATFORM_CHECK, _CUSTOM_CALL_CHECK = range(2)

# By the values of enum DType.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "uint4"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float0", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
    *("key<fry>", "key<rbg>", "key<unsafe_rbg>"),
)


@dataclass(frozen=True)
class _Aval:
    """An abstract value: element type by JAX's name, one expression per dimension."""

    dtype: str
    shape: tuple[str, ...]


def read_program(blob: bytes | mmap.mmap) -> Program:
    """Reads what a serialized Exported says of itself.

    Raises InvalidProgram, and nothing else, for every blob that is not a consistent one.
    """
    exported = _root(blob)
    custom_nodes: set[str] = set()
    in_leaves = pytree.read_arguments(_tree(exported, _Field.IN_TREE), custom_nodes)
    out_leaves = pytree.read_leaves(_tree(exported, _Field.OUT_TREE), custom_nodes)
    in_avals = _avals(exported, _Field.IN_AVALS, _Field.IN_AVALS_IDXS)
    out_avals = _avals(exported, _Field.OUT_AVALS, _Field.OUT_AVALS_IDXS)
    for what, leaves, avals in (
        ("arguments", in_leaves, in_avals),
        ("results", out_leaves, out_avals),
    ):
        if len(leaves) != len(avals):
            raise InvalidProgram(
                f"damaged: the tree has {len(leaves)} {what}, but {len(avals)} are described"
            )
    kept = _kept_arguments(exported, len(in_avals))
    module = bytecode.read_module(blob, *exported.extent(_Field.MLIR_MODULE), len(kept))
    places = pytree.place_arguments(
        in_leaves, dict(zip(kept, module.argument_locations, strict=False))
    )
    return Program(
        function_name=_text("function name", exported.text(_Field.FUNCTION_NAME)),
        arguments=tuple(
            Argument(place.root, place.path, place.keyed, aval.dtype, aval.shape)
            for place, aval in zip(places, in_avals, strict=True)
        ),
        results=tuple(
            Result(tuple(step.key for step in leaf), aval.dtype, aval.shape)
            for leaf, aval in zip(out_leaves, out_avals, strict=True)
        ),
        platforms=_platforms(exported),
        device_count=_device_count(exported),
        calling_convention_version=exported.number(_Field.CALLING_CONVENTION_VERSION, uint16),
        serialization_version=exported.number(_Field.SERIALIZATION_VERSION, uint16),
        stablehlo_version=module.stablehlo_version,
        jax_version=exported.text(_Field.JAX_VERSION),
        disabled_checks=tuple(map(_disabled_check, exported.tables(_Field.DISABLED_CHECKS))),
        effects=(*_effects(exported), *module.host_operations),
        custom_nodes=tuple(sorted(custom_nodes)),
        custom_calls=module.custom_calls,
    )


def _root(blob: bytes | mmap.mmap) -> Table:
    """The table Exported, once it is sure that the blob is one and that its layout is known."""
    if not len(blob):
        raise InvalidProgram(f"empty: {_EXPECTED}")
    if len(blob) % _ALIGNMENT:
        raise InvalidProgram(
            f"truncated, or not a jax.export blob: {len(blob)} bytes are no multiple of "
            f"{_ALIGNMENT}; {_EXPECTED}"
        )
    try:
        exported = Buffer(blob).root()
    except InvalidProgram as error:
        raise InvalidProgram(f"not a jax.export blob: {error}; {_EXPECTED}") from error
    if not bytecode.has_magic(blob, *exported.extent(_Field.MLIR_MODULE)):
        raise InvalidProgram(f"not a jax.export blob: it holds no MLIR module; {_EXPECTED}")
    version = exported.number(_Field.SERIALIZATION_VERSION, uint16)
    if version > NEWEST_SERIALIZATION_VERSION or exported.field_count > _FIELD_COUNT:
        writer = exported.text(_Field.JAX_VERSION)
        raise InvalidProgram(
            f"written by a newer JAX{writer and ' ' + writer}: serialization version {version} "
            f"with {exported.field_count} fields, where this registry reads up to version "
            f"{NEWEST_SERIALIZATION_VERSION} with {_FIELD_COUNT}; upgrade the registry, or export "
            "with an older JAX"
        )
    return exported


def _tree(exported: Table, field: _Field) -> Table:
    tree = exported.table(field)
    if tree is None:
        raise InvalidProgram(f"damaged: it has no {field.name.lower()}")
    return tree


def _avals(exported: Table, direct: _Field, indices: _Field) -> tuple[_Aval, ...]:
    """The avals of the arguments or results, from whichever layouts the blob has."""
    avals = tuple(map(_aval, exported.tables(direct)))
    positions = exported.numbers(indices, uint32)
    if not positions:
        return avals
    unique = tuple(map(_aval, exported.tables(_Field.UNIQUE_AVALS)))
    if max(positions) >= len(unique):
        raise InvalidProgram(
            f"damaged: {indices.name.lower()} refers to aval {max(positions)} of {len(unique)}"
        )
    indexed = tuple(unique[position] for position in positions)
    if avals and avals != indexed:
        raise InvalidProgram(
            f"damaged: {direct.name.lower()} and {indices.name.lower()} contradict each other"
        )
    return indexed


def _aval(table: Table) -> _Aval:
    kind = table.number(_AvalField.KIND, int8)
    dtype = table.number(_AvalField.DTYPE, int8)
    if kind or not 0 <= dtype < len(_DTYPES):
        raise InvalidProgram(
            f"written by a newer JAX, or damaged: element type {dtype} of an array of kind {kind} "
            "is unknown"
        )
    shape = table.texts(_AvalField.SHAPE)
    for dimension in shape:
        if len(dimension) > _TEXT_LIMIT or not _DIMENSION.fullmatch(dimension):
            raise InvalidProgram(f"damaged: {dimension[:80]!r} is no dimension of an array")
    return _Aval(_DTYPES[dtype], shape)


def _kept_arguments(exported: Table, count: int) -> tuple[int, ...]:
    """The arguments that the module takes, by index among all; JAX drops unused ones."""
    kept = exported.numbers(_Field.MODULE_KEPT_VAR_IDX, uint16)
    if list(kept) != sorted(set(kept)) or (kept and kept[-1] >= count):
        raise InvalidProgram(f"damaged: of {count} arguments, its module takes {list(kept[:8])}")
    return kept


def _platforms(exported: Table) -> tuple[str, ...]:
    platforms = exported.texts(_Field.PLATFORMS)
    for platform in platforms:
        if not _PLATFORM.fullmatch(platform):
            raise InvalidProgram(f"damaged: {platform[:80]!r} is no platform")
    if not platforms or len(set(platforms)) != len(platforms):
        raise InvalidProgram(f"damaged: it was lowered for the platforms {list(platforms[:8])}")
    return platforms


def _device_count(exported: Table) -> int:
    """The number of devices: a newer field, or else the one that it replaced."""
    count = exported.number(_Field.NR_DEVICES, uint32)
    count = count or exported.number(_Field.NR_DEVICES_SHORT, int16)
    if not 0 < count <= _DEVICE_LIMIT:
        raise InvalidProgram(f"damaged: it was exported for {count} devices")
    return count


def _effects(exported: Table) -> tuple[str, ...]:
    return tuple(
        _text("effect", effect.text(_EFFECT_TYPE_NAME))
        for field in (_Field.ORDERED_EFFECTS, _Field.UNORDERED_EFFECTS)
        for effect in exported.tables(field)
    )


def _disabled_check(table: Table) -> str:
    """A disabled safety check, as JAX prints it."""
    kind = table.number(_CheckField.KIND, int8)
    if kind == _PLATFORM_CHECK:
        return "platform"
    if kind == _CUSTOM_CALL_CHECK:
        target = _text("custom call target", table.text(_CheckField.CUSTOM_CALL_TARGET))
        return f"custom_call:{target}"
    raise InvalidProgram(
        f"written by a newer JAX, or damaged: kind {kind} of disabled safety check is unknown"
    )


def _text(what: str, text: str) -> str:
    if not text or len(text) > _TEXT_LIMIT:
        raise InvalidProgram(f"damaged: {text[:80]!r} is no {what}")
    return text
