"""The gRPC face of the predictor: converts, delegates, and keeps streams in bounds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio

from servax.convert import statistics_to_proto, worker_status_to_proto
from servax.types import ServedState, WorkerStatus
from servax_proto.v1 import prediction_pb2, prediction_pb2_grpc
from servax_worker.convert import (
    answer_to_parts,
    answer_to_proto,
    data_of,
    request_from_proto,
)
from servax_worker.errors import InvalidInput, NotReady, Overloaded, TooLarge, WorkerError
from servax_worker.interceptors import status_of
from servax_worker.parts import Joiner
from servax_worker.predictor import Predictor
from servax_worker.settings import Settings

Context = grpc.aio.ServicerContext[Any, Any]
_Joiner = Joiner[prediction_pb2.PredictRequest]


class PredictionServicer(prediction_pb2_grpc.PredictionServicer):
    """servax.v1.Prediction."""

    def __init__(
        self, predictor: Predictor, settings: Settings, *, platform: str, jax_version: str
    ):
        self._predictor = predictor
        self._settings = settings
        self._platform = platform
        self._jax_version = jax_version
        self._draining = False
        self._readers: set[asyncio.Task[None]] = set()

    async def Predict(
        self, request: prediction_pb2.PredictRequest, context: Context
    ) -> prediction_pb2.PredictResponse:
        """Calls one signature of one model."""
        size, limit = request.ByteSize(), self._settings.max_message_bytes
        if size > limit:
            raise TooLarge(
                f"the request has {size} bytes, Predict takes {limit} (--max-message-bytes of the "
                f"worker); send it in parts with PredictStream, which takes "
                f"{self._settings.max_request_bytes}"
            )
        asked = request_from_proto(request, data_of(request), context.time_remaining(), limit)
        return answer_to_proto(await self._predictor.predict(asked))

    async def PredictStream(  # type: ignore[override] # writes its answers instead of yielding
        self,
        request_iterator: AsyncIterator[prediction_pb2.PredictStreamRequest],
        context: Context,
    ) -> None:
        """Calls many times over one stream."""
        await _Stream(self._predictor, self._settings, context).serve(
            request_iterator, self._readers
        )
        if self._draining:
            raise NotReady("the worker is shutting down; ask another")

    async def GetStatus(
        self, request: prediction_pb2.GetStatusRequest, context: Context
    ) -> prediction_pb2.GetStatusResponse:
        """Tells what is served and in which state it is."""
        served = tuple(self._predictor.status(request.model))
        return worker_status_to_proto(WorkerStatus(served, self._platform, self._jax_version))

    async def GetStatistics(
        self, request: prediction_pb2.GetStatisticsRequest, context: Context
    ) -> prediction_pb2.GetStatisticsResponse:
        """Tells how often versions were called."""
        found = {
            (served.model, served.version)
            for served in self._predictor.status(request.model)
            if served.state in (ServedState.READY, ServedState.DRAINING)
        }
        statistics = self._predictor.statistics.find(sorted(found))
        return prediction_pb2.GetStatisticsResponse(versions=map(statistics_to_proto, statistics))

    def drain(self) -> None:
        """Takes nothing more from open streams; each ends when it has given its answers."""
        self._draining = True
        for reader in self._readers:
            reader.cancel()


class _Stream:
    """One call of PredictStream."""

    def __init__(self, predictor: Predictor, settings: Settings, context: Context):
        self._predictor = predictor
        self._context = context
        self._joiner = _Joiner(settings.max_request_bytes, settings.max_in_flight)
        self._slots = asyncio.Semaphore(settings.max_in_flight)
        self._running: set[int] = set()
        # FIFO, so that the parts of several answers take turns.
        self._writing = asyncio.Lock()

    async def serve(
        self,
        requests: AsyncIterator[prediction_pb2.PredictStreamRequest],
        readers: set[asyncio.Task[None]],
    ) -> None:
        """Reads requests until there are no more, and answers all; cancelling the task that it
        adds to `readers` ends the reading only.
        """
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(requests, group))
            readers.add(reader)
            reader.add_done_callback(readers.discard)

    async def _read(
        self,
        requests: AsyncIterator[prediction_pb2.PredictStreamRequest],
        group: asyncio.TaskGroup,
    ) -> None:
        async for message in requests:
            id = message.id
            if id in self._running:
                if self._joiner.refuse(id, message.more):
                    reason = f"request {id} of this stream is not answered yet"
                    await self._write_error(id, InvalidInput(reason))
                continue
            try:
                joined = self._joiner.add(
                    id,
                    message.request,
                    data_of(message.request),
                    message.more,
                    message.request.ByteSize(),
                )
            except WorkerError as error:
                await self._write_error(id, error)
                continue
            if joined is not None:
                # While all slots are taken nothing is read, and gRPC holds the sender back.
                await self._slots.acquire()
                self._running.add(id)
                group.create_task(self._answer(id, *joined))

    async def _answer(
        self,
        id: int,
        head: prediction_pb2.PredictRequest,
        data: Mapping[str, bytes | bytearray],
    ) -> None:
        try:
            request = request_from_proto(head, data, self._context.time_remaining())
            answer = await self._predictor.predict(request)
            for response, more in answer_to_parts(answer):
                await self._write(
                    prediction_pb2.PredictStreamResponse(id=id, response=response, more=more)
                )
        except Exception as error:
            await self._write_error(id, error)
        finally:
            self._slots.release()

    async def _write_error(self, id: int, error: Exception) -> None:
        code, message = status_of(error, "PredictStream")
        status = prediction_pb2.Error(
            code=code.value[0],
            message=message,
            retry_after=error.retry_after if isinstance(error, Overloaded) else 0.0,
        )
        await self._write(prediction_pb2.PredictStreamResponse(id=id, error=status))

    async def _write(self, response: prediction_pb2.PredictStreamResponse) -> None:
        async with self._writing:
            if not response.more:
                self._running.discard(response.id)  # the caller may use it again at once
            # It fails where the caller has vanished; gRPC then cancels this call.
            with contextlib.suppress(grpc.aio.InternalError):
                await self._context.write(response)
