"""What the children tell their parent, as JSON: a program, or why there is none; a trial.

The parent does not trust them: what is decoded is nothing but what is encoded here.
"""

import dataclasses
import functools
import json
from types import GenericAlias
from typing import Any, get_args, get_type_hints

from servax_registry.artifact import Program, Trial
from servax_registry.errors import InvalidProgram


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
                decoded: Program = build(program, Program)
                return decoded
            case {"invalid": reason, **others} if not others:
                raise InvalidProgram(build(reason, str))
            case {"failure": traceback, **others} if not others:
                raise ReaderFailure(build(traceback, str))
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(str(error)) from error
    raise MalformedAnswer("neither a program nor a reason")


_hints = functools.cache(get_type_hints)


def encode_trial(trial: Trial) -> bytes:
    """The answer for one trial, as ASCII."""
    return json.dumps(dataclasses.asdict(trial)).encode("ascii")


def decode_trial(answer: bytes) -> Trial:
    """The trial that an answer holds; raises MalformedAnswer when it holds none."""
    try:
        trial: Trial = build(json.loads(answer), Trial)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(str(error)) from error
    return trial


def build(value: Any, kind: Any) -> Any:
    """`value`, out of JSON, as a `kind`: a dataclass, a tuple of one kind, str, int or bool.

    Raises ValueError when it is none.
    """
    if isinstance(kind, GenericAlias):
        (item_kind, _) = get_args(kind)
        if type(value) is list:
            return tuple(build(item, item_kind) for item in value)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if type(value) is dict and value.keys() == hints.keys():
            return kind(**{name: build(value[name], hint) for name, hint in hints.items()})
    elif type(value) is kind:
        if kind is str:
            value.encode("utf-8")  # JSON can spell lone surrogates; UnicodeError is a ValueError
        return value
    raise ValueError(f"expected {kind}, got {str(value)[:80]!r}")
