"""Protobuf messages to and from the domain's values."""

from collections.abc import Iterator

from google.protobuf.timestamp_pb2 import Timestamp

from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.artifact import (
    Blob,
    MissingBlob,
    Model,
    ProgramSource,
    Publication,
    Signature,
    StoredTensor,
    TensorSpec,
    Version,
    WeightsShard,
)
from servax_registry.errors import InvalidRequest

DEFAULT_SIGNATURE = "serving_default"


def size_of(item: Model | Version) -> int:
    """How many bytes a model or version takes in a message that lists some, framing included."""
    message = model_to_proto(item) if isinstance(item, Model) else version_to_proto(item)
    return message.ByteSize() + 8


def publication_from_proto(request: registry_pb2.PublishVersionRequest) -> Publication:
    """Read a request to publish."""
    return Publication(
        model=request.model,
        programs=tuple(
            ProgramSource(program.signature or DEFAULT_SIGNATURE, program.digest)
            for program in request.programs
        ),
        weights=tuple(request.weights),
        description=request.description,
        labels=dict(request.labels),
        aliases=tuple(request.aliases),
        request_id=request.request_id or None,
    )


def upload_from_proto(
    requests: Iterator[registry_pb2.WriteBlobRequest],
) -> tuple[Blob, Iterator[tuple[int, bytes]]]:
    """Take the blob out of the first message; the rest are (offset, bytes) pairs, read lazily.

    Raises InvalidRequest when the first message names no blob.
    """
    first = next(requests, None)
    if first is None or not first.HasField("blob"):
        raise InvalidRequest("the first message of an upload must tell the blob's digest and size")
    return Blob(first.blob.digest, first.blob.size), _parts(first, requests)


def _parts(
    first: registry_pb2.WriteBlobRequest, rest: Iterator[registry_pb2.WriteBlobRequest]
) -> Iterator[tuple[int, bytes]]:
    yield first.offset, first.data
    for request in rest:
        yield request.offset, request.data


def blob_to_proto(blob: Blob) -> artifact_pb2.Blob:
    """Write a blob's name."""
    return artifact_pb2.Blob(digest=blob.digest, size=blob.size)


def missing_to_proto(missing: MissingBlob) -> registry_pb2.MissingBlob:
    """Write a missing blob."""
    return registry_pb2.MissingBlob(digest=missing.digest, committed_size=missing.committed_size)


def model_to_proto(model: Model) -> artifact_pb2.Model:
    """Write a model."""
    return artifact_pb2.Model(
        name=model.name,
        create_time=_timestamp(model),
        latest_version=model.latest_version,
        version_count=model.version_count,
        aliases=model.aliases,
    )


def version_to_proto(version: Version) -> artifact_pb2.Version:
    """Write a version."""
    return artifact_pb2.Version(
        model=version.model,
        number=version.number,
        signatures=[_signature_to_proto(signature) for signature in version.signatures],
        weights=[_shard_to_proto(shard) for shard in version.weights],
        description=version.description,
        labels=version.labels,
        create_time=_timestamp(version),
        aliases=version.aliases,
    )


def _signature_to_proto(signature: Signature) -> artifact_pb2.Signature:
    inspected = signature.inspected
    return artifact_pb2.Signature(
        name=signature.name,
        program=blob_to_proto(signature.program),
        function_name=inspected.function_name,
        inputs=map(_spec_to_proto, signature.inputs),
        weights=map(_spec_to_proto, signature.weights),
        outputs=map(_spec_to_proto, signature.outputs),
        platforms=inspected.platforms,
        device_count=inspected.device_count,
        calling_convention_version=inspected.calling_convention_version,
        serialization_version=inspected.serialization_version,
        stablehlo_version=inspected.stablehlo_version,
        jax_version=inspected.jax_version,
        disabled_checks=inspected.disabled_checks,
        effects=inspected.effects,
        custom_nodes=inspected.custom_nodes,
    )


def _spec_to_proto(spec: TensorSpec) -> artifact_pb2.TensorSpec:
    return artifact_pb2.TensorSpec(
        name=spec.name, dtype=spec.dtype, shape=spec.shape, position=spec.position
    )


def _shard_to_proto(shard: WeightsShard) -> artifact_pb2.WeightsShard:
    return artifact_pb2.WeightsShard(
        blob=blob_to_proto(shard.blob), tensors=map(_tensor_to_proto, shard.tensors)
    )


def _tensor_to_proto(tensor: StoredTensor) -> artifact_pb2.StoredTensor:
    return artifact_pb2.StoredTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        offset=tensor.offset,
        size=tensor.size,
    )


def _timestamp(item: Model | Version) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(item.create_time)
    return timestamp
