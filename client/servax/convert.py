"""Protobuf messages to and from `servax.types`; tensors have a module of their own."""

from datetime import UTC

from servax.types import (
    Blob,
    Model,
    ServedState,
    ServedVersion,
    Signature,
    StoredTensor,
    TensorSpec,
    Version,
    WeightsShard,
    WorkerStatus,
)
from servax_proto.v1 import artifact_pb2, prediction_pb2


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
    )


def signature_to_proto(signature: Signature) -> artifact_pb2.Signature:
    """Give the message of a value."""
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
    )


def shard_from_proto(message: artifact_pb2.WeightsShard) -> WeightsShard:
    """Give the value of a message."""
    tensors = (
        StoredTensor(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.offset, tensor.size)
        for tensor in message.tensors
    )
    return WeightsShard(blob_from_proto(message.blob), tuple(tensors))


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


def _state_from_proto(number: int) -> ServedState:
    try:
        return ServedState(number)
    except ValueError:  # of a newer worker
        return ServedState.UNSPECIFIED


def served_version_from_proto(message: prediction_pb2.ServedVersion) -> ServedVersion:
    """Give the value of a message; a state that is not known here is UNSPECIFIED."""
    return ServedVersion(
        model=message.model,
        version=message.version,
        alias=message.alias,
        state=_state_from_proto(message.state),
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
