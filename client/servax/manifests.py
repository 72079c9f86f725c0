"""A version as an OCI image manifest, and back: documents, no I/O.

Of the OCI image specification 1.1 (https://github.com/opencontainers/image-spec): the config says
what cannot be read out of the blobs themselves, and the layers are the blobs.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from servax.errors import InvalidArgument
from servax.reference import check
from servax.types import Batching, Blob, GoldenExample, Version

VERSION_TYPE = "application/vnd.servax.version.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

_CONFIG_TYPE = f"{VERSION_TYPE}+json"
_PROGRAM_TYPE = "application/vnd.servax.program.v1"
_TENSORS_TYPE = "application/vnd.servax.tensors.v1+safetensors"

_ANNOTATION = "org.opencontainers.image"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Document = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class PortableSignature:
    """A signature: its program, and what was declared of it."""

    name: str
    program: Blob
    encodings: tuple[Blob, ...]
    batching: Batching | None
    golden: GoldenExample | None


@dataclass(frozen=True)
class PortableVersion:
    """What makes a version in any registry.

    `number`, `creator` and `create_time`, in ISO 8601, are those of the registry that it is from.
    """

    model: str
    number: int
    creator: str
    create_time: str
    description: str
    labels: dict[str, str]
    source_revision: str
    signatures: tuple[PortableSignature, ...]
    weights: tuple[Blob, ...]

    def __str__(self) -> str:
        return f"{self.model}:{self.number}"

    def files(self) -> Iterator[tuple[str, str, Blob]]:
        """Yield the media type and the name of every blob."""
        for signature in self.signatures:
            yield _PROGRAM_TYPE, f"{signature.name}/program.jaxexport", signature.program
            for index, encoding in enumerate(signature.encodings, 1):
                yield _PROGRAM_TYPE, f"{signature.name}/encoding-{index}.jaxexport", encoding
            if signature.golden is not None:
                yield _TENSORS_TYPE, f"{signature.name}/golden.safetensors", signature.golden.blob
        for index, blob in enumerate(self.weights, 1):
            yield _TENSORS_TYPE, f"model-{index:05}-of-{len(self.weights):05}.safetensors", blob

    def identity(self) -> str:
        """Name the version, whatever encodings were added to it: it is the same one then."""
        signatures = [_signature_document(each) | {"encodings": []} for each in self.signatures]
        document = config(self) | {"signatures": signatures}
        return f"sha256:{hashlib.sha256(encode(document)).hexdigest()}"


def portable(version: Version) -> PortableVersion:
    """Take of a version what makes it in any registry."""
    return PortableVersion(
        model=version.model,
        number=version.number,
        creator=version.creator,
        create_time=version.create_time.isoformat(),
        description=version.description,
        labels=dict(version.labels),
        source_revision=version.source_revision,
        signatures=tuple(
            PortableSignature(
                signature.name,
                signature.program,
                tuple(encoding.program for encoding in signature.encodings),
                signature.batching,
                signature.golden,
            )
            for signature in version.signatures
        ),
        weights=tuple(shard.blob for shard in version.weights),
    )


def encode(document: Document) -> bytes:
    """Write a document; the same one always as the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def config(version: PortableVersion) -> Document:
    """Describe a version."""
    return {
        "model": version.model,
        "version": version.number,
        "creator": version.creator,
        "create_time": version.create_time,
        "description": version.description,
        "labels": version.labels,
        "source_revision": version.source_revision,
        "signatures": [_signature_document(each) for each in version.signatures],
        "weights": [_blob_document(blob) for blob in version.weights],
    }


def manifest(version: PortableVersion, configuration: Blob) -> Document:
    """Give the manifest of a version whose config is stored as the blob `configuration`."""
    annotations = {
        "title": str(version),
        "created": version.create_time,
        "authors": version.creator,
        "description": version.description,
        "revision": version.source_revision,
    }
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": VERSION_TYPE,
        "config": {"mediaType": _CONFIG_TYPE, **_blob_document(configuration)},
        "layers": [
            {
                "mediaType": media_type,
                **_blob_document(blob),
                "annotations": {f"{_ANNOTATION}.title": name},
            }
            for media_type, name, blob in version.files()
        ],
        "annotations": {
            f"{_ANNOTATION}.{key}": value for key, value in annotations.items() if value
        },
    }


def entry(manifest: Blob, name: str) -> Document:
    """Give what an index says of a manifest that goes by a name."""
    return {
        "mediaType": MANIFEST_TYPE,
        "artifactType": VERSION_TYPE,
        **_blob_document(manifest),
        "annotations": {f"{_ANNOTATION}.ref.name": name},
    }


def name_of(entry: Document) -> str:
    """Give the name by which an entry of an index goes; "" where it has none."""
    return str((entry.get("annotations") or {}).get(f"{_ANNOTATION}.ref.name", ""))


def blob_of(descriptor: Document) -> Blob:
    """Read which blob a descriptor is of. Raises InvalidArgument."""
    digest, size = descriptor.get("digest"), descriptor.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidArgument(f"{str(digest)[:80]!a} is no digest of SHA-256")
    if type(size) is not int or size < 0:
        raise InvalidArgument(f"{digest} has the size {str(size)[:80]!a}")
    return Blob(digest, size)


def decode(data: bytes, what: str) -> Document:
    """Read a document. Raises InvalidArgument."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"{what} is no JSON object")
    return document


def config_of(manifest: Document) -> Blob | None:
    """Give the config's blob of a version's manifest; None for that of something else."""
    described = manifest.get("config")
    if not isinstance(described, dict) or described.get("mediaType") != _CONFIG_TYPE:
        return None
    return blob_of(described)


def read_config(document: Document) -> PortableVersion:
    """Read what `config` wrote. Raises InvalidArgument."""
    version = PortableVersion(
        model=_field(document, "model", str),
        number=_field(document, "version", int),
        creator=_field(document, "creator", str),
        create_time=_field(document, "create_time", str),
        description=_field(document, "description", str),
        labels={
            str(key): _field(document["labels"], key, str)
            for key in _field(document, "labels", dict)
        },
        source_revision=_field(document, "source_revision", str),
        signatures=tuple(_items(document, "signatures", _read_signature)),
        weights=tuple(_items(document, "weights", blob_of)),
    )
    check(version.model, version=version.number)
    return version


def _signature_document(signature: PortableSignature) -> Document:
    batching, golden = signature.batching, signature.golden
    return {
        "name": signature.name,
        "program": _blob_document(signature.program),
        "encodings": [_blob_document(blob) for blob in signature.encodings],
        "batching": batching and {"symbol": batching.symbol, "max_rows": batching.max_rows},
        "golden": golden
        and {**_blob_document(golden.blob), "rtol": golden.rtol, "atol": golden.atol},
    }


def _read_signature(document: Document) -> PortableSignature:
    batching, golden = document.get("batching"), document.get("golden")
    return PortableSignature(
        name=_field(document, "name", str),
        program=blob_of(_field(document, "program", dict)),
        encodings=tuple(_items(document, "encodings", blob_of)),
        batching=(
            Batching(_field(batching, "symbol", str), _field(batching, "max_rows", int))
            if isinstance(batching, dict)
            else None
        ),
        golden=(
            GoldenExample(
                blob_of(golden), _field(golden, "rtol", float), _field(golden, "atol", float)
            )
            if isinstance(golden, dict)
            else None
        ),
    )


def _blob_document(blob: Blob) -> Document:
    return {"digest": blob.digest, "size": blob.size}


def _field(document: Document, key: str, kind: type[T]) -> T:
    value = document.get(key)
    if type(value) is not kind:
        raise InvalidArgument(f"the {key!r} of a version is {str(value)[:80]!a}")
    return value


def _items(document: Document, key: str, read: Callable[[Document], T]) -> Iterator[T]:
    for item in _field(document, key, list):
        if not isinstance(item, dict):
            raise InvalidArgument(f"{str(item)[:80]!a} is among the {key!r} of a version")
        yield read(item)
