"""Reads the locations of a function's arguments out of MLIR bytecode.

JAX serializes no parameter names, but the module of an export keeps them as the locations of its
arguments: `loc("tokens")`, `loc("params['w']")`. That they are found is never promised: whatever
is not understood gives no locations, and only the header has to be right.

The encoding is that of https://mlir.llvm.org/docs/BytecodeFormat/ (bytecode version 6, which every
JAX from 0.6 on writes), the attributes' that of `BuiltinDialectBytecode.td` in LLVM's and of
`VhloBytecode.cpp` in StableHLO's repository. Bodies of functions and constants are skipped by
their length: a module of 1 GB takes no more time and memory than its tables.
"""

import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from servax_registry.errors import InvalidProgram
from servax_registry.inspection.cursor import Cursor, UnreadableError

_T = TypeVar("_T")

_MAGIC = b"ML\xefR"
_BYTECODE_VERSION = 6
_PRODUCER = re.compile(r"StableHLO_v([0-9]{1,5}\.[0-9]{1,5}\.[0-9]{1,5})")
_PRODUCER_LIMIT = 64
_TEXT_LIMIT = 4096

# Sections, by identifier.
_STRINGS, _DIALECTS, _ATTRIBUTES, _ATTRIBUTE_SIZES, _IR, _PROPERTIES = 0, 1, 2, 3, 4, 8
_SECTIONS = {_STRINGS, _DIALECTS, _ATTRIBUTES, _ATTRIBUTE_SIZES, _IR, _PROPERTIES}

# What an operation's mask says that it has. The others are results, operands, successors and
# orders of uses, none of which an operation of a module has.
_HAS_ATTRIBUTES, _HAS_REGIONS, _HAS_PROPERTIES = 0x01, 0x10, 0x40
_ONE_ISOLATED_REGION = 1 << 1 | 1

# Attributes, by dialect and code.
_BUILTIN_STRING = ("builtin", 2)
_BUILTIN_NAME_LOCATION = ("builtin", 14)
_VHLO_ARRAY = ("vhlo", 1)
_VHLO_DICTIONARY = ("vhlo", 6)
_VHLO_STRING = ("vhlo", 14)

_MODULE = ("builtin", "module")
_FUNCTION = ("vhlo", "func_v1")
# Where dimensions are symbolic or effects ordered, `main` only wraps the function that has the
# names.
_FUNCTION_NAMES = ("_wrapped_jax_export_main", "main")
# Marks the arguments that JAX puts before the function's own: platform index and dimensions.
_GLOBAL_CONSTANT = "jax.global_constant"

# In place of an index.
_NONE = -1


@dataclass(frozen=True)
class Module:
    """What is read of a module.

    `argument_locations` are those of the arguments that the exported function keeps, "" where one
    is unknown; empty when they could not be recovered.
    """

    stablehlo_version: str
    argument_locations: tuple[str, ...]


def has_magic(blob: bytes | mmap.mmap, start: int, size: int) -> bool:
    """Whether the `size` bytes from `start` on begin as MLIR bytecode does."""
    return size > len(_MAGIC) and blob[start : start + len(_MAGIC)] == _MAGIC


def read_module(blob: bytes | mmap.mmap, start: int, size: int, argument_count: int) -> Module:
    """Reads the module in the `size` bytes of the blob from `start` on.

    `argument_count` is how many arguments of the exported function the module keeps. Raises
    InvalidProgram when the bytes do not begin as a module that StableHLO serialized.
    """
    cursor = Cursor(blob, start, start + size)
    try:
        magic = cursor.take(len(_MAGIC))
        version = cursor.number()
        producer = cursor.text_to_nul(_PRODUCER_LIMIT)
    except UnreadableError as error:
        raise InvalidProgram(f"damaged: the header of its MLIR module: {error}") from error
    stablehlo = _PRODUCER.fullmatch(producer)
    if magic != _MAGIC or stablehlo is None:
        raise InvalidProgram(
            f"damaged: its MLIR module was written by {producer!r}, expected StableHLO_v…"
        )
    locations: tuple[str, ...] = ()
    if version == _BYTECODE_VERSION:
        try:
            locations = _Bytecode(cursor).argument_locations(argument_count)
        except UnreadableError:
            # Names for people are worth less than the program: it does without.
            locations = ()
    return Module(stablehlo[1], locations)


@dataclass(frozen=True)
class _Operation:
    """An operation: dialect and name, the index of its properties, its first block."""

    name: tuple[str, str]
    properties: int
    block: Cursor | None


class _Bytecode:
    """The tables of one module, and the way to the arguments of its functions."""

    def __init__(self, cursor: Cursor) -> None:
        sections: dict[int, Cursor] = {}
        while not cursor.at_end():
            identifier, content = cursor.section()
            if identifier in sections:
                raise UnreadableError(f"section {identifier} occurs twice")
            sections[identifier] = content
        if missing := _SECTIONS - sections.keys():
            raise UnreadableError(f"the sections {sorted(missing)} are missing")
        self._ir = sections[_IR]
        self._strings = _read_strings(sections[_STRINGS])
        self._dialects = self._read_dialects(sections[_DIALECTS])
        self._operations = self._read_operation_names(sections[_DIALECTS])
        self._attributes = self._read_attributes(sections[_ATTRIBUTE_SIZES], sections[_ATTRIBUTES])
        self._properties = _read_properties(sections[_PROPERTIES])

    def argument_locations(self, count: int) -> tuple[str, ...]:
        """The locations of the last `count` arguments that are not global constants."""
        functions = self._functions()
        name = next((name for name in _FUNCTION_NAMES if name in functions), None)
        if name is None:
            raise UnreadableError(f"it has none of the functions {_FUNCTION_NAMES}")
        argument_attributes, block = functions[name]
        _, locations = _read_block(block)
        dictionaries = self._attribute(argument_attributes, _VHLO_ARRAY).numbers()
        if dictionaries:  # one per argument, or none at all
            constant = {item: self._is_global_constant(item) for item in set(dictionaries)}
            locations = [
                location
                for location, dictionary in zip(locations, dictionaries, strict=False)
                if not constant[dictionary]
            ]
        if len(locations) < count:
            raise UnreadableError(f"{name} has {len(locations)} arguments, expected {count}")
        # The tokens of ordered effects come before the arguments, too.
        locations = locations[len(locations) - count :]
        texts = {location: self._location(location) for location in set(locations)}
        return tuple(texts[location] for location in locations)

    def _functions(self) -> dict[str, tuple[int, Cursor]]:
        """Per function of the module: the attributes of its arguments, and its first block."""
        _read_block(self._ir)
        module = self._read_operation(self._ir)
        if module.name != _MODULE or module.block is None:
            raise UnreadableError(f"it begins with {module.name}")
        functions = {}
        operation_count, _ = _read_block(module.block)
        for _ in range(operation_count):
            operation = self._read_operation(module.block)
            if operation.name == _FUNCTION and operation.block is not None:
                # Alphabetically: arg_attrs, function_type, res_attrs, sym_name, sym_visibility.
                properties = _at(self._properties, operation.properties)
                argument_attributes, _, _, name, _ = (properties.number() for _ in range(5))
                functions[self._text(name, _VHLO_STRING)] = argument_attributes, operation.block
        return functions

    def _read_operation(self, cursor: Cursor) -> _Operation:
        """An operation as modules hold them: with one region or none, and without values."""
        name = _at(self._operations, cursor.number())
        mask = cursor.byte()
        if mask & ~(_HAS_ATTRIBUTES | _HAS_PROPERTIES | _HAS_REGIONS):
            raise UnreadableError(f"{name} has the mask {mask:#x}")
        cursor.number()  # its location
        if mask & _HAS_ATTRIBUTES:
            cursor.number()
        properties = cursor.number() if mask & _HAS_PROPERTIES else _NONE
        block = None
        if mask & _HAS_REGIONS:
            if cursor.number() != _ONE_ISOLATED_REGION:
                raise UnreadableError(f"{name} has not exactly one isolated region")
            _, block = cursor.section()
            if not block.number():
                raise UnreadableError(f"{name} has no block")
            block.number()  # how many values the region defines
        return _Operation(name, properties, block)

    def _read_dialects(self, cursor: Cursor) -> list[str]:
        dialects = []
        for _ in range(cursor.count()):
            name = cursor.number()
            dialects.append(self._string(name >> 1))
            if name & 1:
                cursor.section()  # its version
        return dialects

    def _read_operation_names(self, cursor: Cursor) -> list[tuple[str, str]]:
        names: list[tuple[str, str]] = []
        total = cursor.count()
        while len(names) < total:
            dialect = _at(self._dialects, cursor.number())
            names += [(dialect, self._string(name >> 1)) for name in cursor.numbers()]
        return names

    def _read_attributes(self, sizes: Cursor, content: Cursor) -> list[tuple[str, int, int]]:
        """Per attribute, its dialect and where it begins and ends; types are not read."""
        attributes: list[tuple[str, int, int]] = []
        total = sizes.count()
        sizes.number()  # how many types there are
        while len(attributes) < total:
            dialect = _at(self._dialects, sizes.number())
            for size in sizes.numbers():
                begin = content.skip(size >> 1)
                # The low bit tells a dialect's encoding from text, which is of no interest here.
                attributes.append((dialect if size & 1 else "", begin, content.position))
        return attributes

    def _attribute(self, index: int, kind: tuple[str, int]) -> Cursor:
        """What follows the code of an attribute, which must be of this kind."""
        dialect, begin, end = _at(self._attributes, index)
        cursor = self._ir.between(begin, end)
        if dialect != kind[0] or cursor.number() != kind[1]:
            raise UnreadableError(f"attribute {index} is no {kind}")
        return cursor

    def _text(self, index: int, kind: tuple[str, int]) -> str:
        return self._string(self._attribute(index, kind).number())

    def _string(self, index: int) -> str:
        begin, end = _at(self._strings, index)
        if end - begin > _TEXT_LIMIT:
            raise UnreadableError(f"string {index} is too long")
        return self._ir.between(begin, end).text()

    def _is_global_constant(self, dictionary: int) -> bool:
        items = self._attribute(dictionary, _VHLO_DICTIONARY)
        keys = [(items.number(), items.number())[0] for _ in range(items.count())]
        return any(self._text(key, _VHLO_STRING) == _GLOBAL_CONSTANT for key in keys)

    def _location(self, index: int) -> str:
        """The name in a location; "" where it is unknown or of another kind."""
        if index == _NONE:
            return ""
        try:
            name = self._attribute(index, _BUILTIN_NAME_LOCATION).number()
        except UnreadableError:
            return ""
        return self._text(name, _BUILTIN_STRING)


def _read_strings(cursor: Cursor) -> list[tuple[int, int]]:
    """Where every string begins and ends: sizes, the last first, and then the bytes."""
    sizes = cursor.numbers()
    strings = []
    for size in reversed(sizes):
        if not size:
            raise UnreadableError("a string without its final NUL")
        begin = cursor.skip(size)
        strings.append((begin, cursor.position - 1))  # a NUL ends each
    return strings


def _read_properties(cursor: Cursor) -> list[Cursor]:
    return [cursor.part(cursor.number()) for _ in range(cursor.count())]


def _read_block(cursor: Cursor) -> tuple[int, list[int]]:
    """How many operations a block has, and the locations of its arguments."""
    encoding = cursor.number()
    locations = []
    if encoding & 1:
        for _ in range(cursor.count()):
            has_location = cursor.number() & 1
            locations.append(cursor.number() if has_location else _NONE)
        cursor.byte()  # whether use-list orders follow; only a function's block could have them
    return encoding >> 1, locations


def _at(table: Sequence[_T], index: int) -> _T:
    if not 0 <= index < len(table):
        raise UnreadableError(f"entry {index} of {len(table)}")
    return table[index]
