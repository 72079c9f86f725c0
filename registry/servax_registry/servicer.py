"""servax.v1.Registry over gRPC: converts and delegates, nothing else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc
from servax_registry import convert
from servax_registry.errors import InvalidName, TooManyTransfers
from servax_registry.service import Registry

# What callers call themselves, for the record of changes. Nobody checks it.
_ACTOR_KEY = "servax-actor"
_ACTOR_LENGTH = 256


class RegistryServicer(registry_pb2_grpc.RegistryServicer):
    """Answers calls out of a Registry.

    At most `max_transfers` calls that read or write blobs are under way at once: each keeps its
    thread for as long as its caller, or a blob, makes it. Publishing is one of them.
    """

    def __init__(self, registry: Registry, max_transfers: int) -> None:
        self._registry = registry
        self._max_transfers = max_transfers
        self._transfers = threading.Semaphore(max_transfers)

    def FindMissingBlobs(
        self, request: registry_pb2.FindMissingBlobsRequest, context: grpc.ServicerContext
    ) -> registry_pb2.FindMissingBlobsResponse:
        """See the API."""
        missing = self._registry.find_missing_blobs(request.digests)
        return registry_pb2.FindMissingBlobsResponse(missing=map(convert.missing_to_proto, missing))

    def WriteBlob(
        self,
        request_iterator: Iterator[registry_pb2.WriteBlobRequest],
        context: grpc.ServicerContext,
    ) -> registry_pb2.WriteBlobResponse:
        """See the API."""
        with self._transfer():
            blob, parts = convert.upload_from_proto(request_iterator)
            stored = self._registry.write_blob(blob, parts)
        return registry_pb2.WriteBlobResponse(blob=convert.blob_to_proto(stored))

    def ReadBlob(
        self, request: registry_pb2.ReadBlobRequest, context: grpc.ServicerContext
    ) -> Iterator[registry_pb2.ReadBlobResponse]:
        """See the API."""
        with self._transfer():
            for data in self._registry.read_blob(request.digest, request.offset, request.limit):
                yield registry_pb2.ReadBlobResponse(data=data)

    def PublishVersion(
        self, request: registry_pb2.PublishVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        publication = convert.publication_from_proto(request)
        with self._transfer():
            version = self._registry.publish_version(publication, actor=actor_of(context))
        return convert.version_to_proto(version)

    def ListModels(
        self, request: registry_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> registry_pb2.ListModelsResponse:
        """See the API."""
        page = self._registry.list_models(request.page_size, request.page_token)
        return registry_pb2.ListModelsResponse(
            models=map(convert.model_to_proto, page.items), next_page_token=page.next_page_token
        )

    def GetModel(
        self, request: registry_pb2.GetModelRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Model:
        """See the API."""
        return convert.model_to_proto(self._registry.get_model(request.model))

    def ListVersions(
        self, request: registry_pb2.ListVersionsRequest, context: grpc.ServicerContext
    ) -> registry_pb2.ListVersionsResponse:
        """See the API."""
        selection = convert.selection_from_proto(request)
        page = self._registry.list_versions(selection, request.page_size, request.page_token)
        return registry_pb2.ListVersionsResponse(
            versions=map(convert.version_to_proto, page.items),
            next_page_token=page.next_page_token,
        )

    def GetVersion(
        self, request: registry_pb2.GetVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        version = self._registry.get_version(request.model, *_selector(request))
        return convert.version_to_proto(version)

    def SetAlias(
        self, request: registry_pb2.SetAliasRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Model:
        """See the API."""
        model = self._registry.set_alias(
            request.model,
            request.alias,
            request.version,
            request.expected_version if request.HasField("expected_version") else None,
            actor=actor_of(context),
        )
        return convert.model_to_proto(model)

    def DeleteAlias(
        self, request: registry_pb2.DeleteAliasRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Model:
        """See the API."""
        model = self._registry.delete_alias(request.model, request.alias, actor=actor_of(context))
        return convert.model_to_proto(model)

    def DeleteVersion(
        self, request: registry_pb2.DeleteVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        version = self._registry.delete_version(
            request.model, request.version, actor=actor_of(context)
        )
        return convert.version_to_proto(version)

    def UndeleteVersion(
        self, request: registry_pb2.UndeleteVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        version = self._registry.undelete_version(
            request.model, request.version, actor=actor_of(context)
        )
        return convert.version_to_proto(version)

    def CopyVersion(
        self, request: registry_pb2.CopyVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        number, alias = _selector(request)
        version = self._registry.copy_version(
            request.model,
            request.destination,
            version=number,
            alias=alias,
            aliases=request.aliases,
            request_id=request.request_id or None,
            actor=actor_of(context),
        )
        return convert.version_to_proto(version)

    def AddEncoding(
        self, request: registry_pb2.AddEncodingRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        with self._transfer():
            version = self._registry.add_encoding(
                request.model,
                request.version,
                request.signature or convert.DEFAULT_SIGNATURE,
                request.digest,
                actor=actor_of(context),
            )
        return convert.version_to_proto(version)

    def ListChanges(
        self, request: registry_pb2.ListChangesRequest, context: grpc.ServicerContext
    ) -> registry_pb2.ListChangesResponse:
        """See the API."""
        recent = self._registry.list_changes(
            request.since, request.page_size, request.model, request.alias
        )
        return registry_pb2.ListChangesResponse(
            changes=map(convert.change_to_proto, recent.changes),
            revision=recent.revision,
            more=recent.more,
        )

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        if not self._transfers.acquire(blocking=False):
            raise TooManyTransfers(
                f"{self._max_transfers} uploads, downloads and publications are under way already; "
                "try again soon"
            )
        try:
            yield
        finally:
            self._transfers.release()


def actor_of(context: grpc.ServicerContext) -> str:
    """Give what the caller goes by: what it calls itself, or else its address.

    Raises InvalidName.
    """
    for key, value in context.invocation_metadata():
        if key == _ACTOR_KEY:
            text = value if isinstance(value, str) else value.decode(errors="replace")
            if not (0 < len(text) <= _ACTOR_LENGTH and text.isprintable()):
                raise InvalidName(
                    f"{_ACTOR_KEY} {text[:40]!a} is no name; 1 to {_ACTOR_LENGTH} characters that "
                    "can be printed are"
                )
            return text
    return context.peer()[:_ACTOR_LENGTH]


def _selector(
    request: registry_pb2.GetVersionRequest | registry_pb2.CopyVersionRequest,
) -> tuple[int | None, str | None]:
    match request.WhichOneof("selector"):
        case "version":
            return request.version, None
        case "alias":
            return None, request.alias
    return None, None
