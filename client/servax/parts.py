"""Cuts what is too large for one message into parts, free of any message format.

`PredictStream` carries requests and answers so, in either direction.
"""

from collections.abc import Iterator, Mapping

PART_BYTES = 1 << 20
"""How much tensor data one part carries: well below gRPC's limit of 4 MB for a message."""


def cut(
    data: Mapping[str, memoryview], limit: int = PART_BYTES
) -> Iterator[tuple[dict[str, memoryview], bool]]:
    """Cut tensors' bytes, by name, into parts; gives each, and whether more follow.

    A part has at most `limit` bytes. There is at least one; joined by name in their order, they
    are the data again, save that a tensor without bytes is in none.
    """
    part: dict[str, memoryview] = {}
    room = limit
    for name, whole in data.items():
        begin = 0
        while begin < len(whole):
            if not room:
                yield part, True
                part, room = {}, limit
            part[name] = whole[begin : begin + room]
            begin += len(part[name])
            room -= len(part[name])
    yield part, False
