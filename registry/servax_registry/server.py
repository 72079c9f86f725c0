"""Wires the registry together and serves it."""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_reflection.v1alpha import reflection

from servax_proto.v1 import registry_pb2, registry_pb2_grpc
from servax_registry.artifact import Change
from servax_registry.convert import size_of
from servax_registry.errors import AddressUnusable
from servax_registry.examiner import Examiner
from servax_registry.health import Health
from servax_registry.interceptors import ErrorInterceptor
from servax_registry.notifier import Notifier
from servax_registry.service import Registry
from servax_registry.servicer import RegistryServicer
from servax_registry.settings import Settings
from servax_registry.stalls import StallInterceptor
from servax_registry.store.blobs import BlobStore
from servax_registry.store.database import Database
from servax_registry.store.sweeper import Sweeper

_log = structlog.get_logger(__name__)

_SERVICE = registry_pb2.DESCRIPTOR.services_by_name["Registry"].full_name

# Threads beyond those that transfers can take. A transfer holds its thread for as long as its
# caller pleases, so the other calls, which take milliseconds, have their own.
_SHORT_CALL_THREADS = 16

# For how many seconds a call waits for its caller to send or to take a message, at most 1 MiB. Who
# is slower than 9 kB/s would hold a thread for hours.
_PATIENCE = 120.0

_OPTIONS = (
    # A taken port is an error, not a second server that gets half of the calls.
    ("grpc.so_reuseport", 0),
    # A caller that vanished, or stopped, gives its thread back within a minute.
    ("grpc.keepalive_time_ms", 40_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Callers may ping as often, to notice that we vanished.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class RegistryServer:
    """A registry that serves from its creation on until it is stopped.

    `address` is where callers reach it, with the port that it got; `database` is where it keeps
    everything, without the password. Raises DatabaseUnusable, BlobsUnusable and
    AddressUnusable.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = Database(settings.database)
        self._database.migrate()
        self._database.observe(_log_changes)
        self.database = self._database.location
        blobs = BlobStore(self._database, settings.blobs)
        registry = Registry(
            self._database,
            blobs,
            size_of=size_of,
            allowed_custom_calls=settings.allowed_custom_calls,
        )
        self._health = Health(["", _SERVICE])
        self._threads = ThreadPoolExecutor(
            settings.max_transfers + _SHORT_CALL_THREADS, thread_name_prefix="rpc"
        )
        self._stalls = StallInterceptor(_PATIENCE)
        self._server = grpc.server(
            self._threads,
            interceptors=[self._stalls, ErrorInterceptor()],
            options=_OPTIONS,
        )
        registry_pb2_grpc.add_RegistryServicer_to_server(
            RegistryServicer(registry, settings.max_transfers), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), self._server
        )
        self.address = self._bind(settings.listen)
        self._sweeper = Sweeper(blobs, settings.upload_expiry)
        self._examiner = (
            Examiner(self._database, blobs, metadata.version("jax")) if settings.trials else None
        )
        self._notifier = Notifier(self._database)
        self._server.start()

    def _bind(self, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise AddressUnusable(
                f"{listen!r} is no address; give HOST:PORT, such as 127.0.0.1:8400"
            )
        try:
            _probe(host, int(port))
            return f"{host}:{self._server.add_insecure_port(listen)}"
        except (OSError, RuntimeError) as error:
            raise AddressUnusable(f"cannot listen on {listen}: {error}") from error

    def stop(self) -> None:
        """Take no more calls, finish those in flight within the grace period, and close."""
        self._health.close()
        self._server.stop(self._settings.grace).wait()
        # Uploads that were ended commit what arrived.
        self._threads.shutdown()
        self._stalls.close()
        self._sweeper.close()
        if self._examiner:
            self._examiner.close()
        self._notifier.close()
        self._database.close()


def _log_changes(changes: Sequence[Change]) -> None:
    for change in changes:
        about = {"model": change.model, "version": change.version, "alias": change.alias}
        _log.info(
            change.action.value,
            actor=change.actor,
            **{name: value for name, value in about.items() if value},
            revision=change.revision,
        )


def _probe(host: str, port: int) -> None:
    """Raise the OSError that tells why the address cannot be bound; gRPC keeps that to itself."""
    family, kind, _, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


@contextmanager
def serve(settings: Settings) -> Iterator[RegistryServer]:
    """Serve while the block runs."""
    server = RegistryServer(settings)
    try:
        yield server
    finally:
        server.stop()


def is_serving(address: str, timeout: float = 5.0) -> bool:
    """Ask the registry at HOST:PORT over gRPC's health protocol; False when none answers."""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest()
            stub = health_pb2_grpc.HealthStub(channel)
            response = stub.Check(request, timeout=timeout)  # type: ignore[attr-defined] # untyped
        except grpc.RpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
