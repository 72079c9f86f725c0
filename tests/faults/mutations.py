"""What can happen to the bytes of an artifact."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

# What sizes, offsets and lengths of 32 bits are replaced with.
_HUGE = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x3FFFFFFF, 0x10000, 0)

Mutation = Callable[[random.Random, bytes, bytes], bytes]


def flip(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Flip a few bits."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Cut the end off."""
    return data[: rng.randrange(len(data))]


def lengthen(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Add bytes that do not belong there."""
    return data + rng.randbytes(rng.randrange(1, 4096))


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Go on with another artifact from some byte on."""
    position = rng.randrange(len(data))
    shift = rng.choice([0, 0, rng.randrange(-64, 64)])
    return data[:position] + other[max(position + shift, 0) :]


def move(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Copy a run of bytes over another."""
    size = rng.randrange(1, max(2, len(data) // 4))
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    run = data[source : source + size]
    return data[:target] + run + data[target + len(run) :]


def enlarge(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Declare a huge size: write one where, in a flatbuffer, an offset or a length may be."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        position = rng.randrange(max(1, len(data) - 4)) & ~3
        struct.pack_into("<I", changed, position, rng.choice(_HUGE))
    return bytes(changed)


def redeclare(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Declare a huge or wrong shape, offset or header of a safetensors file."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    number: Any = rng.choice(
        [1 << 62, (1 << 63) - 1, 1 << 64, 10**300, 1 << 31, -1, 0, 0.5, None, []]
    )
    entry = header[rng.choice(sorted(header))]
    place = rng.choice([entry["shape"], entry["data_offsets"]])
    place[rng.randrange(len(place))] = number
    text = json.dumps(header).encode()
    declared = rng.choice([len(text), len(text), length, 1 << 62, (1 << 64) - 1, 100_000_000])
    return struct.pack("<Q", declared) + text + data[8 + length :]


OF_PROGRAMS: Sequence[Mutation] = (flip, flip, truncate, lengthen, splice, splice, move, enlarge)
OF_WEIGHTS: Sequence[Mutation] = (*OF_PROGRAMS, redeclare, redeclare)
