"""What a serving process is doing, in memory that it shares with the process that watches it.

It can be read while the process hangs, and after it has crashed: so that whoever watches knows
which version did it.
"""

import mmap
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO

# As many calls as may run at once; what comes beyond is not watched.
_SLOTS = 64
_HEADER = struct.Struct("=dHHI")
_SLOT = struct.Struct("=dd256p")
_MEMO_LENGTH = struct.Struct("=I")
_MEMO_BYTES = 1 << 16
_MEMOS = _HEADER.size + _SLOTS * _SLOT.size
SIZE = _MEMOS + 2 * _MEMO_BYTES
"""The size of the shared file in bytes."""


@dataclass(frozen=True)
class Running:
    """A call of a version, "lm:3", that began and may run until a moment of `time.monotonic()`."""

    version: str
    since: float
    until: float


class Activity:
    """The shared memory, as either process sees it.

    One process writes. What another one reads while that happens may be half of a change, so it is
    to look twice.
    """

    def __init__(self, file: BinaryIO | int):
        """Maps a file of SIZE bytes, given by itself or by its descriptor."""
        descriptor = file if isinstance(file, int) else file.fileno()
        self._memory = mmap.mmap(descriptor, SIZE)
        self._free = list(range(_SLOTS))
        self._lock = threading.Lock()

    def close(self) -> None:
        """Lets go of the memory."""
        self._memory.close()

    def clear(self) -> None:
        """Forgets everything but the ports and the memo: another process begins."""
        struct.pack_into("=d", self._memory, 0, 0.0)
        self._memory[_HEADER.size : _MEMOS] = bytes(_MEMOS - _HEADER.size)

    def beat(self) -> None:
        """Tells that the event loop turns."""
        struct.pack_into("=d", self._memory, 0, time.monotonic())

    def tell_ports(self, grpc: int, http: int) -> None:
        """Tells where the process serves; a process that takes its place serves there again."""
        struct.pack_into("=HH", self._memory, 8, grpc, http)

    def leave_memo(self, memo: bytes) -> None:
        """Leaves what a process that takes this one's place is to know, in place of the last memo.

        A process that dies meanwhile has left the last one. Raises ValueError where it is too long.
        """
        room = _MEMO_BYTES - _MEMO_LENGTH.size
        if len(memo) > room:
            raise ValueError(f"a memo of {len(memo)} bytes; there is room for {room}")
        which = 1 - self._which_memo
        offset = _MEMOS + which * _MEMO_BYTES
        _MEMO_LENGTH.pack_into(self._memory, offset, len(memo))
        offset += _MEMO_LENGTH.size
        self._memory[offset : offset + len(memo)] = memo
        struct.pack_into("=I", self._memory, 12, which)

    @property
    def memo(self) -> bytes:
        """What was left last; empty where nothing was."""
        offset = _MEMOS + self._which_memo * _MEMO_BYTES
        (length,) = _MEMO_LENGTH.unpack_from(self._memory, offset)
        offset += _MEMO_LENGTH.size
        return self._memory[offset : offset + length]

    @property
    def _which_memo(self) -> int:
        which: int = _HEADER.unpack_from(self._memory, 0)[3]
        return which

    @property
    def last_beat(self) -> float:
        """When the event loop turned last, by `time.monotonic()`; 0 before the first time."""
        beat: float = _HEADER.unpack_from(self._memory, 0)[0]
        return beat

    @property
    def ports(self) -> tuple[int, int]:
        """The ports of gRPC and HTTP; 0 until they are told."""
        _, grpc, http, _ = _HEADER.unpack_from(self._memory, 0)
        return grpc, http

    @contextmanager
    def running(self, version: str, limit: float) -> Iterator[None]:
        """Tells that a version runs while the block does, for at most `limit` seconds."""
        with self._lock:
            slot = self._free.pop() if self._free else None
        if slot is None:
            yield
            return
        offset = _HEADER.size + slot * _SLOT.size
        now = time.monotonic()
        _SLOT.pack_into(self._memory, offset, now, now + limit, version.encode()[:255])
        try:
            yield
        finally:
            struct.pack_into("=d", self._memory, offset, 0.0)
            with self._lock:
                self._free.append(slot)

    def calls(self) -> list[Running]:
        """What runs now, or ran when the process ended."""
        found = []
        for slot in range(_SLOTS):
            offset = _HEADER.size + slot * _SLOT.size
            since, until, version = _SLOT.unpack_from(self._memory, offset)
            if since:
                found.append(Running(version.decode(errors="replace"), since, until))
        return found


@dataclass(frozen=True)
class Watch:
    """Tells what runs, and for how many seconds it may, where there is somebody to tell."""

    activity: Activity | None = None
    call_timeout: float = 0.0
    compile_timeout: float = 0.0

    def calling(self, version: str) -> AbstractContextManager[None]:
        """Tells of one call on the device."""
        return self._running(version, self.call_timeout)

    def compiling(self, version: str) -> AbstractContextManager[None]:
        """Tells of one compilation."""
        return self._running(version, self.compile_timeout)

    def _running(self, version: str, limit: float) -> AbstractContextManager[None]:
        return self.activity.running(version, limit) if self.activity else nullcontext()
