"""gRPC's health protocol, on a server that serves nothing else."""

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from servax_worker.health import Health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def watching(steps):
    """Runs `steps(health, watch)`; `watch(service)` gives a call of Watch."""

    async def run():
        health = Health(["", "served"])
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            await steps(
                health, lambda name: stub.Watch(health_pb2.HealthCheckRequest(service=name))
            )
        await server.stop(None)

    asyncio.run(run())


async def next_of(watch):
    """The next status of a watch."""
    return (await watch.read()).status


def test_those_who_stay_are_told_after_others_have_left():
    """A watcher that leaves costs the others nothing."""

    async def steps(health, watch):
        leaves, stays = watch(""), watch("")
        assert await next_of(leaves) == await next_of(stays) == NOT_SERVING
        leaves.cancel()
        await asyncio.sleep(0.1)
        health.tell(serving=True)
        assert await next_of(stays) == SERVING

    watching(steps)


def test_watches_end_with_the_server():
    """Watchers are told that nothing is served any more, and then their calls end."""

    async def steps(health, watch):
        health.tell(serving=True)
        call = watch("served")
        assert await next_of(call) == SERVING
        health.close()
        health.tell(serving=True)
        assert await next_of(call) == NOT_SERVING
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK

    watching(steps)


@pytest.mark.parametrize(("service", "status"), [("served", SERVING), ("other", UNKNOWN)])
def test_health_is_told_by_service(service, status):
    """A service that the server does not have is unknown."""

    async def steps(health, watch):
        health.tell(serving=True)
        assert await next_of(watch(service)) == status

    watching(steps)
