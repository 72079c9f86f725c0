"""What the parameters of requests and arrays mean; those that are not named here are ignored."""

import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from servax.types import DEFAULT_SIGNATURE
from servax_worker.errors import InvalidInput, Unsupported
from servax_worker.protocols.oip.shared_memory import Place

Parameters: TypeAlias = Mapping[str, Any]
"""Values by name: truth values, numbers and texts."""


_LONGEST = 2**63  # in microseconds: a float can hold it, and nobody waits for it


def signature_of(parameters: Parameters) -> str:
    """The signature to call; raises InvalidInput."""
    name = parameters.get("signature", "")
    if not isinstance(name, str):
        raise InvalidInput(f"parameter 'signature' is {name!r}; give the name of a signature")
    return name or DEFAULT_SIGNATURE


def deadline_of(parameters: Parameters, seconds_left: float | None = None) -> float | None:
    """When the caller stops waiting, in the seconds of `time.monotonic()`; raises InvalidInput.

    That is in as many microseconds as "timeout" says, 0 for any number, or earlier where the call
    has only `seconds_left`.
    """
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise InvalidInput(f"parameter 'timeout' is {timeout!r}; give microseconds")
    seconds = [min(timeout, _LONGEST) / 1e6] if timeout else []
    seconds += [] if seconds_left is None else [seconds_left]
    return time.monotonic() + min(seconds) if seconds else None


def place_of(parameters: Parameters) -> Place | None:
    """Where in shared memory an array lies; None where it does not. Raises InvalidInput."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str):
        raise InvalidInput(f"parameter 'shared_memory_region' is {region!r}; give a name")
    numbers = []
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        number = parameters.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidInput(f"parameter '{name}' is {number!r}; give a number of bytes")
        numbers.append(number)
    return Place(region, *numbers)


def refuse_classification(parameters: Parameters) -> None:
    """Raises Unsupported where an output is to be given as its highest classes."""
    if "classification" in parameters:
        raise Unsupported(
            "parameter 'classification': outputs are given as they are; sort them where you call"
        )
