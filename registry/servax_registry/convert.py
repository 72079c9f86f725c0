"""Protobuf messages to and from the domain's values."""

from collections.abc import Iterator
from datetime import UTC, date, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.artifact import (
    Batching,
    Blob,
    Change,
    Encoding,
    GoldenExample,
    GoldenSource,
    MissingBlob,
    Model,
    Program,
    ProgramSource,
    Publication,
    Selection,
    Signature,
    StoredTensor,
    TensorSpec,
    Trial,
    Version,
    VersionName,
    WeightsShard,
)
from servax_registry.errors import InvalidRequest
from servax_registry.inspection import compatibility

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
            ProgramSource(
                program.signature or DEFAULT_SIGNATURE,
                program.digest,
                _batching_from_proto(program) if program.HasField("batching") else None,
                _golden_from_proto(program.golden) if program.HasField("golden") else None,
            )
            for program in request.programs
        ),
        weights=tuple(request.weights),
        description=request.description,
        labels=dict(request.labels),
        aliases=tuple(request.aliases),
        request_id=request.request_id or None,
        source_revision=request.source_revision,
    )


def _batching_from_proto(program: registry_pb2.ProgramSource) -> Batching:
    return Batching(program.batching.symbol, program.batching.max_rows)


def _golden_from_proto(golden: registry_pb2.GoldenSource) -> GoldenSource:
    return GoldenSource(golden.digest, golden.rtol, golden.atol)


def selection_from_proto(request: registry_pb2.ListVersionsRequest) -> Selection:
    """Read which versions are asked for. Raises InvalidRequest."""
    return Selection(
        model=request.model,
        labels=dict(sorted(request.labels.items())),
        platform=request.platform,
        created_from=_time(request, "created_from"),
        created_before=_time(request, "created_before"),
        expiring_before=_day(request.expiring_before),
        show_deleted=request.show_deleted,
    )


def _time(request: registry_pb2.ListVersionsRequest, field: str) -> datetime | None:
    if not request.HasField(field):
        return None
    try:
        time: datetime = getattr(request, field).ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{field} is no time: {error}") from error
    return time


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise InvalidRequest(
            f"expiring_before {text[:40]!a} is no day; write it as in 2026-12-31"
        ) from error


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
        create_time=_timestamp(model.create_time),
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
        create_time=_timestamp(version.create_time),
        aliases=version.aliases,
        creator=version.creator,
        source_revision=version.source_revision,
        copied_from=_name_to_proto(version.copied_from) if version.copied_from else None,
        delete_time=_timestamp(version.delete_time) if version.delete_time else None,
    )


def _name_to_proto(name: VersionName) -> artifact_pb2.VersionName:
    return artifact_pb2.VersionName(model=name.model, version=name.number)


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
        custom_calls=inspected.custom_calls,
        compatibility=_compatibility_to_proto(inspected),
        trial=_trial_to_proto(signature.trial) if signature.trial else None,
        encodings=map(_encoding_to_proto, signature.encodings),
        batching=_batching_to_proto(signature.batching) if signature.batching else None,
        golden=_golden_to_proto(signature.golden) if signature.golden else None,
    )


def _compatibility_to_proto(program: Program) -> artifact_pb2.Compatibility:
    window = compatibility(program.written_in)
    return artifact_pb2.Compatibility(
        oldest_jax=window.oldest_jax,
        oldest_jax_date=window.oldest_date.isoformat() if window.oldest_date else "",
        expires=window.expires.isoformat(),
        estimated=window.estimated,
    )


def _trial_to_proto(trial: Trial) -> artifact_pb2.Trial:
    return artifact_pb2.Trial(
        outcome=trial.outcome.upper(),
        reason=trial.reason,
        jax_version=trial.jax_version,
        size=trial.size,
        ran=trial.ran,
        flops=trial.flops,
        accessed_bytes=trial.accessed_bytes,
        argument_bytes=trial.argument_bytes,
        result_bytes=trial.result_bytes,
        temporary_bytes=trial.temporary_bytes,
        code_bytes=trial.code_bytes,
    )


def _encoding_to_proto(encoding: Encoding) -> artifact_pb2.Encoding:
    inspected = encoding.inspected
    return artifact_pb2.Encoding(
        program=blob_to_proto(encoding.program),
        calling_convention_version=inspected.calling_convention_version,
        serialization_version=inspected.serialization_version,
        stablehlo_version=inspected.stablehlo_version,
        jax_version=inspected.jax_version,
        compatibility=_compatibility_to_proto(inspected),
        create_time=_timestamp(encoding.create_time),
        trial=_trial_to_proto(encoding.trial) if encoding.trial else None,
    )


def _batching_to_proto(batching: Batching) -> artifact_pb2.Batching:
    return artifact_pb2.Batching(symbol=batching.symbol, max_rows=batching.max_rows)


def _golden_to_proto(golden: GoldenExample) -> artifact_pb2.GoldenExample:
    return artifact_pb2.GoldenExample(
        blob=blob_to_proto(golden.blob),
        rtol=golden.rtol,
        atol=golden.atol,
        tensors=map(_tensor_to_proto, golden.tensors),
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


def _timestamp(time: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp


def change_to_proto(change: Change) -> registry_pb2.Change:
    """Write a change."""
    return registry_pb2.Change(
        revision=change.revision,
        time=_timestamp(change.time),
        actor=change.actor,
        action=change.action.name,
        model=change.model,
        version=change.version,
        alias=change.alias,
        previous_version=change.previous_version,
        detail=change.detail,
    )
