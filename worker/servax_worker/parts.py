"""Joins the parts of large requests and cuts large answers, free of any message format.

A part has the data of some tensors, by name. The first part of a request names all of its tensors
and carries everything else, here called its head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from servax_worker.errors import InvalidInput, TooLarge

Head = TypeVar("Head")

PART_BYTES = 1 << 20
"""How much tensor data one part of an answer carries: well below gRPC's limit of 4 MB."""


@dataclass
class _Open(Generic[Head]):
    head: Head
    data: dict[str, bytearray] = field(default_factory=dict)
    size: int = 0


class Joiner(Generic[Head]):
    """Joins the parts of one stream's requests, which may be interleaved.

    An error concerns one id: its later parts are swallowed, other ids are not touched.
    """

    def __init__(self, max_bytes: int, max_open: int):
        """All unfinished requests together hold at most `max_bytes` of data, and are `max_open`."""
        self._max_bytes = max_bytes
        self._max_open = max_open
        self._open: dict[int, _Open[Head]] = {}
        self._refused: dict[int, None] = {}  # in order of refusal
        self._held = 0

    def add(
        self, id: int, head: Head, data: Mapping[str, bytes], more: bool
    ) -> tuple[Head, Mapping[str, bytes | bytearray]] | None:
        """Takes the next part of request `id`; gives the head and all data after the last part.

        `head` counts in the first part only. None means that nothing is to be done yet. Raises
        TooLarge and InvalidInput; the request is over then.
        """
        if id in self._refused:
            if not more:
                del self._refused[id]
            return None
        if id not in self._open and not more:
            return head, data
        try:
            self._append(id, head, data)
        except (TooLarge, InvalidInput):
            self._forget(id)
            if more:
                self._refuse(id)
            raise
        return None if more else self._finish(id)

    def _append(self, id: int, head: Head, data: Mapping[str, bytes]) -> None:
        request = self._open.get(id)
        if request is None:
            if len(self._open) >= self._max_open:
                raise TooLarge(
                    f"{self._max_open} requests of this stream are unfinished; finish one first"
                )
            request = self._open[id] = _Open(head, {name: bytearray() for name in data})
        unknown = sorted(data.keys() - request.data.keys())
        if unknown:
            raise InvalidInput(
                f"a later part of request {id} has data for '{unknown[0]}', which its first part "
                f"does not name; the first part names every input"
            )
        size = sum(map(len, data.values()))
        if self._held + size > self._max_bytes:
            raise TooLarge(
                f"the unfinished requests of this stream hold more than {self._max_bytes} bytes "
                f"(--max-request-bytes of the worker)"
            )
        self._held += size
        request.size += size
        for name, piece in data.items():
            request.data[name] += piece

    def _finish(self, id: int) -> tuple[Head, Mapping[str, bytearray]]:
        request = self._open[id]
        self._forget(id)
        return request.head, request.data

    def _refuse(self, id: int) -> None:
        self._refused[id] = None
        if len(self._refused) > self._max_open:
            # A part of an id that is forgotten here is refused again as the first of a request.
            del self._refused[next(iter(self._refused))]

    def _forget(self, id: int) -> None:
        request = self._open.pop(id, None)
        if request is not None:
            self._held -= request.size


def cut(data: Mapping[str, memoryview], limit: int = PART_BYTES) -> Iterator[dict[str, memoryview]]:
    """Cuts tensors' bytes into parts of at most `limit` bytes each; at least one part.

    Joined by name in their order, the parts are the data again.
    """
    part: dict[str, memoryview] = {}
    room = limit
    for name, whole in data.items():
        begin = 0
        while begin < len(whole):
            if not room:
                yield part
                part, room = {}, limit
            part[name] = whole[begin : begin + room]
            begin += len(part[name])
            room -= len(part[name])
    yield part
