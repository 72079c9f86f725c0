"""What a call to the registry consists of."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TypeVar

from servax import convert
from servax._calls.arguments import items
from servax._calls.methods import (
    ADD_ENCODING,
    COPY_VERSION,
    DELETE_ALIAS,
    DELETE_VERSION,
    GET_MODEL,
    GET_VERSION,
    LIST_CHANGES,
    LIST_MODELS,
    LIST_VERSIONS,
    PUBLISH_VERSION,
    SET_ALIAS,
    UNDELETE_VERSION,
)
from servax._calls.steps import Steps, call, work
from servax._calls.transfers import download, upload
from servax._files import Source, make_directory, source
from servax.errors import InvalidArgument, InvalidReference, NotFound
from servax.reference import ModelReference, check
from servax.types import (
    DEFAULT_SIGNATURE,
    Batching,
    Blob,
    Change,
    Content,
    FilePath,
    Golden,
    Model,
    ProgressCallback,
    Version,
)
from servax_proto.v1 import registry_pb2

T = TypeVar("T")


def push(
    model: str,
    program: Content | Mapping[str, Content],
    weights: Iterable[FilePath],
    aliases: Iterable[str],
    description: str,
    labels: Mapping[str, str],
    source_revision: str,
    batching: Batching | Mapping[str, Batching] | None,
    golden: Golden | Mapping[str, Golden] | None,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[Version]:
    """Upload what the registry lacks, then make a version of it."""
    programs = program if isinstance(program, Mapping) else {DEFAULT_SIGNATURE: program}
    # Everything that can be wrong here is found before anything is sent.
    check(model)
    if not programs:
        raise InvalidArgument("a version needs at least one program")
    weights, aliases = items("weights", weights), items("aliases", aliases)
    for alias in aliases:
        check(model, alias=alias)
    batched = _by_signature("batching", batching, programs)
    examples = _by_signature("golden", golden, programs)
    sources = yield from work(lambda: {key: source(it, key) for key, it in programs.items()})
    goldens = yield from work(
        lambda: {key: source(it.content, f"golden of {key}") for key, it in examples.items()}
    )
    shards = yield from work(lambda: [source(path, str(path)) for path in weights])

    request = registry_pb2.PublishVersionRequest(
        model=model,
        description=description,
        labels=labels,
        aliases=aliases,
        request_id=str(uuid.uuid4()),
        source_revision=source_revision,
    )
    for signature, origin in sources.items():
        blob = yield from upload(origin, timeout, report)
        added = request.programs.add(signature=signature, digest=blob.digest)
        if signature in batched:
            added.batching.CopyFrom(convert.batching_to_proto(batched[signature]))
        if signature in goldens:
            blob = yield from upload(goldens[signature], timeout, report)
            example = examples[signature]
            added.golden.digest = blob.digest
            added.golden.rtol, added.golden.atol = example.rtol, example.atol
    for shard in shards:
        blob = yield from upload(shard, timeout, report)
        request.weights.append(blob.digest)
    return convert.version_from_proto((yield from call(PUBLISH_VERSION, request, timeout)))


def _by_signature(
    what: str, value: T | Mapping[str, T] | None, programs: Mapping[str, object]
) -> Mapping[str, T]:
    """Give what is declared of each signature; a lone value is that of the only one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        if len(programs) > 1:
            raise InvalidArgument(
                f"of which of {', '.join(programs)} is the {what}? give a mapping from signatures"
            )
        return {next(iter(programs)): value}
    for signature in value:
        if signature not in programs:
            raise InvalidArgument(
                f"{what} is given for {signature!r}, which is none of {', '.join(programs)}"
            )
    return value


def upload_file(
    path: FilePath, timeout: float | None, report: ProgressCallback | None
) -> Steps[Blob]:
    """Store a file as a blob."""
    origin: Source = yield from work(lambda: source(path, str(path)))
    return (yield from upload(origin, timeout, report))


def list_models(token: str, timeout: float | None) -> Steps[tuple[list[Model], str]]:
    """Get one page and the token of the next, empty on the last."""
    request = registry_pb2.ListModelsRequest(page_token=token)
    response = yield from call(LIST_MODELS, request, timeout)
    return [convert.model_from_proto(model) for model in response.models], response.next_page_token


def versions_request(
    model: str | None,
    labels: Mapping[str, str] | None,
    platform: str | None,
    created_from: datetime | None,
    created_before: datetime | None,
    expiring_before: date | None,
    deleted: bool,
) -> registry_pb2.ListVersionsRequest:
    """Write which versions are asked for."""
    if model is not None:
        check(model)
    return registry_pb2.ListVersionsRequest(
        model=model or "",
        labels=labels,
        platform=platform or "",
        created_from=convert.time_to_proto(created_from) if created_from else None,
        created_before=convert.time_to_proto(created_before) if created_before else None,
        expiring_before=expiring_before.isoformat() if expiring_before else "",
        show_deleted=deleted,
    )


def list_versions(
    request: registry_pb2.ListVersionsRequest, token: str, timeout: float | None
) -> Steps[tuple[list[Version], str]]:
    """Get one page and the token of the next, empty on the last."""
    request.page_token = token
    response = yield from call(LIST_VERSIONS, request, timeout)
    versions = [convert.version_from_proto(version) for version in response.versions]
    return versions, response.next_page_token


def get_model(name: str, timeout: float | None) -> Steps[Model]:
    """Get one model."""
    check(name)
    request = registry_pb2.GetModelRequest(model=name)
    return convert.model_from_proto((yield from call(GET_MODEL, request, timeout)))


def get_version(reference: str | ModelReference, timeout: float | None) -> Steps[Version]:
    """Get the version that a reference names."""
    reference = ModelReference.parse(reference)
    request = registry_pb2.GetVersionRequest(
        model=reference.name, version=reference.version, alias=reference.alias
    )
    return convert.version_from_proto((yield from call(GET_VERSION, request, timeout)))


def pull(
    reference: str | ModelReference,
    destination: FilePath,
    signature: str,
    weights: FilePath | None,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[Version]:
    """Fetch a program into a file and, where a directory is given, the weights into it."""
    version = yield from get_version(reference, timeout)
    programs = {each.name: each.program for each in version.signatures}
    if signature not in programs:
        there = ", ".join(programs)
        raise NotFound(f"{reference} has no signature {signature!r}; it has {there}")
    if weights is not None and not version.weights:
        raise NotFound(f"{reference} stores no weights: they are part of its programs")
    yield from download(programs[signature], destination, timeout, report)
    if weights is not None:
        directory = Path(weights)
        yield from work(lambda: make_directory(directory))
        for index, shard in enumerate(version.weights, 1):
            file = directory / _shard_name(index, len(version.weights))
            yield from download(shard.blob, file, timeout, report)
    return version


def _shard_name(index: int, count: int) -> str:
    """Name a shard as other tools around safetensors do."""
    return "model.safetensors" if count == 1 else f"model-{index:05}-of-{count:05}.safetensors"


def set_alias(
    model: str, alias: str, version: int, expected_version: int | None, timeout: float | None
) -> Steps[Model]:
    """Point an alias to a version."""
    check(model, version=version, alias=alias)
    request = registry_pb2.SetAliasRequest(
        model=model, alias=alias, version=version, expected_version=expected_version
    )
    return convert.model_from_proto((yield from call(SET_ALIAS, request, timeout)))


def delete_alias(model: str, alias: str, timeout: float | None) -> Steps[Model]:
    """Remove an alias."""
    check(model, alias=alias)
    request = registry_pb2.DeleteAliasRequest(model=model, alias=alias)
    return convert.model_from_proto((yield from call(DELETE_ALIAS, request, timeout)))


def delete_version(reference: str | ModelReference, timeout: float | None) -> Steps[Version]:
    """Delete a version; only its number names it, since an alias may move meanwhile."""
    model, version = _numbered(reference, "delete")
    request = registry_pb2.DeleteVersionRequest(model=model, version=version)
    return convert.version_from_proto((yield from call(DELETE_VERSION, request, timeout)))


def undelete_version(reference: str | ModelReference, timeout: float | None) -> Steps[Version]:
    """Bring a deleted version back."""
    model, version = _numbered(reference, "bring back")
    request = registry_pb2.UndeleteVersionRequest(model=model, version=version)
    return convert.version_from_proto((yield from call(UNDELETE_VERSION, request, timeout)))


def _numbered(reference: str | ModelReference, purpose: str) -> tuple[str, int]:
    reference = ModelReference.parse(reference)
    if reference.version is None:
        raise InvalidReference(f"say which version to {purpose}, as in '{reference.name}:3'")
    return reference.name, reference.version


def copy_version(
    reference: str | ModelReference,
    destination: str,
    aliases: Iterable[str],
    timeout: float | None,
) -> Steps[Version]:
    """Make a version of another model out of an existing one."""
    reference = ModelReference.parse(reference)
    check(destination)
    request = registry_pb2.CopyVersionRequest(
        model=reference.name,
        version=reference.version,
        alias=reference.alias,
        destination=destination,
        aliases=items("aliases", aliases),
        request_id=str(uuid.uuid4()),
    )
    return convert.version_from_proto((yield from call(COPY_VERSION, request, timeout)))


def add_encoding(
    reference: str | ModelReference,
    program: Content,
    signature: str,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[Version]:
    """Upload a program, then make it an encoding of that of a signature."""
    origin = yield from work(lambda: source(program, signature))
    # Found before anything is sent; an alias may move meanwhile.
    version = yield from get_version(reference, timeout)
    blob = yield from upload(origin, timeout, report)
    request = registry_pb2.AddEncodingRequest(
        model=version.model, version=version.number, signature=signature, digest=blob.digest
    )
    return convert.version_from_proto((yield from call(ADD_ENCODING, request, timeout)))


def list_changes(
    model: str | None, alias: str | None, since: str, timeout: float | None
) -> Steps[tuple[list[Change], str]]:
    """Get the next changes and the revision to go on behind, empty where there are no more yet."""
    if model is not None:
        check(model, alias=alias)
    request = registry_pb2.ListChangesRequest(
        since=int(since), model=model or "", alias=alias or "", page_size=1000
    )
    response = yield from call(LIST_CHANGES, request, timeout)
    changes = [convert.change_from_proto(change) for change in response.changes]
    return changes, str(response.revision) if response.more else ""
