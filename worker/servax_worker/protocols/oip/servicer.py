"""The gRPC face of the protocol."""

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc.aio

from servax_proto.oip import inference_pb2, inference_pb2_grpc
from servax_worker.errors import Unsupported, WorkerError
from servax_worker.protocols.oip.convert import answer_to_proto, call_from_proto
from servax_worker.protocols.oip.description import Description
from servax_worker.protocols.oip.inference import Inference
from servax_worker.protocols.oip.repository import Repository
from servax_worker.protocols.oip.shared_memory import NO_CUDA, SharedMemory
from servax_worker.protocols.oip.stream import Streams

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """inference.GRPCInferenceService."""

    def __init__(
        self,
        inference: Inference,
        description: Description,
        memory: SharedMemory,
        repository: Repository,
        *,
        max_in_flight: int,
    ):
        """At most `max_in_flight` requests of one stream run at once."""
        self._inference = inference
        self._description = description
        self._memory = memory
        self._repository = repository
        self._streams = Streams(inference, max_in_flight)

    async def ModelInfer(
        self, request: inference_pb2.ModelInferRequest, context: Context
    ) -> inference_pb2.ModelInferResponse:
        """Calls a model."""
        call = call_from_proto(request, context.time_remaining())
        return answer_to_proto(await self._inference.run(call), call)

    async def ModelStreamInfer(  # type: ignore[override] # writes its answers instead of yielding
        self, request_iterator: AsyncIterator[inference_pb2.ModelInferRequest], context: Context
    ) -> None:
        """Calls models many times over one stream."""
        await self._streams.serve(request_iterator, context)

    async def ServerLive(
        self, request: inference_pb2.ServerLiveRequest, context: Context
    ) -> inference_pb2.ServerLiveResponse:
        """Tells that the server answers."""
        return inference_pb2.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: inference_pb2.ServerReadyRequest, context: Context
    ) -> inference_pb2.ServerReadyResponse:
        """Tells whether all models are ready."""
        return inference_pb2.ServerReadyResponse(ready=self._description.ready)

    async def ModelReady(
        self, request: inference_pb2.ModelReadyRequest, context: Context
    ) -> inference_pb2.ModelReadyResponse:
        """Tells whether a model is ready; as Triton, that one is not there is no error."""
        try:
            self._description.served(request.name, request.version)
        except WorkerError:
            return inference_pb2.ModelReadyResponse(ready=False)
        return inference_pb2.ModelReadyResponse(ready=True)

    async def ServerMetadata(
        self, request: inference_pb2.ServerMetadataRequest, context: Context
    ) -> inference_pb2.ServerMetadataResponse:
        """Tells what the server is."""
        return self._description.server()

    async def ModelMetadata(
        self, request: inference_pb2.ModelMetadataRequest, context: Context
    ) -> inference_pb2.ModelMetadataResponse:
        """Tells what a model takes and gives."""
        return self._description.metadata(request.name, request.version)

    async def ModelConfig(
        self, request: inference_pb2.ModelConfigRequest, context: Context
    ) -> inference_pb2.ModelConfigResponse:
        """Tells how a model is run."""
        config = self._description.config(request.name, request.version)
        return inference_pb2.ModelConfigResponse(config=config)

    async def ModelStatistics(
        self, request: inference_pb2.ModelStatisticsRequest, context: Context
    ) -> inference_pb2.ModelStatisticsResponse:
        """Tells how often models were called."""
        return self._description.statistics(request.name, request.version)

    async def RepositoryIndex(
        self, request: inference_pb2.RepositoryIndexRequest, context: Context
    ) -> inference_pb2.RepositoryIndexResponse:
        """Lists the models."""
        return self._description.index(request.repository_name, ready=request.ready)

    async def RepositoryModelLoad(
        self, request: inference_pb2.RepositoryModelLoadRequest, context: Context
    ) -> inference_pb2.RepositoryModelLoadResponse:
        """Loads a model."""
        await self._repository.load(request.model_name, request.parameters)
        return inference_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: inference_pb2.RepositoryModelUnloadRequest, context: Context
    ) -> inference_pb2.RepositoryModelUnloadResponse:
        """Unloads a model."""
        await self._repository.unload(request.model_name)
        return inference_pb2.RepositoryModelUnloadResponse()

    async def SystemSharedMemoryStatus(
        self, request: inference_pb2.SystemSharedMemoryStatusRequest, context: Context
    ) -> inference_pb2.SystemSharedMemoryStatusResponse:
        """Lists the registered regions."""
        return inference_pb2.SystemSharedMemoryStatusResponse(
            regions={
                region.name: inference_pb2.SystemSharedMemoryStatusResponse.RegionStatus(
                    name=region.name, key=region.key, offset=region.offset, byte_size=region.size
                )
                for region in self._memory.regions(request.name)
            }
        )

    async def SystemSharedMemoryRegister(
        self, request: inference_pb2.SystemSharedMemoryRegisterRequest, context: Context
    ) -> inference_pb2.SystemSharedMemoryRegisterResponse:
        """Makes a region known."""
        self._memory.register(request.name, request.key, request.offset, request.byte_size)
        return inference_pb2.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: inference_pb2.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> inference_pb2.SystemSharedMemoryUnregisterResponse:
        """Forgets one region, or all."""
        self._memory.unregister(request.name)
        return inference_pb2.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: inference_pb2.CudaSharedMemoryStatusRequest, context: Context
    ) -> inference_pb2.CudaSharedMemoryStatusResponse:
        """Lists none."""
        return inference_pb2.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: inference_pb2.CudaSharedMemoryRegisterRequest, context: Context
    ) -> NoReturn:
        """Not offered."""
        raise Unsupported(NO_CUDA)

    async def CudaSharedMemoryUnregister(
        self, request: inference_pb2.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> inference_pb2.CudaSharedMemoryUnregisterResponse:
        """Does nothing."""
        return inference_pb2.CudaSharedMemoryUnregisterResponse()

    def drain(self) -> None:
        """Takes nothing more from open streams; each ends when it has given its answers."""
        self._streams.drain()
