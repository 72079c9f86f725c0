"""servax.v1.Registry over gRPC: converts and delegates, nothing else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.protobuf import empty_pb2

from servax_proto.v1 import artifact_pb2, registry_pb2, registry_pb2_grpc
from servax_registry import convert
from servax_registry.errors import TooManyTransfers
from servax_registry.service import Registry


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
            return convert.version_to_proto(self._registry.publish_version(publication))

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
        page = self._registry.list_versions(request.model, request.page_size, request.page_token)
        return registry_pb2.ListVersionsResponse(
            versions=map(convert.version_to_proto, page.items),
            next_page_token=page.next_page_token,
        )

    def GetVersion(
        self, request: registry_pb2.GetVersionRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Version:
        """See the API."""
        selector = request.WhichOneof("selector")
        version = self._registry.get_version(
            request.model,
            version=request.version if selector == "version" else None,
            alias=request.alias if selector == "alias" else None,
        )
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
        )
        return convert.model_to_proto(model)

    def DeleteAlias(
        self, request: registry_pb2.DeleteAliasRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.Model:
        """See the API."""
        return convert.model_to_proto(self._registry.delete_alias(request.model, request.alias))

    def DeleteVersion(
        self, request: registry_pb2.DeleteVersionRequest, context: grpc.ServicerContext
    ) -> empty_pb2.Empty:
        """See the API."""
        self._registry.delete_version(request.model, request.version)
        return empty_pb2.Empty()

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
