"""What is asked of arguments before anything is sent."""

import os
from collections.abc import Iterable
from typing import TypeVar

from servax.errors import InvalidArgument

T = TypeVar("T")


def items(argument: str, value: Iterable[T]) -> list[T]:
    """Give the items of an argument.

    Raises InvalidArgument for a lone text or path: its characters would be taken for the items.
    """
    if isinstance(value, str | bytes | os.PathLike):
        raise InvalidArgument(f"{argument} takes a list: {argument}=[{os.fspath(value)!r}]")
    return list(value)
