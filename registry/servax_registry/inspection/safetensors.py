"""Reads where the tensors of a safetensors blob lie. Pure: the caller reads the bytes.

The format (https://huggingface.co/docs/safetensors, and `tensor.rs` in its repository, where the
page is silent): 8 bytes of little-endian length, a JSON object of that length from name to dtype,
shape and offsets, and the data, which the tensors cover without holes or overlaps.
"""

import json
import math
import struct
from collections import Counter
from typing import Any

from servax_registry.artifact import StoredTensor
from servax_registry.errors import InvalidWeights

# The format allows 100,000,000 bytes of header. A version has to be described in one message of
# 4 MB, which takes less than a header of this size to fill, and JSON takes many times its size in
# memory to read.
HEADER_LIMIT = 16 << 20

# How many commas a header may have, within names too. As there is one before every value that is
# not the first of its kind, it bounds the objects that JSON becomes: 60,000 tensors of five
# dimensions take as many, the largest files that are known a fifth. Without the bound, a header of
# empty objects takes seconds and 700 MB to read.
COMMA_LIMIT = 500_000

PREFIX_SIZE = 8

_METADATA = "__metadata__"
_RANK_LIMIT = 64  # numpy's
_INT64_MAX = (1 << 63) - 1

# From the format's names to JAX's, with the size of an element in bytes. F8_E4M3 is the variant
# without infinities: it is what the reference implementation reads and writes as float8_e4m3fn.
_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "C64": ("complex64", 8),
    "F64": ("float64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
}
_PACKED = ("F4", "F6_E2M3", "F6_E3M2")


def header_size(first8: bytes, blob_size: int) -> int:
    """How many bytes from the start of the blob its header takes, these 8 included.

    Raises InvalidWeights when the blob cannot be a safetensors file.
    """
    if len(first8) < PREFIX_SIZE or blob_size < PREFIX_SIZE:
        raise InvalidWeights(
            f"not a safetensors file: it has {blob_size} bytes, the length of the header alone "
            f"takes {PREFIX_SIZE}"
        )
    (length,) = struct.unpack_from("<Q", first8)
    if length > blob_size - PREFIX_SIZE:
        raise InvalidWeights(
            f"truncated, or not a safetensors file: its header takes {length} bytes, but only "
            f"{blob_size - PREFIX_SIZE} follow"
        )
    if length > HEADER_LIMIT:
        raise InvalidWeights(
            f"its header takes {length} bytes, at most {HEADER_LIMIT} are read; spread the "
            "tensors over several files"
        )
    return PREFIX_SIZE + int(length)


def parse_safetensors_header(head: bytes, blob_size: int) -> tuple[StoredTensor, ...]:
    """The tensors of a blob of `blob_size` bytes, by ascending offset.

    `head` is the beginning of the blob, `header_size` bytes at least.
    Raises InvalidWeights, which names the tensor, unless the file is well-formed and complete.
    """
    data_start = header_size(head[:PREFIX_SIZE], blob_size)
    if len(head) < data_start:
        raise InvalidWeights(f"truncated: {len(head)} of the {data_start} bytes of its header")
    entries = _parse_json(head[PREFIX_SIZE:data_start])
    metadata = entries.pop(_METADATA, None)
    if metadata is not None and not (
        type(metadata) is dict and all(type(value) is str for value in metadata.values())
    ):
        raise InvalidWeights(f"damaged: {_METADATA} is not a map from text to text")
    tensors = sorted(
        (_tensor(name, entry, data_start) for name, entry in entries.items()),
        key=lambda tensor: (tensor.offset, tensor.size),
    )
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise InvalidWeights(
                f"tensor {_show(tensor.name)}: begins at byte {tensor.offset - data_start} of the "
                f"data, where the tensors before it end at byte {end - data_start}"
            )
        end += tensor.size
    if end != blob_size:
        raise InvalidWeights(
            f"{'truncated' if end > blob_size else 'damaged'}: its tensors end at byte {end}, the "
            f"file at byte {blob_size}"
        )
    return tuple(tensors)


def _parse_json(text: bytes) -> dict[str, Any]:
    if (commas := text.count(b",")) > COMMA_LIMIT:
        raise InvalidWeights(
            f"its header has {commas} commas, at most {COMMA_LIMIT} are read; spread the tensors "
            "over several files"
        )
    try:
        header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise InvalidWeights("damaged: its header is nested too deeply") from error
    except ValueError as error:  # of JSON, of UTF-8, or of integers with thousands of digits
        raise InvalidWeights(
            f"not a safetensors file, or damaged: its header is not JSON: {error}"
        ) from error
    if not text.startswith(b"{"):
        raise InvalidWeights("not a safetensors file: its header is not a JSON object")
    result: dict[str, Any] = header
    return result


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidWeights(f"damaged: its header has the key {_show(twice)} more than once")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _tensor(name: str, entry: Any, data_start: int) -> StoredTensor:
    match entry:
        case {"dtype": str(format_dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            pass
        case _:
            raise InvalidWeights(
                f"tensor {_show(name)}: expected its dtype, shape and data_offsets, got "
                f"{_show(entry)}"
            )
    if format_dtype in _PACKED:
        raise InvalidWeights(
            f"tensor {_show(name)}: elements of type {format_dtype} are packed into less than a "
            "byte each, which is not supported; store them as a wider type"
        )
    if format_dtype not in _DTYPES:
        raise InvalidWeights(
            f"tensor {_show(name)}: {_show(format_dtype)} is none of {', '.join(_DTYPES)}"
        )
    if len(shape) > _RANK_LIMIT or not all(_is_size(size) for size in (*shape, begin, end)):
        raise InvalidWeights(
            f"tensor {_show(name)}: shape {_show(shape)} and offsets {_show([begin, end])} are "
            f"not at most {_RANK_LIMIT} sizes and two offsets, whole numbers from 0 on"
        )
    dtype, item_size = _DTYPES[format_dtype]
    if begin > end or math.prod(shape) * item_size != end - begin:
        raise InvalidWeights(
            f"tensor {_show(name)}: {format_dtype}{shape} takes {math.prod(shape) * item_size} "
            f"bytes, its offsets are {begin} to {end}"
        )
    _check_encodable(name)
    return StoredTensor(name, dtype, tuple(shape), data_start + begin, end - begin)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _INT64_MAX


def _check_encodable(name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidWeights(f"tensor {_show(name)}: the name is not valid Unicode") from error


def _show(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
