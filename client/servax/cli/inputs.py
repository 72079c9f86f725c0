"""Reads what `servax predict --input` is given, and writes what `--save` is to keep."""

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from servax.dtypes import numpy_dtype
from servax.errors import FileError, InvalidArgument, NotFound
from servax.reference import ModelReference
from servax.types import ServedState, Signature, WorkerStatus


def find_signature(status: WorkerStatus, reference: ModelReference, name: str) -> Signature:
    """Find the signature that the worker would call."""
    versions = status.matching(reference)
    if not versions:
        raise NotFound(f"the worker does not serve {reference}")
    served = max(versions, key=lambda each: (each.state is ServedState.READY, each.version))
    return named(served.signatures, name, of=str(reference))


def named(signatures: Iterable[Signature], name: str, *, of: str) -> Signature:
    """Find a signature by its name among those `of` a version."""
    found = {signature.name: signature for signature in signatures}
    if name not in found:
        there = ", ".join(found) or "none yet"
        raise NotFound(f"{of} has no signature {name!r}; it has: {there}")
    return found[name]


def needs_signature(text: str) -> bool:
    """Say whether the dtype of an input has to be looked up."""
    # numpy's files keep of ml_dtypes only the size of an element.
    return not text.startswith("@") or load(text).dtype.kind == "V"


def load(text: str) -> NDArray[Any]:
    """Map the file of "@FILE.npy" into memory."""
    path = text.removeprefix("@")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        message = f"{path!r} is not a .npy file that can be read: {error}"
        raise FileError(message, number) from error


def read(name: str, text: str, signature: Signature | None) -> NDArray[Any]:
    """Read "@FILE.npy", or JSON as an array of the dtype that the signature takes."""
    if signature is None:
        return load(text)
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    if name not in dtypes:
        there = ", ".join(map(str, signature.inputs))
        raise InvalidArgument(f"there is no input {name!r}; the signature takes {there}")
    dtype = numpy_dtype(dtypes[name])
    if text.startswith("@"):
        array = load(text)
        raw = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
        return array.view(dtype) if raw else array
    try:
        value = np.asarray(json.loads(text))
    except ValueError as error:
        hint = f"; did you mean @{text}?" if Path(text).exists() else f": {error}"
        raise InvalidArgument(f"input {name!r}: neither @FILE.npy nor JSON{hint}") from error
    return _cast(name, value, dtype)


# Which kinds of JSON values a kind of dtype takes without changing what they say.
_FROM_JSON = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iuf"}


def _cast(name: str, value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    integer = dtype.kind in "iu" or dtype.name in ("int4", "uint4")
    kind = "i" if integer else dtype.kind.replace("V", "f")
    if value.size and value.dtype.kind not in _FROM_JSON[kind]:
        raise InvalidArgument(f"input {name!r} takes {dtype.name}; {value.dtype} was given")
    if integer and value.size:
        limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        if int(value.min()) < limits.min or int(value.max()) > limits.max:
            raise InvalidArgument(
                f"input {name!r} takes {dtype.name}, {limits.min} to {limits.max}; "
                f"{value.min()} to {value.max()} was given"
            )
    if kind == "c":
        if value.shape[-1:] != (2,):
            raise InvalidArgument(f"input {name!r} takes {dtype.name}: give [real, imaginary]")
        value = value[..., 0] + 1j * value[..., 1]
    return value.astype(dtype)


def save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a .npz file, which appears once it is whole."""
    part = path.with_name(path.name + ".part")
    # numpy.savez takes the names as keywords, and so could not write an array called "file".
    with zipfile.ZipFile(part, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    part.replace(path)
