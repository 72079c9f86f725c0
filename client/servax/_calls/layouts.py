"""What exporting versions into a directory, and importing them from one, consists of."""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from servax import convert
from servax._calls.arguments import items
from servax._calls.methods import ADD_ENCODING, PUBLISH_VERSION, SET_ALIAS
from servax._calls.registry import get_version
from servax._calls.steps import Steps, call, work
from servax._calls.transfers import download, upload
from servax._files import FileSource
from servax._layout import Layout
from servax.errors import InvalidArgument, InvalidReference
from servax.manifests import (
    MANIFEST_TYPE,
    PortableVersion,
    blob_of,
    config,
    config_of,
    manifest,
    name_of,
    portable,
    read_config,
)
from servax.reference import ModelReference
from servax.types import Blob, FilePath, Progress, ProgressCallback, Version
from servax_proto.v1 import registry_pb2


def export_versions(
    references: Iterable[str | ModelReference],
    directory: FilePath,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[list[Version]]:
    """Fetch what is not there yet, then let the index name it."""
    wanted = [ModelReference.parse(each) for each in items("references", references)]
    if not wanted:
        raise InvalidArgument("name at least one version to export")
    # Everything that is not found is not found before anything is fetched.
    versions: list[Version] = []
    for reference in wanted:
        version = yield from get_version(reference, timeout)
        if version not in versions:
            versions.append(version)
    layout = Layout(directory)
    yield from work(layout.create)
    for version in versions:
        described = portable(version)
        for _, name, blob in described.files():
            named = _named(f"{described} {name}", report)
            if not (yield from work(partial(layout.holds, blob, named))):
                yield from download(blob, layout.path(blob), timeout, named)
        configuration = yield from work(partial(layout.put, config(described)))
        stored = yield from work(partial(layout.put, manifest(described, configuration)))
        names = [str(described), *(f"{version.model}@{alias}" for alias in version.aliases)]
        yield from work(partial(layout.name, stored, names))
    return versions


def import_versions(
    directory: FilePath,
    aliases: bool,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[dict[str, Version]]:
    """Send what the registry lacks, and publish; a repetition finds what is published already."""
    layout = Layout(directory)
    found = yield from work(partial(_read, layout))
    imported = {}
    for described, request, names in found:
        version = yield from _import(layout, described, request, timeout, report)
        for alias in names if aliases else ():
            move = registry_pb2.SetAliasRequest(
                model=version.model, alias=alias, version=version.number
            )
            yield from call(SET_ALIAS, move, timeout)
        reference = ModelReference(version.model, version=version.number)
        imported[str(described)] = yield from get_version(reference, timeout)
    return imported


def _read(
    layout: Layout,
) -> list[tuple[PortableVersion, registry_pb2.PublishVersionRequest, list[str]]]:
    """Read the versions of a directory, by their numbers, and which aliases each had."""
    layout.check()
    names: dict[Blob, list[str]] = {}
    for each in layout.entries():
        if each.get("mediaType") == MANIFEST_TYPE:
            names.setdefault(blob_of(each), []).append(name_of(each))
    found = []
    for stored, known_as in names.items():
        configuration = config_of(layout.get(stored))
        if configuration is not None:
            described = read_config(layout.get(configuration))
            found.append((described, _request(described), _aliases(described, known_as)))
    if not found:
        raise InvalidArgument(f"{str(layout.directory)!r} holds no version of a model")
    return sorted(found, key=lambda each: (each[0].model, each[0].number))


def _aliases(version: PortableVersion, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        try:
            reference = ModelReference.parse(name)
        except InvalidReference:  # other tools name things as they please
            continue
        if reference.name == version.model and reference.alias is not None:
            found.append(reference.alias)
    return found


def _import(
    layout: Layout,
    described: PortableVersion,
    request: registry_pb2.PublishVersionRequest,
    timeout: float | None,
    report: ProgressCallback | None,
) -> Steps[Version]:
    for _, name, blob in described.files():
        source = yield from work(partial(FileSource, layout.path(blob)))
        source.name = f"{described} {name}"
        yield from upload(source, timeout, report, expected=blob)
    version = convert.version_from_proto((yield from call(PUBLISH_VERSION, request, timeout)))
    if version.delete_time is not None:
        # It was imported before, and deleted: whoever imports it again wants it once more.
        request.request_id = str(uuid.uuid4())
        version = convert.version_from_proto((yield from call(PUBLISH_VERSION, request, timeout)))
    for signature in described.signatures:
        for encoding in signature.encodings:
            addition = registry_pb2.AddEncodingRequest(
                model=version.model,
                version=version.number,
                signature=signature.name,
                digest=encoding.digest,
            )
            yield from call(ADD_ENCODING, addition, timeout)
    return version


def _request(version: PortableVersion) -> registry_pb2.PublishVersionRequest:
    request = registry_pb2.PublishVersionRequest(request_id=f"import {version.identity()}")
    try:
        request.model = version.model
        request.description, request.source_revision = version.description, version.source_revision
        request.labels.update(version.labels)
        request.weights.extend(blob.digest for blob in version.weights)
        for signature in version.signatures:
            program = request.programs.add(
                signature=signature.name, digest=signature.program.digest
            )
            if signature.batching is not None:
                program.batching.CopyFrom(convert.batching_to_proto(signature.batching))
            if signature.golden is not None:
                golden = signature.golden
                program.golden.digest = golden.blob.digest
                program.golden.rtol, program.golden.atol = golden.rtol, golden.atol
    except ValueError as error:  # a number that is too large, or half of a surrogate pair
        raise InvalidArgument(f"{version} is no version that can be published: {error}") from error
    return request


def _named(name: str, report: ProgressCallback | None) -> ProgressCallback | None:
    """Let progress be told of what people know, rather than of digests."""
    if report is None:
        return None

    def renamed(step: Progress) -> None:
        report(replace(step, name=name))

    return renamed
