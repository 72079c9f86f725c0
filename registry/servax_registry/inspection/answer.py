"""What the inspecting child tells its parent, as JSON: a program, or why there is none.

The parent does not trust the child, so that `decode` takes nothing but what `encode` makes.
"""

import dataclasses
import functools
import json
from types import GenericAlias
from typing import Any, get_args, get_type_hints

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram

# How the child ends when there is no memory left to answer. Any other status than 0 means that it
# never came to reading, which is no fault of the blob's.
OUT_OF_MEMORY = 81


class ReaderFailure(Exception):
    """The child met an exception that nobody foresaw; the message is its traceback."""


class MalformedAnswer(Exception):
    """The child wrote what `encode` never does."""


def encode(outcome: Program | InvalidProgram | ReaderFailure) -> bytes:
    """The answer for one inspection, as ASCII."""
    answer: dict[str, Any]
    match outcome:
        case Program():
            answer = {"program": dataclasses.asdict(outcome)}
        case InvalidProgram():
            answer = {"invalid": str(outcome)}
        case ReaderFailure():
            answer = {"failure": str(outcome)}
    return json.dumps(answer).encode("ascii")


def decode(answer: bytes) -> Program:
    """The program that an answer holds.

    Raises the child's InvalidProgram or ReaderFailure when it holds one, and MalformedAnswer when
    it is no answer.
    """
    try:
        match json.loads(answer):
            case {"program": program, **others} if not others:
                decoded: Program = _decode(program, Program)
                return decoded
            case {"invalid": reason, **others} if not others:
                raise InvalidProgram(_decode(reason, str))
            case {"failure": traceback, **others} if not others:
                raise ReaderFailure(_decode(traceback, str))
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(str(error)) from error
    raise MalformedAnswer("neither a program nor a reason")


_hints = functools.cache(get_type_hints)


def _decode(value: Any, kind: Any) -> Any:
    """`value` as an instance of `kind`: a dataclass, a tuple of one kind, str, int or bool."""
    if isinstance(kind, GenericAlias):
        (item_kind, _) = get_args(kind)
        if type(value) is list:
            return tuple(_decode(item, item_kind) for item in value)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if type(value) is dict and value.keys() == hints.keys():
            return kind(**{name: _decode(value[name], hint) for name, hint in hints.items()})
    elif type(value) is kind:
        if kind is str:
            value.encode("utf-8")  # JSON can spell lone surrogates; UnicodeError is a ValueError
        return value
    raise ValueError(f"expected {kind}, got {str(value)[:80]!r}")
