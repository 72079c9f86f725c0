"""Where arrays lie: which devices a program runs on, and weights put there once."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.export
import numpy as np
from numpy.typing import NDArray

from servax_worker.errors import CannotServe

Sharding: TypeAlias = jax.sharding.Sharding | None
"""How an array is spread over devices; None for all of it on the default one."""


@dataclass(frozen=True)
class Placement:
    """The shardings of a program's flat arguments and results."""

    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]

    @property
    def options(self) -> Mapping[str, Any]:
        """What `jax.jit` is to be told."""
        if all(sharding is None for sharding in (*self.inputs, *self.outputs)):
            return {}
        return {"in_shardings": self.inputs, "out_shardings": self.outputs}


def placement(exported: jax.export.Exported) -> Placement:
    """Where a program's arguments and results lie: on the first devices of this process.

    A program for several devices has to be called over a mesh with the axes (names, sizes and
    types) that it was exported with: https://github.com/jax-ml/jax/pull/33597. Raises CannotServe
    where it does not tell them.
    """
    count = exported.nr_devices
    if count == 1:
        return Placement((None,) * len(exported.in_avals), (None,) * len(exported.out_avals))
    named: list[Any] = [
        *(exported._in_named_shardings or ()),
        *(exported._out_named_shardings or ()),
    ]
    meshes = [sharding.mesh for sharding in named if sharding is not None]
    if not meshes:
        raise CannotServe(
            f"the program runs on {count} devices and does not tell over which mesh: export it "
            f"with named shardings"
        )
    axes = meshes[0]
    devices = np.array(jax.local_devices()[:count]).reshape(axes.axis_sizes)
    mesh = jax.sharding.Mesh(devices, axes.axis_names, axis_types=axes.axis_types)
    return Placement(
        tuple(exported.in_shardings_jax(mesh)), tuple(exported.out_shardings_jax(mesh))
    )


class Weights:
    """The weights of a version, each on the devices once however many programs take it."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]):
        """`arrays` are views of mapped files, by the names of the stored tensors."""
        self._arrays = arrays
        self._placed: dict[tuple[str, Sharding], jax.Array] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """How many bytes they take, once."""
        return sum(array.nbytes for array in self._arrays.values())

    def get(self, name: str, sharding: Sharding) -> jax.Array:
        """One of them where a program wants it.

        On CPU, arrays that are aligned to 64 bytes are used where they are mapped.
        """
        with self._lock:
            key = name, sharding
            if key not in self._placed:
                array = jax.device_put(self._arrays[name], sharding)
                self._placed[key] = array.block_until_ready()
            return self._placed[key]
