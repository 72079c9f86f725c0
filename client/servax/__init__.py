"""Servax's client library: publish `jax.export` artifacts, and call the models made of them.

    from servax import Client

    with Client(worker="127.0.0.1:8500") as client:
        logits = client.predict("mnist", {"image": images})["logits"]

`AsyncClient` is the same for asyncio.
"""

from servax.aio import AsyncClient
from servax.client import Client
from servax.errors import (
    AlreadyExists,
    Cancelled,
    Conflict,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    FileError,
    Internal,
    InvalidArgument,
    InvalidReference,
    InvalidTensor,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    ServaxError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from servax.reference import ModelReference
from servax.types import (
    Blob,
    Model,
    Progress,
    ServedState,
    ServedVersion,
    Signature,
    StoredTensor,
    TensorSpec,
    Version,
    WeightsShard,
    WorkerStatus,
)

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "Blob",
    "Cancelled",
    "Client",
    "Conflict",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FileError",
    "Internal",
    "InvalidArgument",
    "InvalidReference",
    "InvalidTensor",
    "Model",
    "ModelReference",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Progress",
    "ResourceExhausted",
    "ServaxError",
    "ServedState",
    "ServedVersion",
    "Signature",
    "StoredTensor",
    "TensorSpec",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unreachable",
    "Version",
    "WeightsShard",
    "WorkerStatus",
]
