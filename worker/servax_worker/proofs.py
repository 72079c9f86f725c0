"""Remembers which versions were loaded, called and found right in a process of their own."""

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from servax.types import Version

_LOOK = 0.2  # seconds between two attempts to claim a version

log = structlog.get_logger(__name__)


class Proofs:
    """A folder of empty files, each named by the digest of what was proved and where."""

    def __init__(self, directory: Path, circumstances: Sequence[object]):
        """Makes the folder; raises OSError.

        `circumstances` are everything but the version that decides how loading goes.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._circumstances = tuple(circumstances)

    def has(self, version: Version) -> bool:
        """Whether the same programs, weights and declarations were proved before."""
        return self._path(version).exists()

    @asynccontextmanager
    async def claimed(self, version: Version) -> AsyncIterator[None]:
        """Waits until no other process that shares the folder is at proving the version."""
        with self._path(version).with_suffix(".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOOK)
            yield

    def keep(self, version: Version) -> None:
        """Remembers that the version was proved; where the disk is full, it will be once more."""
        try:
            self._path(version).touch()
        except OSError as error:
            log.warning("a proof cannot be kept", why=str(error))

    def _path(self, version: Version) -> Path:
        # What the registry finds out later makes no other version of it.
        signatures = [
            replace(signature, trial=None, compatibility=None, encodings=())
            for signature in version.signatures
        ]
        text = repr((signatures, version.weights, self._circumstances))
        return self._directory / hashlib.sha256(text.encode()).hexdigest()
