from servax_proto.v1 import artifact_pb2 as _artifact_pb2
from servax_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PredictRequest(_message.Message):
    __slots__ = ("model", "version", "alias", "signature", "inputs", "outputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    alias: str
    signature: str
    inputs: _containers.MessageMap[str, _tensor_pb2.Tensor]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Mapping[str, _tensor_pb2.Tensor]] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("model", "version", "signature", "outputs")
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    signature: str
    outputs: _containers.MessageMap[str, _tensor_pb2.Tensor]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., outputs: _Optional[_Mapping[str, _tensor_pb2.Tensor]] = ...) -> None: ...

class PredictStreamRequest(_message.Message):
    __slots__ = ("id", "request", "more")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    request: PredictRequest
    more: bool
    def __init__(self, id: _Optional[int] = ..., request: _Optional[_Union[PredictRequest, _Mapping]] = ..., more: bool = ...) -> None: ...

class PredictStreamResponse(_message.Message):
    __slots__ = ("id", "response", "error", "more")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: PredictResponse
    error: Error
    more: bool
    def __init__(self, id: _Optional[int] = ..., response: _Optional[_Union[PredictResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., more: bool = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_after: float
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("versions", "platform", "jax_version")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    JAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[ServedVersion]
    platform: str
    jax_version: str
    def __init__(self, versions: _Optional[_Iterable[_Union[ServedVersion, _Mapping]]] = ..., platform: _Optional[str] = ..., jax_version: _Optional[str] = ...) -> None: ...

class ServedVersion(_message.Message):
    __slots__ = ("model", "version", "alias", "state", "detail", "signatures")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ServedVersion.State]
        RESOLVING: _ClassVar[ServedVersion.State]
        DOWNLOADING: _ClassVar[ServedVersion.State]
        COMPILING: _ClassVar[ServedVersion.State]
        VERIFYING: _ClassVar[ServedVersion.State]
        READY: _ClassVar[ServedVersion.State]
        DRAINING: _ClassVar[ServedVersion.State]
        FAILED: _ClassVar[ServedVersion.State]
    STATE_UNSPECIFIED: ServedVersion.State
    RESOLVING: ServedVersion.State
    DOWNLOADING: ServedVersion.State
    COMPILING: ServedVersion.State
    VERIFYING: ServedVersion.State
    READY: ServedVersion.State
    DRAINING: ServedVersion.State
    FAILED: ServedVersion.State
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    alias: str
    state: ServedVersion.State
    detail: str
    signatures: _containers.RepeatedCompositeFieldContainer[_artifact_pb2.Signature]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ..., state: _Optional[_Union[ServedVersion.State, str]] = ..., detail: _Optional[str] = ..., signatures: _Optional[_Iterable[_Union[_artifact_pb2.Signature, _Mapping]]] = ...) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetStatisticsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatistics]
    def __init__(self, versions: _Optional[_Iterable[_Union[VersionStatistics, _Mapping]]] = ...) -> None: ...

class VersionStatistics(_message.Message):
    __slots__ = ("model", "version", "succeeded", "failed", "waited", "batches")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    succeeded: Spent
    failed: Spent
    waited: Spent
    batches: _containers.RepeatedCompositeFieldContainer[BatchStatistics]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., succeeded: _Optional[_Union[Spent, _Mapping]] = ..., failed: _Optional[_Union[Spent, _Mapping]] = ..., waited: _Optional[_Union[Spent, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[BatchStatistics, _Mapping]]] = ...) -> None: ...

class BatchStatistics(_message.Message):
    __slots__ = ("rows", "input", "compute", "output")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    input: Spent
    compute: Spent
    output: Spent
    def __init__(self, rows: _Optional[int] = ..., input: _Optional[_Union[Spent, _Mapping]] = ..., compute: _Optional[_Union[Spent, _Mapping]] = ..., output: _Optional[_Union[Spent, _Mapping]] = ...) -> None: ...

class Spent(_message.Message):
    __slots__ = ("count", "seconds")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    seconds: float
    def __init__(self, count: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...
