import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
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
    __slots__ = ("name", "program", "function_name", "inputs", "weights", "outputs", "platforms", "device_count", "calling_convention_version", "serialization_version", "stablehlo_version", "jax_version", "disabled_checks", "effects", "custom_nodes")
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
    def __init__(self, name: _Optional[str] = ..., program: _Optional[_Union[Blob, _Mapping]] = ..., function_name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., platforms: _Optional[_Iterable[str]] = ..., device_count: _Optional[int] = ..., calling_convention_version: _Optional[int] = ..., serialization_version: _Optional[int] = ..., stablehlo_version: _Optional[str] = ..., jax_version: _Optional[str] = ..., disabled_checks: _Optional[_Iterable[str]] = ..., effects: _Optional[_Iterable[str]] = ..., custom_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("model", "number", "signatures", "weights", "description", "labels", "create_time", "aliases")
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
    model: str
    number: int
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    weights: _containers.RepeatedCompositeFieldContainer[WeightsShard]
    description: str
    labels: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., number: _Optional[int] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightsShard, _Mapping]]] = ..., description: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

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
