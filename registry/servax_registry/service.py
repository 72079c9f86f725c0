"""The registry's operations, free of transport."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from servax_registry import names
from servax_registry.artifact import (
    Blob,
    MissingBlob,
    Model,
    Program,
    ProgramSource,
    Publication,
    Version,
    WeightsShard,
)
from servax_registry.binding import bind
from servax_registry.errors import (
    AliasMoved,
    BlobsNotStored,
    InvalidProgram,
    InvalidRequest,
    VersionInUse,
    VersionTooLarge,
    listed,
)
from servax_registry.inspection import inspect_program
from servax_registry.inspector import Inspector
from servax_registry.lookup import find_aliased, find_model, find_version
from servax_registry.pages import MESSAGE_LIMIT, Page, decode_token, encode_token, fill
from servax_registry.publication import MAX_ALIASES, check_publication
from servax_registry.store.blobs import BlobStore
from servax_registry.store.database import Database
from servax_registry.store.versions import Versions

MAX_DIGESTS = 1000

# How many publications read their blobs at once; the others wait. A hostile one takes hundreds of
# megabytes, and seconds during which other calls get little of the processor.
_PUBLISHED_AT_ONCE = 2

# More tensors than this are not described within MESSAGE_LIMIT, however short their names.
_MAX_TENSORS = 100_000


class Registry:
    """Stores blobs and versions; safe to use from any number of threads.

    `inspect` reads a program out of a real file. `size_of` gives how many bytes a model or a
    version takes in a message. `allowed_custom_calls` are targets that programs may call beyond
    those that JAX keeps stable.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore | None = None,
        *,
        size_of: Callable[[Model | Version], int],
        inspect: Callable[..., Program] = inspect_program,
        allowed_custom_calls: Collection[str] = (),
    ) -> None:
        self._database = database
        self._blobs = BlobStore(database) if blobs is None else blobs
        self._size_of = size_of
        self._publishing = threading.Semaphore(_PUBLISHED_AT_ONCE)
        self._inspector = Inspector(database, self._blobs, inspect, allowed_custom_calls)

    def find_missing_blobs(self, digests: Sequence[str]) -> tuple[MissingBlob, ...]:
        """Tell which blobs are not stored and where interrupted uploads of them continue."""
        if len(digests) > MAX_DIGESTS:
            raise InvalidRequest(
                f"{len(digests)} digests were given; ask for at most {MAX_DIGESTS} at once"
            )
        for digest in digests:
            names.check_digest(digest)
        return self._blobs.find_missing(digests)

    def write_blob(self, blob: Blob, parts: Iterable[tuple[int, bytes]]) -> Blob:
        """Store a blob out of (offset, bytes) pairs; see BlobStore.write."""
        names.check_digest(blob.digest)
        return self._blobs.write(blob, parts)

    def read_blob(self, digest: str, offset: int = 0, limit: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a blob; see BlobStore.read."""
        names.check_digest(digest)
        return self._blobs.read(digest, offset, limit)

    def publish_version(self, publication: Publication) -> Version:
        """Make a version out of stored blobs, all or nothing.

        Raises InvalidRequest (InvalidName, InvalidProgram, InvalidWeights, Mismatch,
        VersionTooLarge), BlobsNotStored and StorageFull.
        """
        check_publication(publication)
        done = self._published(publication)
        if done is not None:
            return done
        with self._publishing:
            version = self._read(publication)
        with self._database.write() as session:
            versions = Versions(session)
            # A retry may have come in while the first request was still being worked on.
            done = _requested(versions, publication)
            if done is not None:
                return done
            number = versions.next_number(publication.model, version.create_time)
            version = replace(version, number=number)
            versions.add(version, publication.request_id, self._inspector.version)
            _check_alias_count(versions, publication.model)
        return version

    def list_models(self, page_size: int = 0, page_token: str = "") -> Page[Model]:
        """List models by name."""
        after = decode_token(page_token, "models", str)
        with self._database.read() as session:
            return fill(
                Versions(session).models(after),
                page_size,
                self._size_of,
                lambda model: encode_token("models", model.name),
            )

    def get_model(self, name: str) -> Model:
        """Get one model. Raises InvalidName and ModelNotFound."""
        with self._database.read() as session:
            return find_model(Versions(session), name)

    def list_versions(self, model: str, page_size: int = 0, page_token: str = "") -> Page[Version]:
        """List the versions of one model, newest first. Raises InvalidName and ModelNotFound."""
        listing = f"versions of {model}"
        before = decode_token(page_token, listing, int)
        with self._database.read() as session:
            versions = Versions(session)
            find_model(versions, model)
            return fill(
                versions.versions(model, before),
                page_size,
                self._size_of,
                lambda version: encode_token(listing, version.number),
            )

    def get_version(
        self, model: str, version: int | None = None, alias: str | None = None
    ) -> Version:
        """Get one version by number or by alias, or the latest when both are None.

        Raises InvalidName, ModelNotFound, AliasNotFound and VersionNotFound.
        """
        with self._database.read() as session:
            versions = Versions(session)
            known = find_model(versions, model)
            if alias is not None:
                version = find_aliased(known, alias)
            elif version is None:
                version = known.latest_version
            return find_version(versions, model, version)

    def set_alias(
        self, model: str, alias: str, version: int, expected_version: int | None = None
    ) -> Model:
        """Point an alias to a version; only if it points to `expected_version` now, where given.

        An expected 0 means that the alias does not exist. Raises InvalidName, ModelNotFound,
        VersionNotFound and AliasMoved.
        """
        names.check_alias(alias)
        with self._database.write() as session:
            versions = Versions(session)
            known = find_model(versions, model)
            find_version(versions, model, version)
            now = known.aliases.get(alias, 0)
            if expected_version is not None and expected_version != now:
                raise AliasMoved(
                    f"alias {alias!r} of model {model!r} "
                    + (f"points to version {now}" if now else "does not exist")
                    + (f", not to {expected_version}" if now and expected_version else "")
                    + "; look again before you move it"
                )
            versions.point(model, alias, version)
            _check_alias_count(versions, model)
            return find_model(versions, model)

    def delete_alias(self, model: str, alias: str) -> Model:
        """Remove an alias. Raises InvalidName, ModelNotFound and AliasNotFound."""
        with self._database.write() as session:
            versions = Versions(session)
            find_aliased(find_model(versions, model), alias)
            versions.delete_alias(model, alias)
            return find_model(versions, model)

    def delete_version(self, model: str, version: int) -> None:
        """Delete a version; its number is never given again.

        Raises InvalidName, ModelNotFound, VersionNotFound, and VersionInUse when an alias points
        to it.
        """
        with self._database.write() as session:
            versions = Versions(session)
            known = find_model(versions, model)
            aliases = find_version(versions, model, version).aliases
            if aliases:
                raise VersionInUse(
                    f"version {version} of model {known.name!r} has the alias"
                    f"{'es' if len(aliases) > 1 else ''} {listed(aliases)}; point to another "
                    "version or delete the alias first"
                )
            versions.delete(model, version)

    def _published(self, publication: Publication) -> Version | None:
        with self._database.read() as session:
            return _requested(Versions(session), publication)

    def _read(self, publication: Publication) -> Version:
        """Give the version without its number, as its blobs describe it."""
        blobs = self._stored_blobs(publication)
        programs = [
            (source.signature, blobs[source.digest], self._program(source, blobs[source.digest]))
            for source in publication.programs
        ]
        shards: list[WeightsShard] = []
        for digest in publication.weights:
            shards.append(self._inspector.shard(blobs[digest]))
            count = sum(len(shard.tensors) for shard in shards)
            if count > _MAX_TENSORS:
                raise VersionTooLarge(
                    f"the weights are {count} arrays or more, and at most {_MAX_TENSORS} make a "
                    "version; join small arrays into fewer large ones"
                )
        version = Version(
            model=publication.model,
            number=0,
            signatures=bind(programs, shards),
            weights=tuple(shards),
            description=publication.description,
            labels=publication.labels,
            create_time=datetime.now(UTC),
            aliases=tuple(sorted(set(publication.aliases))),
        )
        size = self._size_of(version)
        if size > MESSAGE_LIMIT:
            raise VersionTooLarge(
                f"the description of this version takes {size} bytes, and at most {MESSAGE_LIMIT} "
                "fit one message; join small arrays into fewer large ones"
            )
        return version

    def _stored_blobs(self, publication: Publication) -> Mapping[str, Blob]:
        digests = [source.digest for source in publication.programs] + list(publication.weights)
        missing = self._blobs.find_missing(digests)
        if missing:
            raise BlobsNotStored(
                f"{len(missing)} of the version's {len(set(digests))} blobs are not stored: "
                f"{listed([blob.digest for blob in missing])}; upload them with WriteBlob first"
            )
        return {digest: self._blobs.get(digest) for digest in digests}

    def _program(self, source: ProgramSource, blob: Blob) -> Program:
        try:
            return self._inspector.program(blob)
        except InvalidProgram as error:
            raise InvalidProgram(
                f"program of {source.signature!r} ({source.digest}): {error}"
            ) from error


def _requested(versions: Versions, publication: Publication) -> Version | None:
    if publication.request_id is None:
        return None
    version = versions.requested(publication.request_id)
    if version is not None and version.model != publication.model:
        raise InvalidRequest(
            f"request_id {publication.request_id!a} was used to publish version {version.number} "
            f"of model {version.model!r}; choose a new one for every new request"
        )
    return version


def _check_alias_count(versions: Versions, model: str) -> None:
    if len(versions.aliases(model)) > MAX_ALIASES:
        raise InvalidRequest(
            f"model {model!r} would have more than {MAX_ALIASES} aliases; delete some first"
        )
