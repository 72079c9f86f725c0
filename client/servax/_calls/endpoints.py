"""Whom a client calls, and how long it waits."""

from dataclasses import dataclass

from servax._calls.steps import Peer
from servax.errors import InvalidArgument
from servax.types import Default, Timeout

ACTOR_KEY = "servax-actor"
"""The metadata key in which callers tell the registry what they go by."""

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

    def metadata(self, peer: Peer) -> tuple[tuple[str, str], ...]:
        """Give what is sent beside every request: to the registry, who makes it."""
        if self.actor is None or peer is not Peer.REGISTRY:
            return ()
        # Metadata is ASCII.
        return ((ACTOR_KEY, self.actor.encode("ascii", "backslashreplace").decode()),)

    def seconds(self, timeout: Timeout) -> float | None:
        """Give the seconds that a call may take."""
        return self.timeout if isinstance(timeout, Default) else timeout
