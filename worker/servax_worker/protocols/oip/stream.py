"""ModelStreamInfer: many requests over one stream, answered as they are ready."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from servax_proto.oip import inference_pb2
from servax_worker.errors import NotReady
from servax_worker.interceptors import status_of
from servax_worker.protocols.oip.convert import answer_to_proto, call_from_proto
from servax_worker.protocols.oip.inference import Inference

Context = grpc.aio.ServicerContext[Any, Any]
_Requests = AsyncIterator[inference_pb2.ModelInferRequest]


class Streams:
    """The streams that are open."""

    def __init__(self, inference: Inference, max_in_flight: int):
        """At most `max_in_flight` requests of one stream run at once."""
        self._inference = inference
        self._max_in_flight = max_in_flight
        self._readers: set[asyncio.Task[None]] = set()
        self._draining = False

    async def serve(self, requests: _Requests, context: Context) -> None:
        """Answers requests until there are no more; raises NotReady where drained before."""
        stream = _Stream(self._inference, self._max_in_flight, context)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(stream.read(requests, group))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        if self._draining:
            raise NotReady("the worker is shutting down; ask another")

    def drain(self) -> None:
        """Takes nothing more from the streams; each ends when it has given its answers."""
        self._draining = True
        for reader in self._readers:
            reader.cancel()


class _Stream:
    def __init__(self, inference: Inference, max_in_flight: int, context: Context):
        self._inference = inference
        self._context = context
        self._slots = asyncio.Semaphore(max_in_flight)
        self._writing = asyncio.Lock()

    async def read(self, requests: _Requests, group: asyncio.TaskGroup) -> None:
        async for request in requests:
            # While all slots are taken nothing is read, and gRPC holds the sender back.
            await self._slots.acquire()
            group.create_task(self._answer(request))

    async def _answer(self, request: inference_pb2.ModelInferRequest) -> None:
        try:
            response = await self._respond(request)
            # Every request has one answer, which is its last; so there is no need for an empty one
            # after it where the caller asks for that (triton_enable_empty_final_response).
            answer = response.infer_response
            answer.parameters["triton_final_response"].bool_param = True
            async with self._writing:
                # It fails where the caller has vanished; gRPC then cancels this call.
                with contextlib.suppress(grpc.aio.InternalError):
                    await self._context.write(response)
        finally:
            self._slots.release()

    async def _respond(
        self, request: inference_pb2.ModelInferRequest
    ) -> inference_pb2.ModelStreamInferResponse:
        try:
            call = call_from_proto(request, self._context.time_remaining())
            answer = answer_to_proto(await self._inference.run(call), call)
            return inference_pb2.ModelStreamInferResponse(infer_response=answer)
        except Exception as error:
            _, message = status_of(error, "ModelStreamInfer")
            return inference_pb2.ModelStreamInferResponse(
                error_message=message,
                infer_response=inference_pb2.ModelInferResponse(
                    model_name=request.model_name,
                    model_version=request.model_version,
                    id=request.id,
                ),
            )
