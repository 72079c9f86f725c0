"""Segments of POSIX shared memory through which callers on the same machine pass arrays.

A segment is read and written by system calls and never mapped: a caller may change or cut it at any
moment, and to touch a mapped page that is gone would end the process (SIGBUS), whatever had been
checked before. What a call computes with is a copy, made once.
"""

import os
import re
import stat
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.errors import InvalidTensor
from servax.tensors import byte_size, from_bytes
from servax_worker.errors import AlreadyExists, InvalidInput, NotServed, TooLarge, Unsupported
from servax_worker.rows import empty_aligned

NO_CUDA = "this worker takes no CUDA memory; send the arrays, or use system shared memory"
"""Why a region of CUDA memory is not registered."""

# Where Linux keeps what shm_open(3) opens; a key has no other slash than one in front.
_DIRECTORY = Path("/dev/shm")
_KEY = re.compile(r"/?(?!\.\.?$)[^/\0]{1,255}")

_MOST_REGIONS = 1000  # each keeps a file open


@dataclass(frozen=True)
class Place:
    """Where in a region an array lies, in bytes."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True)
class Region:
    """Part of a segment; the segment stays until nobody refers to the region any more."""

    name: str
    key: str
    offset: int
    size: int
    _file: int = field(repr=False)

    def read(self, place: Place, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
        """Copies the array that lies there.

        Raises InvalidInput where it cannot, or what lies there is no array of that type.
        """
        try:
            wanted = byte_size(dtype, shape)
        except InvalidTensor as error:
            raise InvalidInput(str(error)) from error
        if wanted != place.size:
            raise InvalidInput(f"{dtype}{list(shape)} has {wanted} bytes, not {place.size}")
        start = self._start(place)
        memory = empty_aligned((wanted,), np.dtype(np.uint8))
        done = 0
        while done < wanted:
            count = os.preadv(self._file, [memory.data[done:]], start + done)
            if not count:
                raise self._cut()
            done += count
        try:
            return from_bytes(dtype, shape, memory.data)
        except InvalidTensor as error:
            raise InvalidInput(str(error)) from error

    def write(self, place: Place, data: memoryview) -> None:
        """Copies bytes there; raises InvalidInput where they do not fit."""
        if len(data) > place.size:
            raise InvalidInput(
                f"the array has {len(data)} bytes, the place in shared memory region "
                f"'{self.name}' {place.size}"
            )
        start = self._start(place)
        if os.fstat(self._file).st_size < start + len(data):  # or else writing would extend it
            raise self._cut()
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], start + done)

    def _start(self, place: Place) -> int:
        if not 0 <= place.offset <= place.offset + place.size <= self.size:
            raise InvalidInput(
                f"{place.size} bytes from {place.offset} on are outside of shared memory region "
                f"'{self.name}', which has {self.size}"
            )
        return self.offset + place.offset

    def _cut(self) -> InvalidInput:
        size = os.fstat(self._file).st_size
        return InvalidInput(
            f"segment '{self.key}' of shared memory region '{self.name}' has {size} bytes now, "
            f"fewer than when it was registered"
        )


class SharedMemory:
    """The regions that callers have registered."""

    def __init__(self, *, allowed: bool):
        self.allowed = allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Makes `size` bytes from `offset` on of the segment `key` known as `name`.

        Raises Unsupported where the operator does not allow it, AlreadyExists, InvalidInput for a
        segment that cannot be opened or is too small, and TooLarge.
        """
        self._check_allowed()
        if not name:
            raise InvalidInput("a shared memory region needs a name")
        if name in self._regions:
            raise AlreadyExists(
                f"shared memory region '{name}' is registered already; unregister it first"
            )
        if len(self._regions) == _MOST_REGIONS:
            raise TooLarge(f"{_MOST_REGIONS} shared memory regions are registered; unregister some")
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"{key!r} is no key of a segment; give one such as '/inputs'")
        try:
            # A FIFO would block without O_NONBLOCK.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(_DIRECTORY / key.removeprefix("/"), flags)
        except OSError as error:
            raise InvalidInput(f"cannot open segment '{key}': {error.strerror}") from error
        region = Region(name, key, offset, size, file)
        # A call that reads may outlast the registration; its file must not be closed under it.
        weakref.finalize(region, os.close, file)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"'{key}' is no segment of shared memory")
        if not 0 <= offset <= offset + size <= status.st_size or not size:
            raise InvalidInput(
                f"{size} bytes from {offset} on are no part of segment '{key}', which has "
                f"{status.st_size}"
            )
        self._regions[name] = region

    def unregister(self, name: str = "") -> None:
        """Forgets a region, or all; one that is not there as well."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def regions(self, name: str = "") -> list[Region]:
        """One region, or all; raises NotServed."""
        return [self.find(name)] if name else list(self._regions.values())

    def find(self, name: str) -> Region:
        """A region; raises NotServed, and Unsupported where the operator allows none."""
        self._check_allowed()
        if name not in self._regions:
            there_are = ", ".join(sorted(self._regions)[:20]) or "none"
            raise NotServed(f"no shared memory region '{name}'; registered: {there_are}")
        return self._regions[name]

    def _check_allowed(self) -> None:
        if not self.allowed:
            raise Unsupported(
                "this worker takes no shared memory; its operator may allow it with "
                "--allow-shared-memory"
            )
