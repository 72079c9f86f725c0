"""What is called on each peer."""

from typing import Any, TypeAlias

from servax._calls.steps import Peer
from servax_proto.v1.management_pb2_grpc import WorkerManagementStub
from servax_proto.v1.prediction_pb2_grpc import PredictionStub
from servax_proto.v1.registry_pb2_grpc import RegistryStub


class WorkerStub(PredictionStub, WorkerManagementStub):
    """All services of a worker; the names of their methods differ."""

    def __init__(self, channel: Any) -> None:
        # Their types have __new__ in place of what generated stubs do have.
        PredictionStub.__init__(self, channel)  # type: ignore[call-arg]
        WorkerManagementStub.__init__(self, channel)  # type: ignore[call-arg]


Stub: TypeAlias = RegistryStub | WorkerStub


def stub(peer: Peer, channel: Any) -> Stub:
    """Give the methods of a peer on a channel of either kind."""
    return RegistryStub(channel) if peer is Peer.REGISTRY else WorkerStub(channel)
