import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Blob(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size: int
    def __init__(self, digest: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "position")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[str]
    position: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[str]] = ..., position: _Optional[int] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("name", "program", "function_name", "inputs", "weights", "outputs", "platforms", "device_count", "calling_convention_version", "serialization_version", "stablehlo_version", "jax_version", "disabled_checks", "effects", "custom_nodes", "custom_calls", "compatibility", "trial", "encodings", "batching", "golden")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CALLING_CONVENTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERIALIZATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    STABLEHLO_VERSION_FIELD_NUMBER: _ClassVar[int]
    JAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    DISABLED_CHECKS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_NODES_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_CALLS_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    program: Blob
    function_name: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    weights: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    platforms: _containers.RepeatedScalarFieldContainer[str]
    device_count: int
    calling_convention_version: int
    serialization_version: int
    stablehlo_version: str
    jax_version: str
    disabled_checks: _containers.RepeatedScalarFieldContainer[str]
    effects: _containers.RepeatedScalarFieldContainer[str]
    custom_nodes: _containers.RepeatedScalarFieldContainer[str]
    custom_calls: _containers.RepeatedScalarFieldContainer[str]
    compatibility: Compatibility
    trial: Trial
    encodings: _containers.RepeatedCompositeFieldContainer[Encoding]
    batching: Batching
    golden: GoldenExample
    def __init__(self, name: _Optional[str] = ..., program: _Optional[_Union[Blob, _Mapping]] = ..., function_name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., platforms: _Optional[_Iterable[str]] = ..., device_count: _Optional[int] = ..., calling_convention_version: _Optional[int] = ..., serialization_version: _Optional[int] = ..., stablehlo_version: _Optional[str] = ..., jax_version: _Optional[str] = ..., disabled_checks: _Optional[_Iterable[str]] = ..., effects: _Optional[_Iterable[str]] = ..., custom_nodes: _Optional[_Iterable[str]] = ..., custom_calls: _Optional[_Iterable[str]] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., trial: _Optional[_Union[Trial, _Mapping]] = ..., encodings: _Optional[_Iterable[_Union[Encoding, _Mapping]]] = ..., batching: _Optional[_Union[Batching, _Mapping]] = ..., golden: _Optional[_Union[GoldenExample, _Mapping]] = ...) -> None: ...

class Compatibility(_message.Message):
    __slots__ = ("oldest_jax", "oldest_jax_date", "expires", "estimated")
    OLDEST_JAX_FIELD_NUMBER: _ClassVar[int]
    OLDEST_JAX_DATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    oldest_jax: str
    oldest_jax_date: str
    expires: str
    estimated: bool
    def __init__(self, oldest_jax: _Optional[str] = ..., oldest_jax_date: _Optional[str] = ..., expires: _Optional[str] = ..., estimated: bool = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("outcome", "reason", "jax_version", "size", "ran", "flops", "accessed_bytes", "argument_bytes", "result_bytes", "temporary_bytes", "code_bytes")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Trial.Outcome]
        PASSED: _ClassVar[Trial.Outcome]
        FAILED: _ClassVar[Trial.Outcome]
        IMPOSSIBLE: _ClassVar[Trial.Outcome]
    OUTCOME_UNSPECIFIED: Trial.Outcome
    PASSED: Trial.Outcome
    FAILED: Trial.Outcome
    IMPOSSIBLE: Trial.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    ACCESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CODE_BYTES_FIELD_NUMBER: _ClassVar[int]
    outcome: Trial.Outcome
    reason: str
    jax_version: str
    size: int
    ran: bool
    flops: int
    accessed_bytes: int
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    code_bytes: int
    def __init__(self, outcome: _Optional[_Union[Trial.Outcome, str]] = ..., reason: _Optional[str] = ..., jax_version: _Optional[str] = ..., size: _Optional[int] = ..., ran: bool = ..., flops: _Optional[int] = ..., accessed_bytes: _Optional[int] = ..., argument_bytes: _Optional[int] = ..., result_bytes: _Optional[int] = ..., temporary_bytes: _Optional[int] = ..., code_bytes: _Optional[int] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("program", "calling_convention_version", "serialization_version", "stablehlo_version", "jax_version", "compatibility", "create_time", "trial")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CALLING_CONVENTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERIALIZATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    STABLEHLO_VERSION_FIELD_NUMBER: _ClassVar[int]
    JAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    program: Blob
    calling_convention_version: int
    serialization_version: int
    stablehlo_version: str
    jax_version: str
    compatibility: Compatibility
    create_time: _timestamp_pb2.Timestamp
    trial: Trial
    def __init__(self, program: _Optional[_Union[Blob, _Mapping]] = ..., calling_convention_version: _Optional[int] = ..., serialization_version: _Optional[int] = ..., stablehlo_version: _Optional[str] = ..., jax_version: _Optional[str] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trial: _Optional[_Union[Trial, _Mapping]] = ...) -> None: ...

class Batching(_message.Message):
    __slots__ = ("symbol", "max_rows")
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    symbol: str
    max_rows: int
    def __init__(self, symbol: _Optional[str] = ..., max_rows: _Optional[int] = ...) -> None: ...

class GoldenExample(_message.Message):
    __slots__ = ("blob", "rtol", "atol", "tensors")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    RTOL_FIELD_NUMBER: _ClassVar[int]
    ATOL_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    blob: Blob
    rtol: float
    atol: float
    tensors: _containers.RepeatedCompositeFieldContainer[StoredTensor]
    def __init__(self, blob: _Optional[_Union[Blob, _Mapping]] = ..., rtol: _Optional[float] = ..., atol: _Optional[float] = ..., tensors: _Optional[_Iterable[_Union[StoredTensor, _Mapping]]] = ...) -> None: ...

class VersionName(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class StoredTensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    size: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class WeightsShard(_message.Message):
    __slots__ = ("blob", "tensors")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    blob: Blob
    tensors: _containers.RepeatedCompositeFieldContainer[StoredTensor]
    def __init__(self, blob: _Optional[_Union[Blob, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[StoredTensor, _Mapping]]] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("model", "number", "signatures", "weights", "description", "labels", "create_time", "aliases", "creator", "source_revision", "copied_from", "delete_time")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    COPIED_FROM_FIELD_NUMBER: _ClassVar[int]
    DELETE_TIME_FIELD_NUMBER: _ClassVar[int]
    model: str
    number: int
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    weights: _containers.RepeatedCompositeFieldContainer[WeightsShard]
    description: str
    labels: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    aliases: _containers.RepeatedScalarFieldContainer[str]
    creator: str
    source_revision: str
    copied_from: VersionName
    delete_time: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[str] = ..., number: _Optional[int] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightsShard, _Mapping]]] = ..., description: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., aliases: _Optional[_Iterable[str]] = ..., creator: _Optional[str] = ..., source_revision: _Optional[str] = ..., copied_from: _Optional[_Union[VersionName, _Mapping]] = ..., delete_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "create_time", "latest_version", "version_count", "aliases")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    create_time: _timestamp_pb2.Timestamp
    latest_version: int
    version_count: int
    aliases: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., latest_version: _Optional[int] = ..., version_count: _Optional[int] = ..., aliases: _Optional[_Mapping[str, int]] = ...) -> None: ...
