"""Servax's client library: publish `jax.export` artifacts, and call the models made of them.

    from servax import Client

    with Client(worker="127.0.0.1:8500") as client:
        logits = client.predict("mnist", {"image": images})["logits"]

`AsyncClient` is the same for asyncio.
"""

import typing

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
    Action,
    Batching,
    BatchStatistics,
    Blob,
    Change,
    Compatibility,
    Encoding,
    Golden,
    GoldenExample,
    Model,
    Progress,
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

if typing.TYPE_CHECKING:
    from servax.aio import AsyncClient
    from servax.client import Client

__all__ = [
    "Action",
    "AlreadyExists",
    "AsyncClient",
    "BatchStatistics",
    "Batching",
    "Blob",
    "Cancelled",
    "Change",
    "Client",
    "Compatibility",
    "Conflict",
    "DataLoss",
    "DeadlineExceeded",
    "Encoding",
    "FailedPrecondition",
    "FileError",
    "Golden",
    "GoldenExample",
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
    "Spent",
    "StoredTensor",
    "TensorSpec",
    "Trial",
    "TrialOutcome",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unreachable",
    "Version",
    "VersionName",
    "VersionStatistics",
    "WeightsShard",
    "WorkerStatus",
]


def __getattr__(name: str) -> typing.Any:
    # The clients bring numpy and the API's messages, which take time; who only names a version, as
    # the worker's supervisor does, needs neither.
    if name == "Client":
        from servax.client import Client

        return Client
    if name == "AsyncClient":
        from servax.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
