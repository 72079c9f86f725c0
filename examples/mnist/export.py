"""From Orbax checkpoints to programs, in the two ways that there are to treat weights.

The CNN's program takes them as an argument, to be pushed beside it; the MLP's holds them as
constants, which needs no second file and suits small models that change as a whole.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import safetensors.flax
from flax import nnx
from jax import export

from examples.mnist.models import Cnn, apply_mlp, init_mlp

Weights = dict[str, jax.Array]
Logits = dict[str, jax.Array]


def restore_cnn(checkpoint: Path) -> tuple[Callable[[Weights, jax.Array], Logits], Weights]:
    """Restore a checkpoint as a function and its weights, each named by its key path."""
    graphdef, target = nnx.split(nnx.eval_shape(lambda: Cnn(rngs=nnx.Rngs(0))))
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(checkpoint, target)
    paths = {".".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}

    def cnn(weights: Weights, image: jax.Array) -> Logits:
        state = nnx.from_flat_state({paths[name]: array for name, array in weights.items()})
        return {"logits": nnx.merge(graphdef, state)(image)}

    weights = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}
    return cnn, weights


def restore_mlp(checkpoint: Path) -> Callable[[jax.Array], Logits]:
    """Restore a checkpoint as a function that holds its parameters."""
    target = jax.eval_shape(init_mlp, jax.random.key(0))
    with ocp.StandardCheckpointer() as checkpointer:
        parameters = checkpointer.restore(checkpoint, target)

    def mlp(image: jax.Array) -> Logits:
        return {"logits": apply_mlp(parameters, image)}

    return mlp


def export_cnn(checkpoint: Path, directory: Path, batch: str = "b") -> None:
    """Write `program.bin` and `weights.safetensors` into a directory.

    `batch` is how many images the program takes: any number, or as many as in "16".
    """
    cnn, weights = restore_cnn(checkpoint)
    specs = {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}
    (directory / "program.bin").write_bytes(_export(cnn, specs, _image(batch)))
    safetensors.flax.save_file(weights, directory / "weights.safetensors")


def export_mlp(checkpoint: Path, directory: Path, batch: str = "b") -> None:
    """Write `program.bin`, which holds the weights, into a directory; `batch` as above."""
    (directory / "program.bin").write_bytes(_export(restore_mlp(checkpoint), _image(batch)))


def _image(batch: str) -> jax.ShapeDtypeStruct:
    (size,) = export.symbolic_shape(batch)
    return jax.ShapeDtypeStruct((size, 28, 28, 1), jnp.uint8)


def _export(function: Callable[..., Logits], *specs: Any) -> bytes:
    """Export for CPU and CUDA."""
    # Otherwise the program holds this machine's source paths, and its digest depends on them.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda"))(*specs)
    return bytes(exported.serialize())
