"""A position in MLIR bytecode, and the encodings that all of it is made of.

See https://mlir.llvm.org/docs/BytecodeFormat/, Primitives and Sections.
"""

import mmap

# Strings, attributes, operations, arguments: no real module has more of any.
_COUNT_LIMIT = 1 << 20


class UnreadableError(Exception):
    """The bytecode is not what is understood here."""


class Cursor:
    """A position in the blob that never passes `end`. Every method raises UnreadableError there."""

    def __init__(self, data: bytes | mmap.mmap, position: int, end: int) -> None:
        self._data = data
        self._origin = self.position = position
        self._end = end

    def copy(self) -> "Cursor":
        """Another cursor at the same position."""
        copy = Cursor(self._data, self.position, self._end)
        copy._origin = self._origin
        return copy

    def at_end(self) -> bool:
        """Whether nothing follows."""
        return self.position >= self._end

    def skip(self, size: int) -> int:
        """Passes bytes; returns where they begin."""
        begin = self.position
        if size > self._end - begin:
            raise UnreadableError(f"{size} bytes expected at byte {begin}, which ends first")
        self.position = begin + size
        return begin

    def take(self, size: int) -> bytes:
        """The next bytes."""
        begin = self.skip(size)
        return self._data[begin : self.position]

    def byte(self) -> int:
        """The next byte."""
        return self._data[self.skip(1)]

    def number(self) -> int:
        """A varint: as many low zero bits in its first byte as there are further bytes."""
        first = self.byte()
        if first & 1:  # by far the most frequent
            return first >> 1
        if not first:
            return int.from_bytes(self.take(8), "little")
        further = (first & -first).bit_length() - 1
        return (int.from_bytes(self.take(further), "little") << 8 | first) >> (further + 1)

    def count(self, *, flagged: bool = False) -> int:
        """A varint that says how many things follow; a flag may be its lowest bit."""
        count = self.number() >> flagged
        if count > _COUNT_LIMIT:
            raise UnreadableError(f"{count} are too many")
        return count

    def numbers(self) -> list[int]:
        """A count, and as many varints."""
        return [self.number() for _ in range(self.count())]

    def skip_numbers(self) -> int:
        """Passes a count, and as many varints; returns the count."""
        count = self.count()
        for _ in range(count):
            self.number()
        return count

    def text(self) -> str:
        """All that follows, as UTF-8."""
        try:
            return self.take(self._end - self.position).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableError("a string is not UTF-8") from error

    def text_to_nul(self, limit: int) -> str:
        """The string that ends with the next NUL, among the next `limit` bytes."""
        end = self._data.find(b"\0", self.position, min(self.position + limit, self._end))
        if end < 0:
            raise UnreadableError(f"no string ends within {limit} bytes")
        text = self.part(end - self.position).text()
        self.skip(1)
        return text

    def part(self, size: int) -> "Cursor":
        """A cursor over the next `size` bytes, which this one skips."""
        part = Cursor(self._data, self.skip(size), self.position)
        part._origin = self._origin  # alignment counts from where the module begins
        return part

    def between(self, begin: int, end: int) -> "Cursor":
        """A cursor over bytes that were skipped before, by this one or another."""
        return Cursor(self._data, begin, end)

    def section(self) -> "tuple[int, Cursor]":
        """The next section's identifier and content."""
        identifier = self.byte()
        size = self.number()
        if identifier & 0x80:
            alignment = self.number()
            if not alignment:
                raise UnreadableError("a section is aligned to 0")
            self.skip((self._origin - self.position) % alignment)
        return identifier & 0x7F, self.part(size)
