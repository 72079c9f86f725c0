"""Where trained checkpoints are kept between runs."""

import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

# What decides, beside source, configuration and data, what training gives and how it is stored.
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def checkpoint_path(
    root: Path, name: str, *, sources: Iterable[ModuleType], config: object, data: bytes
) -> Path:
    """Return the absolute path of the checkpoint that this training gives.

    Its last part ends in a hash of the source modules, the configuration's repr, the training data
    and the libraries' versions: whatever changes, a stale checkpoint is not found. Orbax makes a
    checkpoint appear whole, so a path that exists can be used.
    """
    digest = hashlib.sha256(data)
    for module in sources:
        if module.__file__ is None:
            raise ValueError(f"module {module.__name__} has no source file to hash")
        digest.update(Path(module.__file__).read_bytes())
    versions = [f"{library}=={importlib.metadata.version(library)}" for library in _LIBRARIES]
    digest.update(repr((config, versions)).encode())
    return root.resolve() / f"{name}-{digest.hexdigest()[:16]}"
