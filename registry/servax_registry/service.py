"""The registry's operations, free of transport."""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from servax_registry import names
from servax_registry.artifact import (
    Action,
    Blob,
    MissingBlob,
    Model,
    Program,
    Publication,
    Selection,
    Version,
    VersionName,
    WrittenIn,
)
from servax_registry.drafts import Drafts
from servax_registry.errors import (
    AliasMoved,
    BlobNotFound,
    BlobsNotStored,
    InvalidRequest,
    VersionInUse,
    listed,
)
from servax_registry.inspection import compatibility, inspect_program
from servax_registry.inspector import Inspector
from servax_registry.lookup import find_aliased, find_model, find_signature, find_version
from servax_registry.pages import Page, decode_token, encode_token, fill, page_limit
from servax_registry.publication import MAX_ALIASES, check_copy, check_publication, check_selection
from servax_registry.store.blobs import BlobStore
from servax_registry.store.changes import Changes, Recent
from servax_registry.store.database import Database
from servax_registry.store.inspections import Inspections
from servax_registry.store.versions import Versions

MAX_DIGESTS = 1000

# How many publications read their blobs at once; the others wait. A hostile one takes hundreds of
# megabytes, and seconds during which other calls get little of the processor.
_PUBLISHED_AT_ONCE = 2


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
        inspector = Inspector(database, self._blobs, inspect, allowed_custom_calls)
        self._drafts = Drafts(self._blobs, inspector, size_of)

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

    def publish_version(self, publication: Publication, *, actor: str = "") -> Version:
        """Make a version out of stored blobs, all or nothing.

        Raises InvalidRequest (InvalidName, InvalidProgram, InvalidWeights, Mismatch,
        VersionTooLarge), BlobsNotStored and StorageFull.
        """
        check_publication(publication)
        with self._database.read() as session:
            done = _requested(Versions(session), publication.request_id, publication.model)
        if done is not None:
            return done
        with self._drafting():
            draft = self._drafts.make(publication, actor)
        return self._add(draft, publication.request_id, Action.PUBLISH, actor)

    def copy_version(
        self,
        model: str,
        destination: str,
        *,
        version: int | None = None,
        alias: str | None = None,
        aliases: Sequence[str] = (),
        request_id: str | None = None,
        actor: str = "",
    ) -> Version:
        """Make a version of `destination` that has what another one has; no bytes are copied.

        Raises as get_version and publish_version do.
        """
        check_copy(destination, aliases, request_id)
        source = self.get_version(model, version, alias)
        draft = replace(
            source,
            model=destination,
            create_time=datetime.now(UTC),
            aliases=tuple(sorted(set(aliases))),
            creator=actor,
            copied_from=VersionName(source.model, source.number),
        )
        return self._add(draft, request_id, Action.COPY, actor)

    def add_encoding(
        self, model: str, version: int, signature: str, digest: str, *, actor: str = ""
    ) -> Version:
        """Add a program that other releases of JAX load to that of a signature.

        Adding the same one again changes nothing. Raises InvalidName, ModelNotFound,
        VersionNotFound, SignatureNotFound, InvalidProgram, Mismatch, VersionTooLarge,
        BlobsNotStored and StorageFull.
        """
        names.check_digest(digest)
        known = self.get_version(model, version)
        found = find_signature(known, signature)
        if digest in found.programs:
            return known
        with self._drafting():
            encoding = self._drafts.encode(known, found, digest)
        with self._database.write() as session:
            versions = Versions(session)
            known = find_version(versions, model, version)
            if digest in find_signature(known, signature).programs:
                return known
            versions.add_encoding(known, signature, encoding)
            Changes(session).record(actor, Action.ADD_ENCODING, model, version, detail=signature)
            return find_version(versions, model, version)

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

    def list_versions(
        self, selection: Selection, page_size: int = 0, page_token: str = ""
    ) -> Page[Version]:
        """List versions by model, newest first. Raises InvalidName and ModelNotFound."""
        check_selection(selection)
        listing = f"versions {hashlib.sha256(repr(selection).encode()).hexdigest()}"
        after = _position(decode_token(page_token, listing, str))
        with self._database.read() as session:
            versions = Versions(session)
            if selection.model:
                find_model(versions, selection.model)
            return fill(
                versions.versions(selection, _expiring(session, selection), after),
                page_size,
                self._size_of,
                lambda version: encode_token(listing, f"{version.number}:{version.model}"),
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
        self,
        model: str,
        alias: str,
        version: int,
        expected_version: int | None = None,
        *,
        actor: str = "",
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
            if now == version:
                return known
            versions.point(model, alias, version)
            _check_alias_count(versions, model)
            Changes(session).record(
                actor, Action.SET_ALIAS, model, version, alias=alias, previous_version=now
            )
            return find_model(versions, model)

    def delete_alias(self, model: str, alias: str, *, actor: str = "") -> Model:
        """Remove an alias. Raises InvalidName, ModelNotFound and AliasNotFound."""
        with self._database.write() as session:
            versions = Versions(session)
            before = find_aliased(find_model(versions, model), alias)
            versions.delete_alias(model, alias)
            Changes(session).record(
                actor, Action.DELETE_ALIAS, model, 0, alias=alias, previous_version=before
            )
            return find_model(versions, model)

    def delete_version(self, model: str, version: int, *, actor: str = "") -> Version:
        """Delete a version, which can be undeleted until it is collected.

        Its number is never given again. Raises InvalidName, ModelNotFound, VersionNotFound, and
        VersionInUse when an alias points to it.
        """
        with self._database.write() as session:
            versions = Versions(session)
            find_model(versions, model)
            found = find_version(versions, model, version)
            if found.aliases:
                raise VersionInUse(
                    f"version {version} of model {model!r} has the alias"
                    f"{'es' if len(found.aliases) > 1 else ''} {listed(found.aliases)}; point to "
                    "another version or delete the alias first"
                )
            return self._mark(session, found, datetime.now(UTC), Action.DELETE, actor)

    def undelete_version(self, model: str, version: int, *, actor: str = "") -> Version:
        """Bring a deleted version back. Raises InvalidName, ModelNotFound and VersionNotFound."""
        with self._database.write() as session:
            versions = Versions(session)
            find_model(versions, model)
            found = find_version(versions, model, version, deleted=True)
            if found.delete_time is None:
                return found
            return self._mark(session, found, None, Action.UNDELETE, actor)

    def list_changes(
        self, since: int, page_size: int = 0, model: str = "", alias: str = ""
    ) -> Recent:
        """Tell what changed behind a revision, of a model and its alias where they are named.

        What is named need not exist any more. Raises InvalidRequest.
        """
        if not 0 <= since < 1 << 63:
            raise InvalidRequest(
                f"revision {since} was never given; pass that of the answer before, or 0 for all"
            )
        if alias and not model:
            raise InvalidRequest(f"of which model is alias {alias!r}? name it")
        with self._database.read() as session:
            return Changes(session).since(since, page_limit(page_size), model, alias)

    @contextmanager
    def _drafting(self) -> Iterator[None]:
        """Take a turn; a blob that is collected meanwhile is one that is not stored."""
        try:
            with self._publishing:
                yield
        except BlobNotFound as error:
            raise BlobsNotStored(f"{error}; upload it once more") from error

    def _add(self, draft: Version, request_id: str | None, action: Action, actor: str) -> Version:
        """Give a draft its number, and store it."""
        with self._database.write() as session:
            versions, changes = Versions(session), Changes(session)
            # A retry may have come in while the first request was still being worked on.
            done = _requested(versions, request_id, draft.model)
            if done is not None:
                return done
            number = versions.next_number(draft.model, draft.create_time)
            version = replace(draft, number=number)
            before = versions.aliases(draft.model)
            versions.add(version, request_id)
            _check_alias_count(versions, draft.model)
            source = version.copied_from
            detail = f"{source.model}:{source.number}" if source else ""
            changes.record(actor, action, version.model, number, detail=detail)
            for alias in version.aliases:
                changes.record(
                    actor,
                    Action.SET_ALIAS,
                    version.model,
                    number,
                    alias=alias,
                    previous_version=before.get(alias, 0),
                )
        return version

    def _mark(
        self, session: Session, version: Version, time: datetime | None, action: Action, actor: str
    ) -> Version:
        Versions(session).mark_deleted(version.model, version.number, time)
        Changes(session).record(actor, action, version.model, version.number)
        return replace(version, delete_time=time)


def _requested(versions: Versions, request_id: str | None, model: str) -> Version | None:
    if request_id is None:
        return None
    version = versions.requested(request_id)
    if version is not None and version.model != model:
        raise InvalidRequest(
            f"request_id {request_id!a} was used to publish version {version.number} "
            f"of model {version.model!r}; choose a new one for every new request"
        )
    return version


def _expiring(session: Session, selection: Selection) -> Collection[str]:
    """Give what programs that expire before the selection's day were written in."""
    day = selection.expiring_before
    if day is None:
        return ()
    return [
        text
        for text in Inspections(session).written_in()
        if compatibility(WrittenIn.parse(text)).expires < day
    ]


def _position(key: str | None) -> VersionName | None:
    """Read where a listing goes on, out of a token's key."""
    if key is None:
        return None
    number, _, model = key.partition(":")
    if not number.isdecimal() or len(number) > 18:
        raise InvalidRequest("page_token was not made by this registry; pass it unchanged")
    return VersionName(model, int(number))


def _check_alias_count(versions: Versions, model: str) -> None:
    if len(versions.aliases(model)) > MAX_ALIASES:
        raise InvalidRequest(
            f"model {model!r} would have more than {MAX_ALIASES} aliases; delete some first"
        )
