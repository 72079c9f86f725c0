"""Makes a version, all but its number, out of what a publisher sent and the blobs that it names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from servax_registry.artifact import (
    Blob,
    Encoding,
    GoldenExample,
    Program,
    ProgramSource,
    Publication,
    Signature,
    Version,
    WeightsShard,
)
from servax_registry.binding import bind
from servax_registry.declarations import check_batching, check_golden
from servax_registry.encodings import check_encoding
from servax_registry.errors import (
    BlobsNotStored,
    InvalidProgram,
    InvalidRequest,
    VersionTooLarge,
    listed,
)
from servax_registry.inspector import Inspector
from servax_registry.pages import MESSAGE_LIMIT
from servax_registry.store.blobs import BlobStore

# More tensors than this are not described within MESSAGE_LIMIT, however short their names.
_MAX_TENSORS = 100_000

# Every worker reads the golden example into memory, and runs it, before it serves a version.
_MAX_GOLDEN_SIZE = 256 << 20

_MAX_ENCODINGS = 16


class Drafts:
    """Describes versions as their blobs do; safe to use from any number of threads.

    `size_of` gives how many bytes a version takes in a message.
    """

    def __init__(
        self, blobs: BlobStore, inspector: Inspector, size_of: Callable[[Version], int]
    ) -> None:
        self._blobs = blobs
        self._inspector = inspector
        self._size_of = size_of

    def make(self, publication: Publication, creator: str) -> Version:
        """Give the version with the number 0.

        Raises InvalidProgram, InvalidWeights, Mismatch, VersionTooLarge, BlobsNotStored and
        StorageFull.
        """
        blobs = self._stored_blobs(publication.digests)
        programs = [
            (
                source.signature,
                blobs[source.digest],
                self._program(f"program of {source.signature!r}", blobs[source.digest]),
            )
            for source in publication.programs
        ]
        shards: list[WeightsShard] = []
        for digest in publication.weights:
            shards.append(self._inspector.shard(blobs[digest], "weights"))
            count = sum(len(shard.tensors) for shard in shards)
            if count > _MAX_TENSORS:
                raise VersionTooLarge(
                    f"the weights are {count} arrays or more, and at most {_MAX_TENSORS} make a "
                    "version; join small arrays into fewer large ones"
                )
        version = Version(
            model=publication.model,
            number=0,
            signatures=tuple(
                self._declared(signature, source, blobs)
                for signature, source in zip(
                    bind(programs, shards), publication.programs, strict=True
                )
            ),
            weights=tuple(shards),
            description=publication.description,
            labels=publication.labels,
            create_time=datetime.now(UTC),
            aliases=tuple(sorted(set(publication.aliases))),
            creator=creator,
            source_revision=publication.source_revision,
        )
        self._check_size(version)
        return version

    def encode(self, version: Version, signature: Signature, digest: str) -> Encoding:
        """Describe a further encoding of the program of one of a version's signatures.

        Raises InvalidProgram, Mismatch, VersionTooLarge, BlobsNotStored and StorageFull.
        """
        if len(signature.encodings) >= _MAX_ENCODINGS:
            raise VersionTooLarge(
                f"signature {signature.name!r} has {_MAX_ENCODINGS} encodings already, and no more "
                "fit one message"
            )
        blob = self._stored_blobs([digest])[digest]
        program = self._program(f"encoding of {signature.name!r}", blob)
        check_encoding(signature, program)
        encoding = Encoding(blob, program, datetime.now(UTC))
        grown = replace(signature, encodings=(*signature.encodings, encoding))
        others = [each for each in version.signatures if each.name != signature.name]
        self._check_size(replace(version, signatures=(*others, grown)))
        return encoding

    def _check_size(self, version: Version) -> None:
        size = self._size_of(version)
        if size > MESSAGE_LIMIT:
            raise VersionTooLarge(
                f"the description of this version takes {size} bytes, and at most {MESSAGE_LIMIT} "
                "fit one message; join small arrays into fewer large ones"
            )

    def _declared(
        self, signature: Signature, source: ProgramSource, blobs: Mapping[str, Blob]
    ) -> Signature:
        if source.batching is not None:
            check_batching(signature, source.batching)
        if source.golden is None:
            return replace(signature, batching=source.batching)
        blob = blobs[source.golden.digest]
        if blob.size > _MAX_GOLDEN_SIZE:
            raise InvalidRequest(
                f"the golden example {blob.digest} has {blob.size} bytes; at most "
                f"{_MAX_GOLDEN_SIZE} are taken: give fewer rows"
            )
        tensors = self._inspector.shard(blob, "golden example").tensors
        check_golden(signature, tensors)
        return replace(
            signature,
            batching=source.batching,
            golden=GoldenExample(blob, source.golden.rtol, source.golden.atol, tensors),
        )

    def _stored_blobs(self, digests: Sequence[str]) -> Mapping[str, Blob]:
        missing = self._blobs.find_missing(digests)
        if missing:
            raise BlobsNotStored(
                f"{len(missing)} of the version's {len(set(digests))} blobs are not stored: "
                f"{listed([blob.digest for blob in missing])}; upload them with WriteBlob first"
            )
        return {digest: self._blobs.get(digest) for digest in digests}

    def _program(self, what: str, blob: Blob) -> Program:
        try:
            return self._inspector.program(blob)
        except InvalidProgram as error:
            raise InvalidProgram(f"{what} ({blob.digest}): {error}") from error
