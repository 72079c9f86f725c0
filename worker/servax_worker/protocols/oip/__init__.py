"""The Open Inference Protocol (KServe V2, in Triton's dialect), over gRPC and over HTTP."""

import grpc.aio
from starlette.routing import BaseRoute

from servax_proto.oip import inference_pb2_grpc
from servax_worker.models import ServedModels
from servax_worker.predictor import Predictor
from servax_worker.protocols.oip.description import Description
from servax_worker.protocols.oip.inference import Inference
from servax_worker.protocols.oip.repository import Repository
from servax_worker.protocols.oip.rest import RestApi
from servax_worker.protocols.oip.servicer import SERVICE, InferenceServicer
from servax_worker.protocols.oip.shared_memory import SharedMemory
from servax_worker.settings import Settings
from servax_worker.statistics import Statistics

_EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")


class OpenInference:
    """The protocol, for one worker."""

    def __init__(
        self,
        predictor: Predictor,
        models: ServedModels,
        statistics: Statistics,
        settings: Settings,
    ):
        self._memory = SharedMemory(allowed=settings.allow_shared_memory)
        self._inference = Inference(predictor, self._memory, settings.max_request_bytes)
        self._repository = Repository(models, allowed=settings.allow_management)
        extensions = list(_EXTENSIONS)
        if self._memory.allowed:
            extensions.append("system_shared_memory")
        if self._repository.allowed:
            extensions.append("model_repository")
        self._description = Description(predictor, statistics, settings, extensions)
        self._servicer = InferenceServicer(
            self._inference,
            self._description,
            self._memory,
            self._repository,
            max_in_flight=settings.max_in_flight,
        )
        self._settings = settings

    def add_to_server(self, server: grpc.aio.Server) -> tuple[str, ...]:
        """Adds the service to a server; returns its name."""
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self._servicer, server)
        return (SERVICE,)

    def routes(self) -> list[BaseRoute]:
        """What the worker's HTTP server answers."""
        return RestApi(
            self._inference,
            self._description,
            self._memory,
            self._repository,
            self._settings.max_request_bytes,
        ).routes()

    def drain(self) -> None:
        """Takes nothing more from open streams; each ends when it has given its answers."""
        self._servicer.drain()


__all__ = ["OpenInference"]
