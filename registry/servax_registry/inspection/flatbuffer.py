"""A bounds-checked reader of flatbuffers that nobody vouches for.

The `flatbuffers` runtime trusts its input: it slices past the end, follows any offset, and imports
numpy. This reader checks every offset against the buffer, copies nothing but strings, and works on
a budget, because offsets may be shared: a few kilobytes can describe a tree of 2^1000 nodes.

The format is that of https://flatbuffers.dev/internals/: a table begins with the distance back to
its vtable, which holds two sizes and then, per field, the field's offset in the table or 0.
"""

import mmap
import struct

from servax_registry.errors import InvalidProgram

int8 = struct.Struct("<b")
int16 = struct.Struct("<h")
uint16 = struct.Struct("<H")
uint32 = struct.Struct("<I")

_OFFSET = struct.Struct("<I")
_VTABLE_DISTANCE = struct.Struct("<i")
_VTABLE_HEADER = struct.Struct("<HH")
_FIELD_OFFSET = struct.Struct("<H")

# A number that is read costs 1, as do 8 bytes of a string: twice what 65,536 arguments with long
# names take, which is more than JAX can serialize.
_BUDGET = 8 << 20
_BYTES_PER_COST = 8


class Buffer:
    """The bytes of one flatbuffer, and what may still be read of them.

    Every accessor raises InvalidProgram where the buffer ends before what is read.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self._budget = _BUDGET

    def root(self) -> "Table":
        """The table that the first four bytes point to."""
        return Table(self, self.follow(0))

    def unpack(self, layout: struct.Struct, position: int) -> tuple[int, ...]:
        """The numbers that lie at `position` (bytes from the start) in this layout."""
        self.require(position, layout.size)
        return layout.unpack_from(self.data, position)

    def follow(self, position: int) -> int:
        """The position that the offset at `position` leads to."""
        (offset,) = self.unpack(_OFFSET, position)
        return position + offset

    def vector(self, position: int, item_size: int) -> tuple[int, int]:
        """Where the items of the vector at `position` begin, and how many there are."""
        (count,) = self.unpack(_OFFSET, position)
        self.require(position + _OFFSET.size, count * item_size)
        return position + _OFFSET.size, count

    def text(self, position: int) -> str:
        """The UTF-8 string at `position`."""
        start, size = self.vector(position, 1)
        self.require(start, size + 1)  # with the NUL that ends it
        self._spend(size // _BYTES_PER_COST)
        try:
            return self.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidProgram(f"damaged: the string at byte {start} is not UTF-8") from error

    def require(self, position: int, size: int) -> None:
        """Charges the budget, and raises InvalidProgram unless the bytes lie in the buffer."""
        self._spend(1)
        if position < 0 or position + size > len(self.data):
            raise InvalidProgram(
                f"truncated or damaged: the blob has {len(self.data)} bytes but refers to byte "
                f"{position + size}"
            )

    def _spend(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            raise InvalidProgram(
                "too large to be inspected: it describes more than any JAX function can take"
            )


class Table:
    """One table; fields are named by their index in the schema, and absent ones read as empty."""

    def __init__(self, buffer: Buffer, position: int) -> None:
        self._buffer = buffer
        self._position = position
        (distance,) = buffer.unpack(_VTABLE_DISTANCE, position)
        self._vtable = position - distance
        vtable_size, self._size = buffer.unpack(_VTABLE_HEADER, self._vtable)
        buffer.require(self._vtable, vtable_size)
        buffer.require(position, self._size)
        if vtable_size < _VTABLE_HEADER.size or vtable_size % 2:
            raise InvalidProgram(f"damaged: no table begins at byte {position}")
        self.field_count = (vtable_size - _VTABLE_HEADER.size) // _FIELD_OFFSET.size

    def number(self, field: int, layout: struct.Struct) -> int:
        """The number in a field; 0 when absent."""
        position = self._find(field, layout.size)
        return self._buffer.unpack(layout, position)[0] if position else 0

    def numbers(self, field: int, layout: struct.Struct) -> tuple[int, ...]:
        """The numbers of a vector."""
        start, count = self._vector(field, layout.size)
        return tuple(
            self._buffer.unpack(layout, start + index * layout.size)[0] for index in range(count)
        )

    def text(self, field: int) -> str:
        """The string in a field; "" when absent."""
        position = self._find(field, _OFFSET.size)
        return self._buffer.text(self._buffer.follow(position)) if position else ""

    def texts(self, field: int) -> tuple[str, ...]:
        """The strings of a vector."""
        start, count = self._vector(field, _OFFSET.size)
        return tuple(
            self._buffer.text(self._buffer.follow(start + index * _OFFSET.size))
            for index in range(count)
        )

    def table(self, field: int) -> "Table | None":
        """The table in a field; None when absent."""
        position = self._find(field, _OFFSET.size)
        return Table(self._buffer, self._buffer.follow(position)) if position else None

    def tables(self, field: int) -> "tuple[Table, ...]":
        """The tables of a vector."""
        start, count = self._vector(field, _OFFSET.size)
        return tuple(
            Table(self._buffer, self._buffer.follow(start + index * _OFFSET.size))
            for index in range(count)
        )

    def extent(self, field: int) -> tuple[int, int]:
        """Where the bytes of a byte vector begin in the buffer, and how many there are."""
        return self._vector(field, 1)

    def _vector(self, field: int, item_size: int) -> tuple[int, int]:
        position = self._find(field, _OFFSET.size)
        return self._buffer.vector(self._buffer.follow(position), item_size) if position else (0, 0)

    def _find(self, field: int, size: int) -> int:
        """The position of a field's value; 0 when absent."""
        if field >= self.field_count:
            return 0
        entry = self._vtable + _VTABLE_HEADER.size + field * _FIELD_OFFSET.size
        (offset,) = self._buffer.unpack(_FIELD_OFFSET, entry)
        if offset and not _VTABLE_DISTANCE.size <= offset <= self._size - size:
            raise InvalidProgram(f"damaged: field {field} lies outside of its table")
        return self._position + offset if offset else 0
