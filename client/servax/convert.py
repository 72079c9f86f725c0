"""Protobuf messages to and from `servax.types`; tensors have a module of their own."""

import enum
from datetime import UTC, date, datetime
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from servax.types import (
    Action,
    Batching,
    BatchStatistics,
    Blob,
    Change,
    Compatibility,
    Encoding,
    GoldenExample,
    Model,
    ServedState,
    ServedVersion,
    Signature,
    Spent,
    StoredTensor,
    TensorSpec,
    Trial,
    TrialOutcome,
    Version,
    VersionName,
    VersionStatistics,
    WeightsShard,
    WorkerStatus,
)
from servax_proto.v1 import artifact_pb2, prediction_pb2, registry_pb2

E = TypeVar("E", bound=enum.Enum)


def blob_from_proto(message: artifact_pb2.Blob) -> Blob:
    """Give the value of a message."""
    return Blob(message.digest, message.size)


def blob_to_proto(blob: Blob) -> artifact_pb2.Blob:
    """Give the message of a value."""
    return artifact_pb2.Blob(digest=blob.digest, size=blob.size)


def tensor_spec_from_proto(message: artifact_pb2.TensorSpec) -> TensorSpec:
    """Give the value of a message."""
    return TensorSpec(message.name, message.dtype, tuple(message.shape), message.position)


def tensor_spec_to_proto(spec: TensorSpec) -> artifact_pb2.TensorSpec:
    """Give the message of a value."""
    return artifact_pb2.TensorSpec(
        name=spec.name, dtype=spec.dtype, shape=spec.shape, position=spec.position
    )


def time_to_proto(time: datetime) -> Timestamp:
    """Give the message of a time; one without a zone is local."""
    timestamp = Timestamp()
    timestamp.FromDatetime(time.astimezone(UTC))
    return timestamp


def _day(text: str) -> date | None:
    return date.fromisoformat(text) if text else None


def _compatibility_from_proto(message: artifact_pb2.Compatibility) -> Compatibility:
    return Compatibility(
        message.oldest_jax,
        _day(message.oldest_jax_date),
        date.fromisoformat(message.expires),
        message.estimated,
    )


def _compatibility_to_proto(value: Compatibility) -> artifact_pb2.Compatibility:
    day = value.oldest_jax_date
    return artifact_pb2.Compatibility(
        oldest_jax=value.oldest_jax,
        oldest_jax_date=day.isoformat() if day else "",
        expires=value.expires.isoformat(),
        estimated=value.estimated,
    )


def _trial_to_proto(trial: Trial) -> artifact_pb2.Trial:
    return artifact_pb2.Trial(
        outcome=artifact_pb2.Trial.Outcome.Name(trial.outcome.value),
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


def _trial_from_proto(message: artifact_pb2.Trial) -> Trial:
    return Trial(
        _member(TrialOutcome, message.outcome),
        message.reason,
        message.jax_version,
        message.size,
        message.ran,
        message.flops,
        message.accessed_bytes,
        message.argument_bytes,
        message.result_bytes,
        message.temporary_bytes,
        message.code_bytes,
    )


def _encoding_from_proto(message: artifact_pb2.Encoding) -> Encoding:
    return Encoding(
        blob_from_proto(message.program),
        message.calling_convention_version,
        message.serialization_version,
        message.stablehlo_version,
        message.jax_version,
        _compatibility_from_proto(message.compatibility),
        message.create_time.ToDatetime(UTC),
        _trial_from_proto(message.trial) if message.HasField("trial") else None,
    )


def _encoding_to_proto(encoding: Encoding) -> artifact_pb2.Encoding:
    return artifact_pb2.Encoding(
        program=blob_to_proto(encoding.program),
        calling_convention_version=encoding.calling_convention_version,
        serialization_version=encoding.serialization_version,
        stablehlo_version=encoding.stablehlo_version,
        jax_version=encoding.jax_version,
        compatibility=_compatibility_to_proto(encoding.compatibility),
        create_time=time_to_proto(encoding.create_time),
        trial=_trial_to_proto(encoding.trial) if encoding.trial else None,
    )


def _batching_from_proto(message: artifact_pb2.Batching) -> Batching:
    return Batching(message.symbol, message.max_rows)


def batching_to_proto(batching: Batching) -> artifact_pb2.Batching:
    """Give the message of a value."""
    return artifact_pb2.Batching(symbol=batching.symbol, max_rows=batching.max_rows)


def _tensor_from_proto(message: artifact_pb2.StoredTensor) -> StoredTensor:
    shape = tuple(message.shape)
    return StoredTensor(message.name, message.dtype, shape, message.offset, message.size)


def _tensor_to_proto(tensor: StoredTensor) -> artifact_pb2.StoredTensor:
    return artifact_pb2.StoredTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        offset=tensor.offset,
        size=tensor.size,
    )


def _golden_to_proto(golden: GoldenExample) -> artifact_pb2.GoldenExample:
    return artifact_pb2.GoldenExample(
        blob=blob_to_proto(golden.blob),
        rtol=golden.rtol,
        atol=golden.atol,
        tensors=map(_tensor_to_proto, golden.tensors),
    )


def _golden_from_proto(message: artifact_pb2.GoldenExample) -> GoldenExample:
    tensors = tuple(map(_tensor_from_proto, message.tensors))
    return GoldenExample(blob_from_proto(message.blob), message.rtol, message.atol, tensors)


def signature_from_proto(message: artifact_pb2.Signature) -> Signature:
    """Give the value of a message."""
    return Signature(
        name=message.name,
        program=blob_from_proto(message.program),
        function_name=message.function_name,
        inputs=tuple(map(tensor_spec_from_proto, message.inputs)),
        weights=tuple(map(tensor_spec_from_proto, message.weights)),
        outputs=tuple(map(tensor_spec_from_proto, message.outputs)),
        platforms=tuple(message.platforms),
        device_count=message.device_count,
        calling_convention_version=message.calling_convention_version,
        serialization_version=message.serialization_version,
        stablehlo_version=message.stablehlo_version,
        jax_version=message.jax_version,
        disabled_checks=tuple(message.disabled_checks),
        effects=tuple(message.effects),
        custom_nodes=tuple(message.custom_nodes),
        custom_calls=tuple(message.custom_calls),
        compatibility=(
            _compatibility_from_proto(message.compatibility)
            if message.HasField("compatibility")
            else None
        ),
        trial=_trial_from_proto(message.trial) if message.HasField("trial") else None,
        encodings=tuple(map(_encoding_from_proto, message.encodings)),
        batching=_batching_from_proto(message.batching) if message.HasField("batching") else None,
        golden=_golden_from_proto(message.golden) if message.HasField("golden") else None,
    )


def signature_to_proto(signature: Signature) -> artifact_pb2.Signature:
    """Give the message of a value, as a worker tells it: without what only the registry knows."""
    return artifact_pb2.Signature(
        name=signature.name,
        program=blob_to_proto(signature.program),
        function_name=signature.function_name,
        inputs=map(tensor_spec_to_proto, signature.inputs),
        weights=map(tensor_spec_to_proto, signature.weights),
        outputs=map(tensor_spec_to_proto, signature.outputs),
        platforms=signature.platforms,
        device_count=signature.device_count,
        calling_convention_version=signature.calling_convention_version,
        serialization_version=signature.serialization_version,
        stablehlo_version=signature.stablehlo_version,
        jax_version=signature.jax_version,
        disabled_checks=signature.disabled_checks,
        effects=signature.effects,
        custom_nodes=signature.custom_nodes,
        custom_calls=signature.custom_calls,
        compatibility=(
            _compatibility_to_proto(signature.compatibility) if signature.compatibility else None
        ),
        batching=batching_to_proto(signature.batching) if signature.batching else None,
    )


def _stored_signature_to_proto(signature: Signature) -> artifact_pb2.Signature:
    message = signature_to_proto(signature)
    if signature.trial:
        message.trial.CopyFrom(_trial_to_proto(signature.trial))
    if signature.golden:
        message.golden.CopyFrom(_golden_to_proto(signature.golden))
    message.encodings.extend(map(_encoding_to_proto, signature.encodings))
    return message


def shard_from_proto(message: artifact_pb2.WeightsShard) -> WeightsShard:
    """Give the value of a message."""
    tensors = tuple(map(_tensor_from_proto, message.tensors))
    return WeightsShard(blob_from_proto(message.blob), tensors)


def _shard_to_proto(shard: WeightsShard) -> artifact_pb2.WeightsShard:
    return artifact_pb2.WeightsShard(
        blob=blob_to_proto(shard.blob), tensors=map(_tensor_to_proto, shard.tensors)
    )


def version_to_proto(version: Version) -> artifact_pb2.Version:
    """Give the message of a value, as the registry tells it."""
    origin, deleted = version.copied_from, version.delete_time
    return artifact_pb2.Version(
        model=version.model,
        number=version.number,
        signatures=map(_stored_signature_to_proto, version.signatures),
        weights=map(_shard_to_proto, version.weights),
        description=version.description,
        labels=version.labels,
        create_time=time_to_proto(version.create_time),
        aliases=version.aliases,
        creator=version.creator,
        source_revision=version.source_revision,
        copied_from=(
            artifact_pb2.VersionName(model=origin.model, version=origin.number) if origin else None
        ),
        delete_time=time_to_proto(deleted) if deleted else None,
    )


def version_to_bytes(version: Version) -> bytes:
    """Give what `version_from_bytes` reads, in this release of Servax and in later ones."""
    return version_to_proto(version).SerializeToString()


def version_from_bytes(data: bytes) -> Version:
    """Give the value that was written; raises ValueError for anything else."""
    try:
        return version_from_proto(artifact_pb2.Version.FromString(data))
    except DecodeError as error:
        raise ValueError(f"not a stored version: {error}") from error


def version_from_proto(message: artifact_pb2.Version) -> Version:
    """Give the value of a message; times are in UTC."""
    return Version(
        model=message.model,
        number=message.number,
        signatures=tuple(map(signature_from_proto, message.signatures)),
        weights=tuple(map(shard_from_proto, message.weights)),
        description=message.description,
        labels=dict(message.labels),
        create_time=message.create_time.ToDatetime(UTC),
        aliases=tuple(message.aliases),
        creator=message.creator,
        source_revision=message.source_revision,
        copied_from=(
            VersionName(message.copied_from.model, message.copied_from.version)
            if message.HasField("copied_from")
            else None
        ),
        delete_time=(
            message.delete_time.ToDatetime(UTC) if message.HasField("delete_time") else None
        ),
    )


def change_from_proto(message: registry_pb2.Change) -> Change:
    """Give the value of a message; an action that is not known here is UNSPECIFIED."""
    return Change(
        message.revision,
        message.time.ToDatetime(UTC),
        message.actor,
        _member(Action, message.action),
        message.model,
        message.version,
        message.alias,
        message.previous_version,
        message.detail,
    )


def model_from_proto(message: artifact_pb2.Model) -> Model:
    """Give the value of a message; times are in UTC."""
    return Model(
        name=message.name,
        create_time=message.create_time.ToDatetime(UTC),
        latest_version=message.latest_version,
        version_count=message.version_count,
        aliases=dict(message.aliases),
    )


def _member(kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:  # of a newer service
        return kind(0)


def served_version_from_proto(message: prediction_pb2.ServedVersion) -> ServedVersion:
    """Give the value of a message; a state that is not known here is UNSPECIFIED."""
    return ServedVersion(
        model=message.model,
        version=message.version,
        alias=message.alias,
        state=_member(ServedState, message.state),
        detail=message.detail,
        signatures=tuple(map(signature_from_proto, message.signatures)),
    )


def served_version_to_proto(served: ServedVersion) -> prediction_pb2.ServedVersion:
    """Give the message of a value."""
    return prediction_pb2.ServedVersion(
        model=served.model,
        version=served.version,
        alias=served.alias,
        state=prediction_pb2.ServedVersion.State.Name(served.state.value),
        detail=served.detail,
        signatures=map(signature_to_proto, served.signatures),
    )


def worker_status_from_proto(message: prediction_pb2.GetStatusResponse) -> WorkerStatus:
    """Give the value of a message."""
    versions = tuple(map(served_version_from_proto, message.versions))
    return WorkerStatus(versions, message.platform, message.jax_version)


def worker_status_to_proto(status: WorkerStatus) -> prediction_pb2.GetStatusResponse:
    """Give the message of a value."""
    return prediction_pb2.GetStatusResponse(
        versions=map(served_version_to_proto, status.versions),
        platform=status.platform,
        jax_version=status.jax_version,
    )


def _spent_from_proto(message: prediction_pb2.Spent) -> Spent:
    return Spent(message.count, message.seconds)


def _spent_to_proto(spent: Spent) -> prediction_pb2.Spent:
    return prediction_pb2.Spent(count=spent.count, seconds=spent.seconds)


def statistics_from_proto(message: prediction_pb2.VersionStatistics) -> VersionStatistics:
    """Give the value of a message."""
    return VersionStatistics(
        model=message.model,
        version=message.version,
        succeeded=_spent_from_proto(message.succeeded),
        failed=_spent_from_proto(message.failed),
        waited=_spent_from_proto(message.waited),
        batches=tuple(
            BatchStatistics(
                batch.rows,
                _spent_from_proto(batch.input),
                _spent_from_proto(batch.compute),
                _spent_from_proto(batch.output),
            )
            for batch in message.batches
        ),
    )


def statistics_to_proto(statistics: VersionStatistics) -> prediction_pb2.VersionStatistics:
    """Give the message of a value."""
    return prediction_pb2.VersionStatistics(
        model=statistics.model,
        version=statistics.version,
        succeeded=_spent_to_proto(statistics.succeeded),
        failed=_spent_to_proto(statistics.failed),
        waited=_spent_to_proto(statistics.waited),
        batches=[
            prediction_pb2.BatchStatistics(
                rows=batch.rows,
                input=_spent_to_proto(batch.input),
                compute=_spent_to_proto(batch.compute),
                output=_spent_to_proto(batch.output),
            )
            for batch in statistics.batches
        ],
    )
