"""Models that come and go at a caller's wish."""

from typing import NoReturn

from servax_worker.errors import Unsupported


async def load(model: str) -> NoReturn:
    """Loads a model, or its newest version."""
    raise _settled("load", model)


async def unload(model: str) -> NoReturn:
    """Unloads a model."""
    raise _settled("unload", model)


def _settled(what: str, model: str) -> Unsupported:
    return Unsupported(
        f"cannot {what} '{model}': what this worker serves is chosen when it starts (--model); "
        f"aliases and latest versions are followed without a restart"
    )
