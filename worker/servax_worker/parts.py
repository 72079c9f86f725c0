"""Joins the parts of large requests, free of any message format; `servax.parts` cuts.

A part has the data of some tensors, by name. The first part of a request names all of its tensors
and carries everything else, here called its head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from servax_worker.errors import InvalidInput, TooLarge

Head = TypeVar("Head")


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
        """All unfinished requests together hold at most `max_bytes`, and are `max_open`."""
        self._max_bytes = max_bytes
        self._max_open = max_open
        self._open: dict[int, _Open[Head]] = {}
        self._refused: dict[int, None] = {}  # in order of refusal
        self._held = 0

    def add(
        self, id: int, head: Head, data: Mapping[str, bytes], more: bool, head_bytes: int = 0
    ) -> tuple[Head, Mapping[str, bytes | bytearray]] | None:
        """Takes the next part of request `id`; gives the head and all data after the last part.

        `head`, which takes `head_bytes`, counts in the first part only. None means that nothing is
        to be done yet. Raises TooLarge and InvalidInput; the request is over then.
        """
        if id in self._refused:
            self._refuse(id, more)
            return None
        if id not in self._open and not more:
            return head, data
        try:
            self._append(id, head, data, head_bytes)
        except (TooLarge, InvalidInput):
            self._forget(id)
            self._refuse(id, more)
            raise
        return None if more else self._finish(id)

    def refuse(self, id: int, more: bool) -> bool:
        """Swallows a request of which this is a part; whether it is the first that came."""
        first = id not in self._refused
        self._refuse(id, more)
        return first

    def _append(self, id: int, head: Head, data: Mapping[str, bytes], head_bytes: int) -> None:
        request = self._open.get(id)
        size = sum(map(len, data.values()))
        if request is None:
            size += head_bytes
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

    def _refuse(self, id: int, more: bool) -> None:
        self._refused.pop(id, None)
        if not more:
            return
        self._refused[id] = None
        if len(self._refused) > self._max_open:
            # A part of an id that is forgotten here is refused again as the first of a request.
            del self._refused[next(iter(self._refused))]

    def _forget(self, id: int) -> None:
        request = self._open.pop(id, None)
        if request is not None:
            self._held -= request.size
