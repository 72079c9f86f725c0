"""What the worker serves: references come and go while it runs."""

import asyncio
from collections.abc import Callable

from servax.reference import ModelReference
from servax.types import ServedState, ServedVersion
from servax_worker.errors import NotReady
from servax_worker.follower import Follower


class ServedModels:
    """A follower for each reference. All methods belong to one event loop."""

    def __init__(
        self,
        follow: Callable[[ModelReference], Follower],
        changed: Callable[[], None],
        gone: Callable[[ModelReference], None],
    ):
        """`follow` makes the follower of a reference that comes.

        `changed` is called after one came or went, `gone` with one that went.
        """
        self.followers: list[Follower] = []
        self._follow = follow
        self._changed = changed
        self._gone = gone
        self._running: dict[Follower, asyncio.Task[None]] = {}
        self._unloading: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def references(self) -> tuple[ModelReference, ...]:
        """What is served."""
        return tuple(follower.reference for follower in self.followers)

    def load(self, reference: ModelReference) -> list[ServedVersion]:
        """Serves a reference from now on, and tells how far that is.

        What is served already stays as it is; where its version has FAILED, quarantined ones
        included, that is tried once more. Raises NotReady while the worker is shutting down.
        """
        if self._closed:
            raise NotReady("the worker is shutting down; ask another")
        follower = self._find(reference)
        if follower is not None:
            follower.pardon()
            if follower.current.status.state is not ServedState.FAILED:
                return _statuses(follower)
            self._running.pop(follower).cancel()
            self.followers.remove(follower)
        follower = self._follow(reference)
        self.followers.append(follower)
        self._running[follower] = asyncio.create_task(follower.run())
        self._changed()
        return _statuses(follower)

    async def unload(self, reference: ModelReference) -> list[ServedVersion]:
        """Takes no calls for a reference any more, waits for those in flight, and frees its memory.

        That goes on although the caller leaves. Gives what was served; nothing where it was not.
        """
        follower = self._find(reference)
        if follower is None:
            return []
        self.followers.remove(follower)
        self._running.pop(follower).cancel()
        follower.drain()
        self._gone(reference)
        self._changed()
        task = asyncio.create_task(follower.unload())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)
        served = _statuses(follower)
        await asyncio.shield(task)
        return served

    async def close(self) -> None:
        """Stops loading and following, and takes nothing new."""
        self._closed = True
        tasks = [*self._running.values(), *self._unloading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, reference: ModelReference) -> Follower | None:
        return next((each for each in self.followers if each.reference == reference), None)


def _statuses(follower: Follower) -> list[ServedVersion]:
    return [loader.status for loader in follower.loaders]
