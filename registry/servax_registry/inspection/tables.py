"""The tables of MLIR bytecode: strings, operation names, attributes and properties.

The encoding is that of https://mlir.llvm.org/docs/BytecodeFormat/ (bytecode version 6, which
StableHLO writes since 0.15), the attributes' that of `BuiltinDialectBytecode.td` in LLVM's and of
`VhloBytecode.cpp` in StableHLO's repository. Only where things lie is read: constants, which are
attributes, are skipped by their length, so that a module of 1 GB takes no more time and memory
than its tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from servax_registry.inspection.cursor import Cursor, UnreadableError

_T = TypeVar("_T")

_TEXT_LIMIT = 4096

# Sections, by identifier.
_STRINGS, _DIALECTS, _ATTRIBUTES, _ATTRIBUTE_SIZES, _IR, _PROPERTIES = 0, 1, 2, 3, 4, 8
_SECTIONS = {_STRINGS, _DIALECTS, _ATTRIBUTES, _ATTRIBUTE_SIZES, _IR, _PROPERTIES}

# Attributes, by dialect and code.
BUILTIN_DICTIONARY = ("builtin", 1)
BUILTIN_STRING = ("builtin", 2)
BUILTIN_NAME_LOCATION = ("builtin", 14)
VHLO_ARRAY = ("vhlo", 1)
VHLO_DICTIONARY = ("vhlo", 6)
VHLO_STRING = ("vhlo", 14)


@dataclass(frozen=True)
class OperationName:
    """An operation's dialect and name; `native` says that its properties are its own encoding."""

    dialect: str
    name: str
    native: bool

    def __str__(self) -> str:
        return f"{self.dialect}.{self.name}"


class Tables:
    """The tables of one module. Every method raises UnreadableError where it is damaged."""

    def __init__(self, cursor: Cursor) -> None:
        """Reads them from `cursor`, which stands behind the header."""
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
        self.operation_names = self._read_operation_names(sections[_DIALECTS])
        self._attributes = self._read_attributes(sections[_ATTRIBUTE_SIZES], sections[_ATTRIBUTES])
        self._properties = _read_properties(sections[_PROPERTIES])

    def operations(self) -> Cursor:
        """A cursor at the module's first block."""
        return self._ir.copy()

    def operation_name(self, index: int) -> OperationName:
        """The name of an operation, by its index."""
        return at(self.operation_names, index)

    def properties(self, index: int) -> Cursor:
        """The properties of an operation, by their index."""
        return at(self._properties, index).copy()

    def attribute(self, index: int, kind: tuple[str, int]) -> Cursor:
        """What follows the code of an attribute, which must be of this kind."""
        dialect, begin, end = at(self._attributes, index)
        cursor = self._ir.between(begin, end)
        if dialect != kind[0] or cursor.number() != kind[1]:
            raise UnreadableError(f"attribute {index} is no {kind}")
        return cursor

    def text(self, index: int, kind: tuple[str, int]) -> str:
        """The text of a string attribute of this kind."""
        return self._string(self.attribute(index, kind).number())

    def keys(self, index: int, kind: tuple[str, int], key: tuple[str, int]) -> list[str]:
        """The keys of a dictionary of this kind, which are attributes of the kind `key`."""
        items = self.attribute(index, kind)
        keys = [(items.number(), items.number())[0] for _ in range(items.count())]
        return [self.text(item, key) for item in keys]

    def _read_dialects(self, cursor: Cursor) -> list[str]:
        dialects = []
        for _ in range(cursor.count()):
            name = cursor.number()
            dialects.append(self._string(name >> 1))
            if name & 1:
                cursor.section()  # its version
        return dialects

    def _read_operation_names(self, cursor: Cursor) -> list[OperationName]:
        names: list[OperationName] = []
        cursor.number()  # how many there are: a hint, which MLIR reads beyond
        while not cursor.at_end():
            dialect = at(self._dialects, cursor.number())
            names += [
                OperationName(dialect, self._string(name >> 1), bool(name & 1))
                for name in cursor.numbers()
            ]
        return names

    def _read_attributes(self, sizes: Cursor, content: Cursor) -> list[tuple[str, int, int]]:
        """Per attribute, its dialect and where it begins and ends; types are not read."""
        attributes: list[tuple[str, int, int]] = []
        total = sizes.count()
        sizes.number()  # how many types there are
        while len(attributes) < total:
            dialect = at(self._dialects, sizes.number())
            for size in sizes.numbers():
                begin = content.skip(size >> 1)
                # The low bit tells a dialect's encoding from text, which is of no interest here.
                attributes.append((dialect if size & 1 else "", begin, content.position))
        return attributes

    def _string(self, index: int) -> str:
        begin, end = at(self._strings, index)
        if end - begin > _TEXT_LIMIT:
            raise UnreadableError(f"string {index} is too long")
        return self._ir.between(begin, end).text()


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


def at(table: Sequence[_T], index: int) -> _T:
    """An entry of a table; raises UnreadableError where there is none."""
    if not 0 <= index < len(table):
        raise UnreadableError(f"entry {index} of {len(table)}")
    return table[index]
