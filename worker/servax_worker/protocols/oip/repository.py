"""Models that come and go at a caller's wish."""

import asyncio
from collections.abc import Collection

from servax.errors import InvalidReference
from servax.reference import ModelReference
from servax.types import ServedState
from servax_worker.errors import CannotServe, InvalidInput, NotAllowed, NotServed, Unsupported
from servax_worker.models import ServedModels

# Seconds between two looks at what is being loaded.
_LOOK = 0.05


class Repository:
    """Loads and unloads models.

    A model is named as everywhere in Servax: NAME for its newest version, NAME:3, NAME@ALIAS.
    """

    def __init__(self, models: ServedModels, *, allowed: bool):
        self._models = models
        self.allowed = allowed
        """Whether the operator allows it."""

    async def load(self, model: str, parameters: Collection[str] = ()) -> None:
        """Serves a model from now on; returns when it is READY.

        What began goes on although the caller leaves. Raises NotServed where the registry does not
        have it, or cannot be asked; CannotServe where it has FAILED; NotAllowed, InvalidInput and
        Unsupported.
        """
        reference = self._reference(model)
        if parameters:
            raise Unsupported(
                f"parameters {', '.join(sorted(parameters))}: a model is loaded from the registry "
                f"as it was published"
            )
        served_before = reference in self._models.references
        self._models.load(reference)
        (follower,) = [each for each in self._models.followers if each.reference == reference]
        while not follower.loaded.is_set():
            if follower not in self._models.followers:
                raise NotServed(f"'{model}' was unloaded before it was ready")
            status = follower.current.status
            # Which goes on for ever by itself: the model may yet be published.
            if status.state is ServedState.RESOLVING and status.detail and not served_before:
                await self._models.unload(reference)
                raise NotServed(f"cannot load '{model}': {status.detail}")
            await asyncio.sleep(_LOOK)
        status = follower.current.status
        if status.state is ServedState.FAILED:
            raise CannotServe(f"cannot load '{model}': {status.detail}")

    async def unload(self, model: str) -> None:
        """Serves a model no more, under whichever references where it is named alone.

        Returns when its last call has ended. Raises NotServed, NotAllowed and InvalidInput.
        """
        wanted = self._reference(model)
        found = [
            reference
            for reference in self._models.references
            if reference == wanted or (str(wanted) == wanted.name == reference.name)
        ]
        if not found:
            there_are = ", ".join(map(str, self._models.references)) or "nothing"
            raise NotServed(f"'{model}' is not served; this worker serves {there_are}")
        await asyncio.gather(*map(self._models.unload, found))

    def _reference(self, model: str) -> ModelReference:
        if not self.allowed:
            raise NotAllowed("this worker was not started with --allow-management")
        try:
            return ModelReference.parse(model)
        except InvalidReference as error:
            raise InvalidInput(str(error)) from error
