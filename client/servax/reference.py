"""How people name a version: `name`, `name:3` or `name@production`."""

import re
from dataclasses import dataclass
from typing import Self

from servax.errors import InvalidReference

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")
_LARGEST = 2**63 - 1


def check(name: str, *, version: int | None = None, alias: str | None = None) -> None:
    """Raise InvalidReference for a model's name, a version's number or an alias that cannot be."""
    if not _NAME.fullmatch(name):
        raise InvalidReference(
            f"{name!r} is not a model's name: use 1 to 128 of a-z 0-9 . _ - and begin with a "
            "letter or a digit"
        )
    if version is not None and not 1 <= version <= _LARGEST:
        raise InvalidReference(f"{version} is not a version: they count from 1")
    if alias is not None and not _ALIAS.fullmatch(alias):
        raise InvalidReference(
            f"{alias!r} is not an alias: use 1 to 128 of a-z 0-9 . _ - and begin with a letter"
        )


@dataclass(frozen=True)
class ModelReference:
    """A model and, where given, which of its versions: by number or by alias, not both.

    >>> ModelReference.parse("mnist@production")
    ModelReference(name='mnist', version=None, alias='production')
    >>> str(ModelReference("mnist", version=3))
    'mnist:3'

    Raises InvalidReference for a name, number or alias that cannot exist.
    """

    name: str
    version: int | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        check(self.name, version=self.version, alias=self.alias)
        if self.version is not None and self.alias is not None:
            raise InvalidReference("give a version's number or an alias, not both")

    @classmethod
    def parse(cls, text: str | Self) -> Self:
        """Read `name`, `name:3` or `name@alias`; a reference is given back as it is."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise InvalidReference(f"expected a text such as 'name:3', got {type(text).__name__}")
        if "@" in text:
            name, _, alias = text.partition("@")
            return cls(name, alias=alias)
        name, colon, number = text.partition(":")
        if not colon:
            return cls(name)
        if not _NUMBER.fullmatch(number):
            raise InvalidReference(
                f"{number!r} in {text!r} is not a version's number; an alias is written "
                "'name@alias'"
            )
        return cls(name, version=int(number))

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.name}:{self.version}"
        return self.name if self.alias is None else f"{self.name}@{self.alias}"
