"""What one client asks of a registry, and what the registry must hold after that."""

import random
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from servax import Action, Change

MIB = 1 << 20

Operation = tuple[Any, ...]


@dataclass
class State:
    """What the registry holds of one client's.

    Versions and deleted versions are those of one model, by number, with the label that the client
    gave them; aliases point to numbers; uploads are blobs that no version needs.
    """

    last_number: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    deleted: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    uploads: set[tuple[int, int]] = field(default_factory=set)

    def after(self, operation: Operation | None) -> "State":
        """Give what is held once the operation, if any, has happened."""
        state = deepcopy(self)
        match operation:
            case ("upload", seed, size):
                state.uploads.add((seed, size))
            case ("publish", label, alias):
                state.last_number += 1
                state.versions[state.last_number] = label
                state.aliases[alias] = state.last_number
            case ("alias", alias, number):
                state.aliases[alias] = number
            case ("unalias", alias):
                del state.aliases[alias]
            case ("delete", number):
                state.deleted[number] = state.versions.pop(number)
            case ("undelete", number):
                state.versions[number] = state.deleted.pop(number)
        return state

    def choose(self, rng: random.Random, label: str) -> Operation:
        """Choose an operation that is possible."""
        deletable = sorted(self.versions.keys() - set(self.aliases.values()))
        possible: list[Operation] = [
            ("upload", rng.randrange(1 << 30), rng.randrange(12 * MIB)),
            ("publish", label, f"a{rng.randrange(3)}"),
        ]
        if self.versions:
            number = rng.choice(sorted(self.versions))
            possible.append(("alias", f"a{rng.randrange(3)}", number))
        if self.aliases:
            possible.append(("unalias", rng.choice(sorted(self.aliases))))
        if deletable:
            possible.append(("delete", rng.choice(deletable)))
        if self.deleted:
            possible.append(("undelete", rng.choice(sorted(self.deleted))))
        return rng.choice(possible)

    def fits(self, found: "State", *, collecting: bool) -> bool:
        """Tell whether this is what was found; uploads aside, which are told apart by content.

        Where garbage was collected meanwhile, deleted versions may be gone.
        """
        return (
            (self.last_number, self.versions, self.aliases)
            == (found.last_number, found.versions, found.aliases)
        ) and (
            found.deleted.items() <= self.deleted.items()
            if collecting
            else found.deleted == self.deleted
        )


def replayed(changes: Iterable[Change]) -> State:
    """Give what the changes of one model lead to; versions are without their labels."""
    state = State()
    for change in changes:
        match change.action:
            case Action.PUBLISH:
                state.last_number = change.version
                state.versions[change.version] = ""
            case Action.DELETE:
                state.deleted[change.version] = state.versions.pop(change.version)
            case Action.UNDELETE:
                state.versions[change.version] = state.deleted.pop(change.version)
            case Action.COLLECT:
                del state.deleted[change.version]
            case Action.SET_ALIAS:
                assert state.aliases.get(change.alias, 0) == change.previous_version, change
                state.aliases[change.alias] = change.version
            case Action.DELETE_ALIAS:
                assert state.aliases.pop(change.alias) == change.previous_version, change
            case _:
                raise AssertionError(f"nobody asked for {change}")
    return state
