"""The gRPC face of TensorFlow Serving's protocol."""

from typing import Any, NoReturn

import grpc.aio

from servax_proto.tfserving import serving_pb2, serving_pb2_grpc
from servax_worker.errors import InvalidInput, NotAllowed, TooLarge, Unsupported
from servax_worker.models import ServedModels
from servax_worker.predictor import Predictor
from servax_worker.protocols.tfserving import convert, reload
from servax_worker.settings import Settings

Context = grpc.aio.ServicerContext[Any, Any]


def add_to_server(
    predictor: Predictor, models: ServedModels, settings: Settings, server: grpc.aio.Server
) -> tuple[str, ...]:
    """Adds the services to a server; returns their names."""
    serving_pb2_grpc.add_PredictionServiceServicer_to_server(
        PredictionServicer(predictor, settings), server
    )
    serving_pb2_grpc.add_ModelServiceServicer_to_server(
        ModelServicer(predictor, models, allowed=settings.allow_management), server
    )
    services = serving_pb2.DESCRIPTOR.services_by_name
    return tuple(service.full_name for service in services.values())


class PredictionServicer(serving_pb2_grpc.PredictionServiceServicer):
    """tensorflow.serving.PredictionService."""

    def __init__(self, predictor: Predictor, settings: Settings):
        self._predictor = predictor
        self._settings = settings

    async def Predict(
        self, request: serving_pb2.PredictRequest, context: Context
    ) -> serving_pb2.PredictResponse:
        """Calls one signature of one model."""
        size, limit = request.ByteSize(), self._settings.max_message_bytes
        if size > limit:
            raise TooLarge(
                f"the request has {size} bytes, Predict takes {limit} (--max-message-bytes of the "
                f"worker); servax.v1.Prediction/PredictStream takes larger ones in parts"
            )
        asked = convert.request_from_proto(request, context.time_remaining(), limit)
        answer = await self._predictor.predict(asked)
        return convert.answer_to_proto(answer, content=self._settings.tensor_content)

    async def GetModelMetadata(
        self, request: serving_pb2.GetModelMetadataRequest, context: Context
    ) -> serving_pb2.GetModelMetadataResponse:
        """Tells the signatures of the version that would answer."""
        if set(request.metadata_field) != {convert.SIGNATURE_DEF}:
            raise InvalidInput(
                f"metadata_field is {list(request.metadata_field)}; "
                f"['{convert.SIGNATURE_DEF}'] is all that there is"
            )
        version, alias = convert.choice(request.model_spec)
        name = convert.model_name(request.model_spec)
        return convert.metadata_to_proto(self._predictor.served(name, version, alias))

    async def Classify(
        self, request: serving_pb2.ClassificationRequest, context: Context
    ) -> NoReturn:
        """Not offered."""
        raise Unsupported(_no_examples("Classify"))

    async def Regress(self, request: serving_pb2.RegressionRequest, context: Context) -> NoReturn:
        """Not offered."""
        raise Unsupported(_no_examples("Regress"))

    async def MultiInference(
        self, request: serving_pb2.MultiInferenceRequest, context: Context
    ) -> NoReturn:
        """Not offered."""
        raise Unsupported(_no_examples("MultiInference"))


class ModelServicer(serving_pb2_grpc.ModelServiceServicer):
    """tensorflow.serving.ModelService."""

    def __init__(self, predictor: Predictor, models: ServedModels, *, allowed: bool):
        self._predictor = predictor
        self._models = models
        self._allowed = allowed

    async def GetModelStatus(
        self, request: serving_pb2.GetModelStatusRequest, context: Context
    ) -> serving_pb2.GetModelStatusResponse:
        """Tells the states of one or all versions of a model."""
        spec = request.model_spec
        return convert.status_to_proto(self._predictor.status(convert.model_name(spec)), spec)

    async def HandleReloadConfigRequest(
        self, request: serving_pb2.ReloadConfigRequest, context: Context
    ) -> serving_pb2.ReloadConfigResponse:
        """Serves what a configuration names, and nothing else."""
        if not self._allowed:
            raise NotAllowed("this worker was not started with --allow-management")
        await reload.apply(request.config, self._models)
        return serving_pb2.ReloadConfigResponse(status=serving_pb2.StatusProto())


def _no_examples(method: str) -> str:
    return (
        f"{method} takes tf.Example messages, which programs of JAX do not; send the inputs as "
        f"tensors with Predict"
    )
