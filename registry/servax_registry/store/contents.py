"""What every place that keeps the bytes of blobs has in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session

# The most bytes that one part of an upload, one chunk, or one piece of a download may have.
CHUNK_SIZE = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where the bytes of a blob, or of an unfinished upload, lie.

    `key` is that of its row. `folder` holds its objects outside of the database, and is None where
    its bytes are chunks in the database.
    """

    key: int
    digest: str
    folder: str | None


class Staged(Protocol):
    """Bytes that are kept, but belong to no blob before a transaction adds them."""

    def add(self, session: Session) -> None:
        """Make them part of their blob once the session's transaction is committed."""

    def drop(self) -> None:
        """Delete them; they were not added, and never will be. Raises nothing."""


class Contents(Protocol):
    """Keeps bytes of blobs; safe to use from any number of threads and processes.

    Everything raises StorageUnavailable when the bytes cannot be reached at the moment.
    """

    # How many groups of one upload may be staged at once.
    in_flight: int

    def stage(self, place: Place, begin: int, parts: Sequence[bytes]) -> Staged:
        """Keep bytes that follow one another, from byte `begin` of the blob on.

        They outlive the machine's crash no later than the transaction that adds them.
        """

    def read(self, place: Place, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `begin` to `end` in order; no transaction is open between two items.

        Raises BlobDamaged where some are missing.
        """

    def tidy(self, place: Place) -> None:
        """Delete what was staged for a complete blob and never added."""

    def clear(self, place: Place) -> None:
        """Delete all bytes of what was discarded, in short transactions."""
