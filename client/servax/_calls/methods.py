"""The API's methods with their types, and how gRPC is to carry them."""

import json
from typing import Any

from servax._calls.steps import Method, Peer
from servax_proto.v1 import artifact_pb2, management_pb2, prediction_pb2, registry_pb2

FIND_MISSING_BLOBS = Method[
    registry_pb2.FindMissingBlobsRequest, registry_pb2.FindMissingBlobsResponse
](Peer.REGISTRY, "FindMissingBlobs")
WRITE_BLOB = Method[registry_pb2.WriteBlobRequest, registry_pb2.WriteBlobResponse](
    Peer.REGISTRY, "WriteBlob"
)
READ_BLOB = Method[registry_pb2.ReadBlobRequest, registry_pb2.ReadBlobResponse](
    Peer.REGISTRY, "ReadBlob"
)
PUBLISH_VERSION = Method[registry_pb2.PublishVersionRequest, artifact_pb2.Version](
    Peer.REGISTRY, "PublishVersion"
)
LIST_MODELS = Method[registry_pb2.ListModelsRequest, registry_pb2.ListModelsResponse](
    Peer.REGISTRY, "ListModels"
)
GET_MODEL = Method[registry_pb2.GetModelRequest, artifact_pb2.Model](Peer.REGISTRY, "GetModel")
LIST_VERSIONS = Method[registry_pb2.ListVersionsRequest, registry_pb2.ListVersionsResponse](
    Peer.REGISTRY, "ListVersions"
)
GET_VERSION = Method[registry_pb2.GetVersionRequest, artifact_pb2.Version](
    Peer.REGISTRY, "GetVersion"
)
SET_ALIAS = Method[registry_pb2.SetAliasRequest, artifact_pb2.Model](Peer.REGISTRY, "SetAlias")
DELETE_ALIAS = Method[registry_pb2.DeleteAliasRequest, artifact_pb2.Model](
    Peer.REGISTRY, "DeleteAlias"
)
DELETE_VERSION = Method[registry_pb2.DeleteVersionRequest, artifact_pb2.Version](
    Peer.REGISTRY, "DeleteVersion"
)
UNDELETE_VERSION = Method[registry_pb2.UndeleteVersionRequest, artifact_pb2.Version](
    Peer.REGISTRY, "UndeleteVersion"
)
COPY_VERSION = Method[registry_pb2.CopyVersionRequest, artifact_pb2.Version](
    Peer.REGISTRY, "CopyVersion"
)
ADD_ENCODING = Method[registry_pb2.AddEncodingRequest, artifact_pb2.Version](
    Peer.REGISTRY, "AddEncoding"
)
LIST_CHANGES = Method[registry_pb2.ListChangesRequest, registry_pb2.ListChangesResponse](
    Peer.REGISTRY, "ListChanges"
)

PREDICT = Method[prediction_pb2.PredictRequest, prediction_pb2.PredictResponse](
    Peer.WORKER, "Predict"
)
PREDICT_STREAM = Method[prediction_pb2.PredictStreamRequest, prediction_pb2.PredictStreamResponse](
    Peer.WORKER, "PredictStream"
)
GET_STATUS = Method[prediction_pb2.GetStatusRequest, prediction_pb2.GetStatusResponse](
    Peer.WORKER, "GetStatus"
)

GET_STATISTICS = Method[prediction_pb2.GetStatisticsRequest, prediction_pb2.GetStatisticsResponse](
    Peer.WORKER, "GetStatistics"
)

LOAD_MODEL = Method[management_pb2.LoadModelRequest, management_pb2.LoadModelResponse](
    Peer.WORKER, "LoadModel"
)
UNLOAD_MODEL = Method[management_pb2.UnloadModelRequest, management_pb2.UnloadModelResponse](
    Peer.WORKER, "UnloadModel"
)

_SERVICES = [
    service
    for module in (registry_pb2, prediction_pb2, management_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]

# Reads may be repeated; so may what makes a version, which its request_id tells from another, and
# what comes to the same when it is done twice.
_REPEATABLE = (
    FIND_MISSING_BLOBS,
    READ_BLOB,
    PUBLISH_VERSION,
    COPY_VERSION,
    ADD_ENCODING,
    UNDELETE_VERSION,
    LIST_CHANGES,
    LIST_MODELS,
    GET_MODEL,
    LIST_VERSIONS,
    GET_VERSION,
    GET_STATUS,
    GET_STATISTICS,
    LOAD_MODEL,
    UNLOAD_MODEL,
)

# About 1.5 s in all: long enough for a hiccup, short enough for a person who forgot to start it.
_RETRY_POLICY = {
    "maxAttempts": 5,  # gRPC allows no more
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def channel_options(peer: Peer) -> list[tuple[str, Any]]:
    """Give gRPC's options for a channel to `peer`."""
    names = [
        {"service": service.full_name, "method": method.name}
        for method in _REPEATABLE
        for service in _SERVICES
        if method.peer is peer and method.name in service.methods_by_name
    ]
    config = {"methodConfig": [{"name": names, "retryPolicy": _RETRY_POLICY}]}
    options: list[tuple[str, Any]] = [
        ("grpc.service_config", json.dumps(config)),
        # Back within a second after a service restarted; the default waits up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if peer is Peer.WORKER:
        # The answer to a small request may be large; only the caller can have asked for it.
        options.append(("grpc.max_receive_message_length", -1))
    return options
