"""The gRPC face of what is served: converts, delegates, and asks whether that is allowed."""

from typing import Any

import grpc.aio

from servax.convert import served_version_to_proto
from servax.errors import InvalidReference
from servax.reference import ModelReference
from servax_proto.v1 import management_pb2, management_pb2_grpc
from servax_worker.errors import InvalidInput, NotAllowed
from servax_worker.models import ServedModels

Context = grpc.aio.ServicerContext[Any, Any]


class ManagementServicer(management_pb2_grpc.WorkerManagementServicer):
    """servax.v1.WorkerManagement."""

    def __init__(self, models: ServedModels, *, allowed: bool):
        self._models = models
        self._allowed = allowed

    async def LoadModel(
        self, request: management_pb2.LoadModelRequest, context: Context
    ) -> management_pb2.LoadModelResponse:
        """Serves a model from now on."""
        served = self._models.load(self._reference(request))
        return management_pb2.LoadModelResponse(versions=map(served_version_to_proto, served))

    async def UnloadModel(
        self, request: management_pb2.UnloadModelRequest, context: Context
    ) -> management_pb2.UnloadModelResponse:
        """Serves a model no more."""
        served = await self._models.unload(self._reference(request))
        return management_pb2.UnloadModelResponse(versions=map(served_version_to_proto, served))

    def _reference(
        self, request: management_pb2.LoadModelRequest | management_pb2.UnloadModelRequest
    ) -> ModelReference:
        if not self._allowed:
            raise NotAllowed("this worker was not started with --allow-management")
        selector = request.WhichOneof("selector")
        try:
            return ModelReference(
                request.model,
                version=request.version if selector == "version" else None,
                alias=request.alias if selector == "alias" else None,
            )
        except InvalidReference as error:
            raise InvalidInput(str(error)) from error
