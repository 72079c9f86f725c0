"""Which version each reference pointed to last, for when the registry cannot tell."""

from pathlib import Path

import structlog

from servax.convert import version_from_bytes, version_to_bytes
from servax.reference import ModelReference
from servax.types import Version

log = structlog.get_logger(__name__)


class KnownVersions:
    """A folder with a file for each reference: the version that was served last under it."""

    def __init__(self, directory: Path):
        """Makes the folder, readable by its owner only; raises OSError."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory

    def find(self, reference: ModelReference) -> Version | None:
        """The version that was kept; None where none was, or where it cannot be read."""
        path = self._path(reference)
        try:
            return version_from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("a kept version cannot be read", path=str(path), why=str(error))
            return None

    def keep(self, reference: ModelReference, version: Version) -> None:
        """Remembers a version; where the disk is full, the one before stays remembered."""
        path = self._path(reference)
        temporary = path.with_name(path.name + ".new")
        try:
            temporary.write_bytes(version_to_bytes(version))
            temporary.replace(path)
        except OSError as error:
            log.warning("a version cannot be kept", path=str(path), why=str(error))

    def _path(self, reference: ModelReference) -> Path:
        return self._directory / str(reference)
