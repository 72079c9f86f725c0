"""`AsyncClient`: performs calls by awaiting."""

# A timeout that gRPC knows is a deadline that the service knows; asyncio's would not reach it.
# ruff: noqa: ASYNC109

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio
from numpy.typing import ArrayLike, NDArray

from servax._blocking import Channels
from servax._calls import layouts, transfers
from servax._calls import registry as registry_calls
from servax._calls import worker as worker_calls
from servax._calls.endpoints import DEFAULT_TIMEOUT, Endpoints
from servax._calls.methods import channel_options
from servax._calls.steps import Call, Peer, Sleep, Step, Steps, Work
from servax._calls.stubs import Stub, stub
from servax.errors import FailedPrecondition, translated
from servax.reference import ModelReference
from servax.types import (
    DEFAULT,
    DEFAULT_SIGNATURE,
    Batching,
    Blob,
    Change,
    Content,
    FilePath,
    Golden,
    Model,
    ProgressCallback,
    ServedVersion,
    Timeout,
    Version,
    VersionStatistics,
    WorkerStatus,
)

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: the same methods, to be awaited; one event loop may use it.

        async with AsyncClient(worker="127.0.0.1:8500") as client:
            logits = (await client.predict("mnist", {"image": images}))["logits"]

    Files are read and written in threads, so that the event loop is never held up.
    """

    def __init__(
        self,
        *,
        registry: str | None = None,
        worker: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        actor: str | None = None,
    ) -> None:
        self._endpoints = Endpoints(registry, worker, timeout, actor)
        self._closed = False
        self._blocking = Channels(self._endpoints)
        self._channels: dict[Peer, grpc.aio.Channel] = {}
        self._stubs: dict[Peer, Stub] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls in flight end with `Cancelled`."""
        self._closed = True
        self._blocking.close()
        channels = list(self._channels.values())
        self._channels.clear()
        self._stubs.clear()
        for channel in channels:
            await channel.close()

    async def push(
        self,
        model: str,
        program: Content | Mapping[str, Content],
        *,
        weights: Iterable[FilePath] = (),
        aliases: Iterable[str] = (),
        description: str = "",
        labels: Mapping[str, str] | None = None,
        source_revision: str = "",
        batching: Batching | Mapping[str, Batching] | None = None,
        golden: Golden | Mapping[str, Golden] | None = None,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """As `Client.push`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            registry_calls.push(
                model,
                program,
                weights,
                aliases,
                description,
                labels or {},
                source_revision,
                batching,
                golden,
                seconds,
                progress,
            )
        )

    async def upload(
        self,
        path: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Blob:
        """As `Client.upload`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(registry_calls.upload_file(path, seconds, progress))

    def models(self, *, timeout: Timeout = DEFAULT) -> AsyncIterator[Model]:
        """As `Client.models`, for `async for`."""
        seconds = self._endpoints.seconds(timeout)
        return self._pages(lambda token: registry_calls.list_models(token, seconds))

    def versions(
        self,
        model: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        platform: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        expiring_before: date | None = None,
        deleted: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> AsyncIterator[Version]:
        """As `Client.versions`, for `async for`."""
        seconds = self._endpoints.seconds(timeout)
        request = registry_calls.versions_request(
            model, labels, platform, created_from, created_before, expiring_before, deleted
        )
        return self._pages(lambda token: registry_calls.list_versions(request, token, seconds))

    async def model(self, name: str, *, timeout: Timeout = DEFAULT) -> Model:
        """As `Client.model`."""
        return await self._perform(registry_calls.get_model(name, self._endpoints.seconds(timeout)))

    async def version(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> Version:
        """As `Client.version`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(registry_calls.get_version(reference, seconds))

    async def pull(
        self,
        reference: str | ModelReference,
        destination: FilePath,
        *,
        signature: str = DEFAULT_SIGNATURE,
        weights: FilePath | None = None,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """As `Client.pull`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            registry_calls.pull(
                reference,
                destination,
                signature,
                weights,
                seconds,
                progress,
            )
        )

    async def download(
        self,
        blob: Blob,
        destination: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Path:
        """As `Client.download`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(transfers.download(blob, destination, seconds, progress))

    async def read_blob(self, blob: Blob, *, timeout: Timeout = DEFAULT) -> bytes:
        """As `Client.read_blob`."""
        return await self._perform(transfers.read_blob(blob, self._endpoints.seconds(timeout)))

    async def set_alias(
        self,
        model: str,
        alias: str,
        version: int,
        *,
        expected_version: int | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Model:
        """As `Client.set_alias`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            registry_calls.set_alias(model, alias, version, expected_version, seconds)
        )

    async def delete_alias(self, model: str, alias: str, *, timeout: Timeout = DEFAULT) -> Model:
        """As `Client.delete_alias`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(registry_calls.delete_alias(model, alias, seconds))

    async def delete_version(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> Version:
        """As `Client.delete_version`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(registry_calls.delete_version(reference, seconds))

    async def undelete_version(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> Version:
        """As `Client.undelete_version`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(registry_calls.undelete_version(reference, seconds))

    async def copy_version(
        self,
        reference: str | ModelReference,
        destination: str,
        *,
        aliases: Iterable[str] = (),
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """As `Client.copy_version`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            registry_calls.copy_version(reference, destination, aliases, seconds)
        )

    async def add_encoding(
        self,
        reference: str | ModelReference,
        program: Content,
        *,
        signature: str = DEFAULT_SIGNATURE,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """As `Client.add_encoding`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            registry_calls.add_encoding(reference, program, signature, seconds, progress)
        )

    def changes(
        self,
        model: str | None = None,
        alias: str | None = None,
        *,
        since: int = 0,
        timeout: Timeout = DEFAULT,
    ) -> AsyncIterator[Change]:
        """As `Client.changes`, for `async for`."""
        seconds = self._endpoints.seconds(timeout)
        return self._pages(
            lambda token: registry_calls.list_changes(model, alias, token or str(since), seconds)
        )

    async def export_versions(
        self,
        references: Iterable[str | ModelReference],
        directory: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> list[Version]:
        """As `Client.export_versions`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            layouts.export_versions(references, directory, seconds, progress)
        )

    async def import_versions(
        self,
        directory: FilePath,
        *,
        aliases: bool = False,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> dict[str, Version]:
        """As `Client.import_versions`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(layouts.import_versions(directory, aliases, seconds, progress))

    async def predict(
        self,
        reference: str | ModelReference,
        inputs: Mapping[str, ArrayLike],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Iterable[str] = (),
        request_id: str = "",
        timeout: Timeout = DEFAULT,
    ) -> dict[str, NDArray[Any]]:
        """As `Client.predict`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(
            worker_calls.predict(reference, inputs, signature, outputs, seconds, request_id)
        )

    async def status(self, model: str | None = None, *, timeout: Timeout = DEFAULT) -> WorkerStatus:
        """As `Client.status`."""
        return await self._perform(
            worker_calls.status(model or "", self._endpoints.seconds(timeout))
        )

    async def statistics(
        self, model: str | None = None, *, timeout: Timeout = DEFAULT
    ) -> tuple[VersionStatistics, ...]:
        """As `Client.statistics`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(worker_calls.statistics(model or "", seconds))

    async def wait_until_ready(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> ServedVersion:
        """As `Client.wait_until_ready`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(worker_calls.wait_until_ready(reference, seconds))

    async def load(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> tuple[ServedVersion, ...]:
        """As `Client.load`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(worker_calls.load(reference, seconds))

    async def unload(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> tuple[ServedVersion, ...]:
        """As `Client.unload`."""
        seconds = self._endpoints.seconds(timeout)
        return await self._perform(worker_calls.unload(reference, seconds))

    async def _pages(self, page: Callable[[str], Steps[tuple[list[T], str]]]) -> AsyncIterator[T]:
        items, token = await self._perform(page(""))
        for item in items:
            yield item
        while token:
            items, token = await self._perform(page(token))
            for item in items:
                yield item

    async def _perform(self, steps: Steps[T]) -> T:
        """Run a call: perform each of its steps and give it the result, or the error."""
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._step(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _step(self, step: Step) -> Any:
        match step:
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Work(function):
                return await asyncio.to_thread(function)
            case Call():
                return await self._call(step)

    async def _call(self, step: Call) -> Any:
        if isinstance(step.request, Iterator):
            return await self._send_stream(step)
        method = getattr(self._stub(step.method.peer), step.method.name)
        with translated(self._endpoints.label(step.method.peer)):
            metadata = self._endpoints.metadata(step)
            call = method(step.request, timeout=step.timeout, metadata=metadata)
            if step.sink is None:
                return await call
            try:
                async for response in call:
                    await asyncio.to_thread(step.sink, response)
            finally:
                call.cancel()  # of no effect where the stream has ended

    async def _send_stream(self, step: Call) -> Any:
        # grpc.aio loses the status of a service that ends a stream early (grpc/grpc#36066), and
        # making the requests reads files, which wants a thread anyway.
        stream = self._blocking.start(step)
        try:
            return await asyncio.to_thread(stream.finish)
        finally:
            stream.cancel()  # of no effect where the stream has ended

    def _stub(self, peer: Peer) -> Stub:
        if self._closed:
            raise FailedPrecondition("this client is closed")
        if peer not in self._stubs:
            address = self._endpoints.address(peer)
            channel = grpc.aio.insecure_channel(address, options=channel_options(peer))
            self._channels[peer] = channel
            self._stubs[peer] = stub(peer, channel)
        return self._stubs[peer]
