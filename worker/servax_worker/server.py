"""Wires a worker together and serves it."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_reflection.v1alpha import reflection
from starlette.routing import BaseRoute

from servax import Client
from servax.reference import ModelReference
from servax.types import ServedState
from servax_proto.v1 import (
    management_pb2,
    management_pb2_grpc,
    prediction_pb2,
    prediction_pb2_grpc,
)
from servax_worker.activity import Activity, Watch
from servax_worker.apart import ApartAssembler
from servax_worker.assembly import Assembler
from servax_worker.blobs import BlobCache
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import StartupError
from servax_worker.follower import Follower
from servax_worker.handover import Handover
from servax_worker.health import Health
from servax_worker.http import HttpServer, application, health_of, metrics_of
from servax_worker.interceptors import GuardedServer
from servax_worker.known import KnownVersions
from servax_worker.management import ManagementServicer
from servax_worker.memory import MemoryBudget
from servax_worker.metrics import Metrics
from servax_worker.models import ServedModels
from servax_worker.plans import Plans
from servax_worker.predictor import Predictor
from servax_worker.proofs import Proofs
from servax_worker.protocols import tfserving
from servax_worker.protocols.oip import OpenInference
from servax_worker.quarantine import Quarantine
from servax_worker.request_log import LoggedRequests
from servax_worker.runtime import Runtime
from servax_worker.servicer import PredictionServicer
from servax_worker.settings import Settings
from servax_worker.sockets import listening_socket, unix_socket
from servax_worker.versions import LoadedVersions

_SERVICE = prediction_pb2.DESCRIPTOR.services_by_name["Prediction"].full_name
_MANAGEMENT = management_pb2.DESCRIPTOR.services_by_name["WorkerManagement"].full_name

# How much larger than --max-message-bytes a message may be for the worker to explain the limit;
# beyond that gRPC refuses it unread.
_EXPLAINED = 4
_LARGEST_MESSAGE = 2**31 - 1

# How many seconds answers that are ready may take to be sent.
_LAST_WORDS = 5.0

# Seconds between two signs of life.
_BEAT = 1.0

log = structlog.get_logger(__name__)


class WorkerServer:
    """A worker that serves while its context is open.

    async with WorkerServer(settings) as server:
        await server.wait_until_loaded()
        ...  # call it at server.address

    Leaving the context withdraws health, refuses new requests, finishes those in flight within
    the grace period, and closes. Entering raises StartupError.
    """

    def __init__(
        self,
        settings: Settings,
        activity: Activity | None = None,
        quarantined: frozenset[str] = frozenset(),
    ):
        """`activity` is told what the process does, for whoever watches it.

        `quarantined` are versions, as in "lm:3", that are not to be loaded.
        """
        self._settings = settings
        self._shared = settings.processes > 1
        self._activity = activity
        self._quarantine = Quarantine(quarantined, self._hand_over)
        self._models = ServedModels(self._follow, self._models_changed, self._forget)
        self._changes = asyncio.Event()
        self._stack = AsyncExitStack()
        self._services = [_SERVICE]
        self.address = ""
        """Where gRPC is served, once the context is open."""
        self.http_address = ""
        """Where health and metrics are served, once the context is open."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def wait_until_loaded(self) -> None:
        """Waits until every model is READY or FAILED."""
        for follower in self._models.followers:
            await follower.loaded.wait()

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        self._metrics = Metrics()
        dispatcher = Dispatcher()
        stack.callback(dispatcher.close)
        self._predictor = Predictor(self._models.followers, self._metrics)
        self._metrics.watch_queues(self._predictor.waiting)

        open_inference = OpenInference(
            self._predictor, self._models, self._metrics.statistics, settings
        )
        routes = [*tfserving.routes(self._predictor, settings), *open_inference.routes()]
        https = self._http_servers(routes)
        for http in https:
            stack.push_async_callback(http.stop)
        # Clients of the Open Inference Protocol have no other way than one message.
        limit = max(_EXPLAINED * settings.max_message_bytes, settings.max_request_bytes)
        limit = min(limit, _LARGEST_MESSAGE)
        server = grpc.aio.server(
            options=[
                # A taken port is an error, not a second server that gets half of the calls; the
                # processes of one worker share the port that is kept for them.
                ("grpc.so_reuseport", int(self._shared)),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                # What a caller that vanished holds is let go within a minute.
                ("grpc.keepalive_time_ms", 40_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                # Callers may ping as often, to notice that the worker vanished.
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        self.address = _bind(server, settings.listen, shared=self._shared)

        self._registry = stack.enter_context(Client(registry=settings.registry))
        runtime, blobs, plans, proofs = self._open_parts()
        if self._shared and runtime.platform != "cpu":
            raise StartupError(
                f"several processes cannot share a device, and this is {runtime.platform}: start "
                f"a worker for each device instead of --processes {settings.processes}"
            )
        memory = MemoryBudget(settings.memory_limit or runtime.memory_limit)
        self._metrics.watch_memory(lambda: memory.reserved)
        assembler = Assembler(runtime, dispatcher, self._metrics, plans, memory, settings)
        stack.callback(assembler.close)
        apart = ApartAssembler(assembler, settings, proofs)
        self._versions = LoadedVersions(blobs, apart, self._quarantine)
        stack.push_async_callback(self._versions.close)

        servicer = PredictionServicer(
            self._predictor, settings, platform=runtime.platform, jax_version=runtime.jax_version
        )
        guarded: Any = GuardedServer(server, log_requests=settings.log_requests)
        prediction_pb2_grpc.add_PredictionServicer_to_server(servicer, guarded)
        manager = ManagementServicer(self._models, allowed=settings.allow_management)
        management_pb2_grpc.add_WorkerManagementServicer_to_server(manager, guarded)
        self._services += tfserving.add_to_server(self._predictor, self._models, settings, guarded)
        self._services += open_inference.add_to_server(guarded)
        self._health = Health(["", *self._services])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*self._services, _MANAGEMENT, HEALTH_SERVICE, reflection.SERVICE_NAME), server
        )
        for reference in settings.models:
            self._models.load(reference)
        self._health.tell(serving=self._predictor.ready)
        await server.start()
        for http in https:
            await http.start()
        stack.push_async_callback(self._drain, server, servicer, open_inference)
        stack.push_async_callback(self._models.close)

        background = [asyncio.create_task(self._follow_changes())]
        if self._activity is not None:
            self._activity.tell_ports(_port(self.address), _port(self.http_address))
            background.append(asyncio.create_task(_beat(self._activity)))
        stack.push_async_callback(_cancel, background)

    def _http_servers(self, routes: Sequence[BaseRoute]) -> list[HttpServer]:
        """What answers over HTTP; of several processes, each has a server for the others, too."""
        settings = self._settings
        own = partial(health_of, self._predictor), partial(metrics_of, self._metrics.registry)
        listening = listening_socket(settings.http, shared=self._shared)
        host, _, _ = settings.http.rpartition(":")
        self.http_address = f"{host}:{listening.getsockname()[1]}"
        logged = LoggedRequests if settings.log_requests else lambda app: app
        if settings.siblings is None:
            app = logged(application(*own, routes))
            return [HttpServer(app, listening, settings.grace)]
        from servax_worker.siblings import Siblings

        siblings = Siblings(settings.siblings, settings.processes)
        everyone = logged(application(siblings.health, siblings.metrics, routes))
        between = unix_socket(siblings.socket(settings.process))
        return [
            HttpServer(everyone, listening, settings.grace),
            HttpServer(application(*own), between, settings.grace),
        ]

    def _open_parts(self) -> tuple[Runtime, BlobCache, Plans, Proofs]:
        settings, directory = self._settings, self._settings.cache_directory
        watch = Watch(self._activity, settings.call_timeout, settings.load_timeout)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            blobs = BlobCache(directory / "blobs", self._registry)
            self._known = KnownVersions(directory / "known")
            runtime = Runtime(directory / "executables", watch, settings.allowed_custom_calls)
            plans = Plans(directory / "plans")
            proofs = Proofs(
                directory / "executables" / "proofs",  # without those they are worth nothing
                (
                    *(runtime.jax_version, runtime.platform, runtime.device, runtime.xla_flags),
                    *(sorted(settings.warm_up.items()), settings.max_executables),
                    *(settings.batching, settings.max_batch_rows),
                ),
            )
        except OSError as error:
            raise StartupError(f"cannot use the cache directory '{directory}': {error}") from error
        return runtime, blobs, plans, proofs

    def _follow(self, reference: ModelReference) -> Follower:
        return Follower(
            reference,
            self._registry,
            self._known,
            self._versions,
            self._changed,
            poll=self._settings.poll,
        )

    def _models_changed(self) -> None:
        self._hand_over()
        self._changes.set()

    def _hand_over(self) -> None:
        """Leaves what is to be known should this process die."""
        if self._activity is None:
            return
        handover = Handover.of(self._models.references, self._quarantine.pardoned)
        try:
            self._activity.leave_memo(handover.encode())
        except ValueError as error:
            log.warning("what was changed will not outlive this process", why=str(error))

    def _forget(self, reference: ModelReference) -> None:
        self._metrics.forget_states(reference.name, str(reference))

    def _changed(self, follower: Follower) -> None:
        reference, current = follower.reference, follower.current
        if follower not in self._models.followers:
            return  # it is on its way out, and forgotten
        states = {loader.status.state for loader in follower.loaders}
        answering = current.version if current.status.state is ServedState.READY else 0
        self._metrics.set_states(reference.name, str(reference), states, answering)
        self._changes.set()

    async def _follow_changes(self) -> None:
        while True:
            await self._changes.wait()
            self._changes.clear()
            self._health.tell(serving=self._predictor.ready)

    async def _drain(
        self,
        server: grpc.aio.Server,
        servicer: PredictionServicer,
        open_inference: OpenInference,
    ) -> None:
        log.info("draining", grace=self._settings.grace)
        self._health.close()
        self._predictor.drain()
        servicer.drain()
        open_inference.drain()
        # Who comes meanwhile is told to ask another worker; a server that stops would leave it to
        # chance what they are told.
        end = time.monotonic() + self._settings.grace
        await self._predictor.wait_until_idle(self._settings.grace)
        await server.stop(min(max(end - time.monotonic(), 0.0), _LAST_WORDS))


def _bind(server: grpc.aio.Server, listen: str, *, shared: bool) -> str:
    if not shared:  # else a caller might get the connection that is closed here
        # gRPC would not tell why an address cannot be used.
        listening_socket(listen).close()
    host, _, _ = listen.rpartition(":")
    try:
        return f"{host}:{server.add_insecure_port(listen)}"
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {listen}: {error}") from error


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


async def _beat(activity: Activity) -> None:
    while True:
        activity.beat()
        await asyncio.sleep(_BEAT)


async def _cancel(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
