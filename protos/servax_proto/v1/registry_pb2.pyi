import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from servax_proto.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindMissingBlobsRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class FindMissingBlobsResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedCompositeFieldContainer[MissingBlob]
    def __init__(self, missing: _Optional[_Iterable[_Union[MissingBlob, _Mapping]]] = ...) -> None: ...

class MissingBlob(_message.Message):
    __slots__ = ("digest", "committed_size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    committed_size: int
    def __init__(self, digest: _Optional[str] = ..., committed_size: _Optional[int] = ...) -> None: ...

class WriteBlobRequest(_message.Message):
    __slots__ = ("blob", "offset", "data")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    blob: _artifact_pb2.Blob
    offset: int
    data: bytes
    def __init__(self, blob: _Optional[_Union[_artifact_pb2.Blob, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteBlobResponse(_message.Message):
    __slots__ = ("blob",)
    BLOB_FIELD_NUMBER: _ClassVar[int]
    blob: _artifact_pb2.Blob
    def __init__(self, blob: _Optional[_Union[_artifact_pb2.Blob, _Mapping]] = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ("digest", "offset", "limit")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    limit: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadBlobResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("model", "programs", "weights", "description", "labels", "aliases", "request_id", "source_revision")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    model: str
    programs: _containers.RepeatedCompositeFieldContainer[ProgramSource]
    weights: _containers.RepeatedScalarFieldContainer[str]
    description: str
    labels: _containers.ScalarMap[str, str]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    source_revision: str
    def __init__(self, model: _Optional[str] = ..., programs: _Optional[_Iterable[_Union[ProgramSource, _Mapping]]] = ..., weights: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., aliases: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., source_revision: _Optional[str] = ...) -> None: ...

class ProgramSource(_message.Message):
    __slots__ = ("signature", "digest", "batching", "golden")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    signature: str
    digest: str
    batching: _artifact_pb2.Batching
    golden: GoldenSource
    def __init__(self, signature: _Optional[str] = ..., digest: _Optional[str] = ..., batching: _Optional[_Union[_artifact_pb2.Batching, _Mapping]] = ..., golden: _Optional[_Union[GoldenSource, _Mapping]] = ...) -> None: ...

class GoldenSource(_message.Message):
    __slots__ = ("digest", "rtol", "atol")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RTOL_FIELD_NUMBER: _ClassVar[int]
    ATOL_FIELD_NUMBER: _ClassVar[int]
    digest: str
    rtol: float
    atol: float
    def __init__(self, digest: _Optional[str] = ..., rtol: _Optional[float] = ..., atol: _Optional[float] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[_artifact_pb2.Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[_artifact_pb2.Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("model", "page_size", "page_token", "labels", "platform", "created_from", "created_before", "expiring_before", "show_deleted")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CREATED_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SHOW_DELETED_FIELD_NUMBER: _ClassVar[int]
    model: str
    page_size: int
    page_token: str
    labels: _containers.ScalarMap[str, str]
    platform: str
    created_from: _timestamp_pb2.Timestamp
    created_before: _timestamp_pb2.Timestamp
    expiring_before: str
    show_deleted: bool
    def __init__(self, model: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., platform: _Optional[str] = ..., created_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expiring_before: _Optional[str] = ..., show_deleted: bool = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions", "next_page_token")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[_artifact_pb2.Version]
    next_page_token: str
    def __init__(self, versions: _Optional[_Iterable[_Union[_artifact_pb2.Version, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("model", "version", "alias")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    alias: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("model", "alias", "version", "expected_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    version: int
    expected_version: int
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., version: _Optional[int] = ..., expected_version: _Optional[int] = ...) -> None: ...

class DeleteAliasRequest(_message.Message):
    __slots__ = ("model", "alias")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ...) -> None: ...

class DeleteVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class UndeleteVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class CopyVersionRequest(_message.Message):
    __slots__ = ("model", "version", "alias", "destination", "aliases", "request_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    alias: str
    destination: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ..., destination: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class AddEncodingRequest(_message.Message):
    __slots__ = ("model", "version", "signature", "digest")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    signature: str
    digest: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("since", "page_size", "model", "alias")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    since: int
    page_size: int
    model: str
    alias: str
    def __init__(self, since: _Optional[int] = ..., page_size: _Optional[int] = ..., model: _Optional[str] = ..., alias: _Optional[str] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("changes", "revision", "more")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    revision: int
    more: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., revision: _Optional[int] = ..., more: bool = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("revision", "time", "actor", "action", "model", "version", "alias", "previous_version", "detail")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[Change.Action]
        PUBLISH: _ClassVar[Change.Action]
        COPY: _ClassVar[Change.Action]
        DELETE: _ClassVar[Change.Action]
        UNDELETE: _ClassVar[Change.Action]
        COLLECT: _ClassVar[Change.Action]
        SET_ALIAS: _ClassVar[Change.Action]
        DELETE_ALIAS: _ClassVar[Change.Action]
        ADD_ENCODING: _ClassVar[Change.Action]
    ACTION_UNSPECIFIED: Change.Action
    PUBLISH: Change.Action
    COPY: Change.Action
    DELETE: Change.Action
    UNDELETE: Change.Action
    COLLECT: Change.Action
    SET_ALIAS: Change.Action
    DELETE_ALIAS: Change.Action
    ADD_ENCODING: Change.Action
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    revision: int
    time: _timestamp_pb2.Timestamp
    actor: str
    action: Change.Action
    model: str
    version: int
    alias: str
    previous_version: int
    detail: str
    def __init__(self, revision: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., actor: _Optional[str] = ..., action: _Optional[_Union[Change.Action, str]] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ..., previous_version: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...
