"""Walks over every operation of a module, through all functions, regions and blocks.

The encoding is that of the IR section in https://mlir.llvm.org/docs/BytecodeFormat/, with what the
document leaves to `BytecodeReader.cpp` in LLVM's repository. Whatever that reader would find, this
one finds or refuses: it must not be possible to hide an operation between the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from servax_registry.inspection.cursor import Cursor, UnreadableError

# What an operation's mask says that it has.
_ATTRIBUTES, _RESULTS, _OPERANDS, _SUCCESSORS = 0x01, 0x02, 0x04, 0x08
_REGIONS, _USE_LIST_ORDERS, _PROPERTIES = 0x10, 0x20, 0x40
_KNOWN = 0x7F

# Control flow in control flow in control flow: JAX itself gives up before.
_DEPTH_LIMIT = 1000

NONE = -1
"""In place of an index: there is none."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: indices of its name, attributes and properties, and how many regions it has.

    `body` stands where the regions begin; None without any.
    """

    name: int
    attributes: int
    properties: int
    region_count: int
    body: Cursor | None


@dataclass(slots=True)
class _Frame:
    """Where the walk stands in the regions of one operation, and what is left of them."""

    cursor: Cursor
    regions: int
    blocks: int
    operations: int


def walk(cursor: Cursor) -> Iterator[Operation]:
    """Every operation from the block at `cursor` on, each before those inside it.

    Raises UnreadableError.
    """
    count, _ = read_block(cursor)
    frames = [_Frame(cursor, 0, 0, count)]
    while frames:
        frame = frames[-1]
        if frame.operations:
            frame.operations -= 1
            operation = read_operation(frame.cursor)
            yield operation
            if operation.body is not None:
                frames.append(_Frame(operation.body, operation.region_count, 0, 0))
                if len(frames) > _DEPTH_LIMIT:
                    raise UnreadableError(f"operations are nested deeper than {_DEPTH_LIMIT}")
        elif frame.blocks:
            frame.blocks -= 1
            frame.operations, _ = read_block(frame.cursor)
        elif frame.regions:
            frame.regions -= 1
            frame.blocks = read_region(frame.cursor)
        else:
            frames.pop()


def read_operation(cursor: Cursor) -> Operation:
    """The operation at `cursor`, which is left where its regions begin, or behind them.

    Regions that refer to nothing outside of them are a section, others follow in line.
    """
    name = cursor.number()
    mask = cursor.byte()
    if mask & ~_KNOWN:
        raise UnreadableError(f"an operation has the mask {mask:#x}")
    cursor.number()  # its location
    attributes = cursor.number() if mask & _ATTRIBUTES else NONE
    properties = cursor.number() if mask & _PROPERTIES else NONE
    results = cursor.skip_numbers() if mask & _RESULTS else 0
    if mask & _OPERANDS:
        cursor.skip_numbers()
    if mask & _SUCCESSORS:
        cursor.skip_numbers()
    if mask & _USE_LIST_ORDERS:
        _skip_use_list_orders(cursor, results)
    regions, body = 0, None
    if mask & _REGIONS:
        encoding = cursor.number()
        regions = encoding >> 1
        if regions:
            body = cursor.section()[1] if encoding & 1 else cursor
    return Operation(name, attributes, properties, regions, body)


def read_region(cursor: Cursor) -> int:
    """How many blocks the region at `cursor` has; leaves it where they begin."""
    blocks = cursor.number()
    if blocks:
        cursor.number()  # how many values the region defines
    return blocks


def read_block(cursor: Cursor) -> tuple[int, list[int]]:
    """How many operations a block has, and the locations of its arguments (NONE: unknown)."""
    encoding = cursor.number()
    locations = []
    if encoding & 1:
        for _ in range(cursor.count()):
            has_location = cursor.number() & 1
            locations.append(cursor.number() if has_location else NONE)
        if cursor.byte():
            _skip_use_list_orders(cursor, len(locations))
    return encoding >> 1, locations


def _skip_use_list_orders(cursor: Cursor, values: int) -> None:
    """In which order values are used; which value is meant is only told where there are several."""
    for _ in range(cursor.count() if values > 1 else 1):
        if values > 1:
            cursor.number()
        for _ in range(cursor.count(flagged=True)):
            cursor.number()
