"""Whom a client calls, and how long it waits."""

from dataclasses import dataclass

from servax._calls.steps import Call, Peer
from servax.errors import InvalidArgument
from servax.types import Default, Timeout

ACTOR_KEY = "servax-actor"
"""The metadata key in which callers tell the registry what they go by."""

REQUEST_ID_KEY = "x-request-id"
"""The metadata key in which callers name a request, for the log of the service."""

DEFAULT_TIMEOUT = 60.0
"""Seconds; publishing inspects programs and predicting may queue, everything else is quick."""


@dataclass(frozen=True)
class Endpoints:
    """What a client was made with: addresses ("HOST:PORT"), the timeout, and what it goes by."""

    registry: str | None
    worker: str | None
    timeout: float | None
    actor: str | None = None

    def address(self, peer: Peer) -> str:
        """Give the address of a peer; raises InvalidArgument when the client was given none."""
        address = self.registry if peer is Peer.REGISTRY else self.worker
        if not address:
            raise InvalidArgument(
                f"this client was given no {peer.value}: Client({peer.value}='HOST:PORT')"
            )
        return address

    def label(self, peer: Peer) -> str:
        """Say whom an error is about: "registry at 127.0.0.1:8400"."""
        return f"{peer.value} at {self.address(peer)}"

    def metadata(self, call: Call) -> tuple[tuple[str, str], ...]:
        """Give what is sent beside a request: its name, and to the registry, who makes it."""
        found = []
        if call.request_id:
            found.append((REQUEST_ID_KEY, _ascii(call.request_id)))
        if self.actor is not None and call.method.peer is Peer.REGISTRY:
            found.append((ACTOR_KEY, _ascii(self.actor)))
        return tuple(found)

    def seconds(self, timeout: Timeout) -> float | None:
        """Give the seconds that a call may take."""
        return self.timeout if isinstance(timeout, Default) else timeout


def _ascii(text: str) -> str:
    """Metadata takes nothing else."""
    return text.encode("ascii", "backslashreplace").decode()
