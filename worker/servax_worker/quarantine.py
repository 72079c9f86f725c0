"""Versions that are not to be loaded, for the serving process hung or crashed with them."""

from collections.abc import Callable, Iterable

from servax.types import VersionName
from servax_worker.errors import CannotServe


class Quarantine:
    """What the supervisor told the serving process not to load, less what was pardoned since."""

    def __init__(self, versions: Iterable[str] = (), changed: Callable[[], None] = lambda: None):
        """`versions` are written as in "lm:3"; `changed` is called after a pardon."""
        self._versions = set(versions)
        self._changed = changed
        self.pardoned: set[str] = set()
        """What was quarantined and may be loaded again."""

    def check(self, name: VersionName) -> None:
        """Raises CannotServe where the version is not to be loaded."""
        if str(name) in self._versions:
            raise CannotServe(
                f"{name} is quarantined: the serving process hung or crashed several times while "
                f"it ran; the worker's log tells how. Move to another version, or load it "
                f"explicitly ('servax load') to try it once more"
            )

    def pardon(self, name: VersionName) -> None:
        """Lets a version be loaded again; one that is not quarantined stays as it is."""
        if str(name) in self._versions:
            self._versions.remove(str(name))
            self.pardoned.add(str(name))
            self._changed()
