"""What a serving process leaves to the one that takes its place."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from servax.reference import ModelReference


@dataclass(frozen=True)
class Handover:
    """What is served now, and which versions, as in "lm:3", somebody wants in spite of all."""

    models: tuple[ModelReference, ...]
    pardoned: frozenset[str]

    @classmethod
    def of(cls, models: Iterable[ModelReference], pardoned: Iterable[str]) -> Self:
        """Makes one of any collections."""
        return cls(tuple(models), frozenset(pardoned))

    @classmethod
    def decode(cls, memo: bytes) -> Self:
        """Reads what `encode` gave."""
        found = json.loads(memo)
        return cls.of(map(ModelReference.parse, found["models"]), found["pardoned"])

    def encode(self) -> bytes:
        """Bytes to leave as the memo of `activity.Activity`."""
        document = {"models": list(map(str, self.models)), "pardoned": sorted(self.pardoned)}
        return json.dumps(document).encode()
