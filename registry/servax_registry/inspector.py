"""Reads what stored blobs say of themselves."""

import errno
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from servax_registry.artifact import Blob, Program, WeightsShard
from servax_registry.errors import InvalidProgram, InvalidWeights, StorageFull
from servax_registry.inspection import (
    INSPECTION_VERSION,
    PREFIX_SIZE,
    header_size,
    parse_safetensors_header,
    refuse_unportable,
)
from servax_registry.store.blobs import BlobStore
from servax_registry.store.database import Database
from servax_registry.store.inspections import Inspections

# JAX serializes a program as one flatbuffer, which cannot be larger.
MAX_PROGRAM_SIZE = (1 << 31) - 1


class Inspector:
    """Reads programs and weights out of the stored blobs; safe to use from any number of threads.

    `inspect` reads a program out of a real file. `allowed_custom_calls` are targets beyond those
    that JAX keeps stable.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        inspect: Callable[..., Program],
        allowed_custom_calls: Collection[str],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._inspect = inspect
        self._allowed_custom_calls = allowed_custom_calls

    def program(self, blob: Blob) -> Program:
        """Read a program that can run elsewhere. Raises InvalidProgram and StorageFull."""
        program = self._inspected(blob)
        refuse_unportable(program, allowed=self._allowed_custom_calls)
        return program

    def _inspected(self, blob: Blob) -> Program:
        """Read a program, once per blob."""
        with self._database.read() as session:
            known = Inspections(session).get(blob.digest, INSPECTION_VERSION)
        if known is not None:
            return known
        if blob.size > MAX_PROGRAM_SIZE:
            raise InvalidProgram(
                f"{blob.size} bytes are no jax.export blob, which has {MAX_PROGRAM_SIZE} at most; "
                "push large weights beside the program"
            )
        with program_file(self._blobs, blob) as file:
            program = self._inspect(file)
        with self._database.write() as session:
            Inspections(session).add(blob.digest, INSPECTION_VERSION, program)
        return program

    def shard(self, blob: Blob, what: str) -> WeightsShard:
        """Read which tensors a safetensors blob holds, which messages call `what`.

        Raises InvalidWeights.
        """
        try:
            first = b"".join(self._blobs.read(blob.digest, 0, PREFIX_SIZE))
            size = header_size(first, blob.size)
            head = b"".join(self._blobs.read(blob.digest, 0, size))
            return WeightsShard(blob, parse_safetensors_header(head, blob.size))
        except InvalidWeights as error:
            raise InvalidWeights(f"{what} {blob.digest}: {error}") from error


@contextmanager
def program_file(blobs: BlobStore, blob: Blob) -> Iterator[BinaryIO]:
    """Give the bytes of a stored program as a file, for a child process. Raises StorageFull."""
    try:
        # A file without a name: nothing is left behind.
        with tempfile.TemporaryFile() as file:
            file.writelines(blobs.read(blob.digest))
            file.flush()
            file.seek(0)
            yield file
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFull(
            f"the registry has no room in {tempfile.gettempdir()} to inspect a program of "
            f"{blob.size} bytes; its operator has to make some"
        ) from error
