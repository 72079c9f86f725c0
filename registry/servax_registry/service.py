"""The registry's operations, free of transport."""

import difflib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from servax_registry import names
from servax_registry.artifact import (
    Blob,
    MissingBlob,
    Model,
    Program,
    Publication,
    Version,
    WeightsShard,
)
from servax_registry.binding import bind
from servax_registry.errors import (
    AliasMoved,
    AliasNotFound,
    BlobMissing,
    InvalidProgram,
    InvalidRequest,
    InvalidWeights,
    ModelNotFound,
    VersionInUse,
    VersionNotFound,
    VersionTooLarge,
    listed,
)
from servax_registry.inspection import (
    INSPECTION_VERSION,
    header_size,
    inspect_program,
    parse_safetensors_header,
)
from servax_registry.pages import MESSAGE_LIMIT, Page, decode_token, encode_token, fill
from servax_registry.publication import check_publication
from servax_registry.store.blobs import BlobStore
from servax_registry.store.database import Database
from servax_registry.store.versions import Versions

MAX_DIGESTS = 1000
MAX_ALIASES = 1000

# How many model names are searched for one that resembles an unknown one.
_NAMES_SEARCHED = 5000


class Registry:
    """Stores blobs and versions; safe to use from any number of threads.

    `inspect` reads a program out of a real file. `size_of` gives how many bytes a model or a
    version takes in a message.
    """

    def __init__(
        self,
        database: Database,
        *,
        size_of: Callable[[Model | Version], int],
        inspect: Callable[..., Program] = inspect_program,
    ) -> None:
        self._database = database
        self._blobs = BlobStore(database)
        self._size_of = size_of
        self._inspect = inspect

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

    def sweep(self) -> None:
        """Delete what an earlier process discarded and had no time to delete."""
        self._blobs.sweep()

    def publish_version(self, publication: Publication) -> Version:
        """Make a version out of stored blobs, all or nothing.

        Raises InvalidRequest (InvalidName, InvalidProgram, InvalidWeights, Mismatch,
        VersionTooLarge) and BlobMissing.
        """
        check_publication(publication)
        done = self._published(publication)
        if done is not None:
            return done
        blobs = self._stored_blobs(publication)
        programs = [
            (source.signature, blobs[source.digest], self._program(source.signature, source.digest))
            for source in publication.programs
        ]
        shards = [self._shard(blobs[digest]) for digest in publication.weights]
        now = datetime.now(UTC)
        version = Version(
            model=publication.model,
            number=0,
            signatures=bind(programs, shards),
            weights=tuple(shards),
            description=publication.description,
            labels=publication.labels,
            create_time=now,
            aliases=tuple(sorted(set(publication.aliases))),
        )
        size = self._size_of(version)
        if size > MESSAGE_LIMIT:
            raise VersionTooLarge(
                f"the description of this version takes {size} bytes, and at most {MESSAGE_LIMIT} "
                "fit one message; join small arrays into fewer large ones"
            )
        with self._database.write() as session:
            versions = Versions(session)
            # A retry may have come in while the first request was still being worked on.
            done = _requested(versions, publication)
            if done is not None:
                return done
            number = versions.next_number(publication.model, now)
            version = replace(version, number=number)
            versions.add(version, publication.request_id, INSPECTION_VERSION)
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
            return _model(Versions(session), name)

    def list_versions(self, model: str, page_size: int = 0, page_token: str = "") -> Page[Version]:
        """List the versions of one model, newest first. Raises InvalidName and ModelNotFound."""
        listing = f"versions of {model}"
        before = decode_token(page_token, listing, int)
        with self._database.read() as session:
            versions = Versions(session)
            _model(versions, model)
            return fill(
                versions.versions(model, before),
                page_size,
                self._size_of,
                lambda version: encode_token(listing, version.number),
            )

    def get_version(
        self, model: str, number: int | None = None, alias: str | None = None
    ) -> Version:
        """Get one version by number or by alias, or the latest when both are None.

        Raises InvalidName, ModelNotFound, AliasNotFound and VersionNotFound.
        """
        with self._database.read() as session:
            versions = Versions(session)
            known = _model(versions, model)
            if alias is not None:
                number = _aliased(known, alias)
            elif number is None:
                number = known.latest_version
            return _version(versions, model, number)

    def set_alias(
        self, model: str, alias: str, number: int, expected_number: int | None = None
    ) -> Model:
        """Point an alias to a version; only if it points to `expected_number` now, where given.

        An expected 0 means that the alias does not exist. Raises InvalidName, ModelNotFound,
        VersionNotFound and AliasMoved.
        """
        names.check_alias(alias)
        with self._database.write() as session:
            versions = Versions(session)
            known = _model(versions, model)
            _version(versions, model, number)
            now = known.aliases.get(alias, 0)
            if expected_number is not None and expected_number != now:
                raise AliasMoved(
                    f"alias {alias!r} of model {model!r} "
                    + (f"points to version {now}" if now else "does not exist")
                    + (f", not to {expected_number}" if now and expected_number else "")
                    + "; look again before you move it"
                )
            versions.point(model, alias, number)
            _check_alias_count(versions, model)
            return _model(versions, model)

    def delete_alias(self, model: str, alias: str) -> Model:
        """Remove an alias. Raises InvalidName, ModelNotFound and AliasNotFound."""
        with self._database.write() as session:
            versions = Versions(session)
            _aliased(_model(versions, model), alias)
            versions.delete_alias(model, alias)
            return _model(versions, model)

    def delete_version(self, model: str, number: int) -> None:
        """Delete a version; its number is never given again.

        Raises InvalidName, ModelNotFound, VersionNotFound, and VersionInUse when an alias points
        to it.
        """
        with self._database.write() as session:
            versions = Versions(session)
            known = _model(versions, model)
            aliases = _version(versions, model, number).aliases
            if aliases:
                raise VersionInUse(
                    f"version {number} of model {known.name!r} has the alias"
                    f"{'es' if len(aliases) > 1 else ''} {listed(aliases)}; point to another "
                    "version or delete the alias first"
                )
            versions.delete(model, number)

    def _published(self, publication: Publication) -> Version | None:
        with self._database.read() as session:
            return _requested(Versions(session), publication)

    def _stored_blobs(self, publication: Publication) -> Mapping[str, Blob]:
        digests = [source.digest for source in publication.programs] + list(publication.weights)
        missing = self._blobs.find_missing(digests)
        if missing:
            raise BlobMissing(
                f"{len(missing)} of the version's {len(set(digests))} blobs are not stored: "
                f"{listed([blob.digest for blob in missing])}; upload them with WriteBlob first"
            )
        return {digest: self._blobs.get(digest) for digest in digests}

    def _program(self, signature: str, digest: str) -> Program:
        """Inspect a program, once per blob."""
        with self._database.read() as session:
            known = Versions(session).inspection(digest, INSPECTION_VERSION)
        if known is not None:
            return known
        # A file without a name: the child process reads it, and nothing is left behind.
        with tempfile.TemporaryFile() as file:
            file.writelines(self._blobs.read(digest))
            file.flush()
            file.seek(0)
            try:
                program = self._inspect(file)
            except InvalidProgram as error:
                raise InvalidProgram(f"program of {signature!r} ({digest}): {error}") from error
        with self._database.write() as session:
            Versions(session).add_inspection(digest, INSPECTION_VERSION, program)
        return program

    def _shard(self, blob: Blob) -> WeightsShard:
        try:
            size = header_size(b"".join(self._blobs.read(blob.digest, 0, 8)), blob.size)
            head = b"".join(self._blobs.read(blob.digest, 0, size))
            return WeightsShard(blob, parse_safetensors_header(head, blob.size))
        except InvalidWeights as error:
            raise InvalidWeights(f"weights {blob.digest}: {error}") from error


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


def _model(versions: Versions, name: str) -> Model:
    names.check_model(name)
    model = versions.model(name)
    if model is None:
        raise ModelNotFound(f"there is no model {name!r}; {_similar(versions, name)}")
    return model


def _similar(versions: Versions, name: str) -> str:
    existing = versions.model_names(_NAMES_SEARCHED)
    similar = difflib.get_close_matches(name, existing, n=5)
    if similar:
        return f"did you mean {listed(similar)}?"
    return f"there are {listed(existing)}" if existing else "none has been published yet"


def _version(versions: Versions, model: str, number: int) -> Version:
    # No version has the number 0, which stands for the latest of none.
    version = versions.version(model, number) if number else None
    if version is None:
        existing = versions.numbers(model, limit=1000)
        raise VersionNotFound(
            f"model {model!r} has no version{f' {number}' if number else ''}; "
            + (
                f"it has {listed([str(number) for number in existing])}"
                if existing
                else "all were deleted"
            )
        )
    return version


def _aliased(model: Model, alias: str) -> int:
    names.check_alias(alias)
    if alias not in model.aliases:
        raise AliasNotFound(
            f"model {model.name!r} has no alias {alias!r}; "
            + (f"it has {listed(list(model.aliases))}" if model.aliases else "it has none")
        )
    return model.aliases[alias]
