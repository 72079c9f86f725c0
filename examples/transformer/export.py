"""From an Orbax checkpoint to what is published: a program, and its weights beside it.

Nothing here is Servax: the program is what `jax.export` serializes, the weights are a safetensors
file. The program takes the weights as an argument, so it has 30 KB instead of 13 MB, and the next
version with the same code shares its executables.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import safetensors.flax
from flax import nnx
from jax import export

from examples.transformer.model import Transformer, TransformerConfig

Weights = dict[str, jax.Array]
Function = Callable[[Weights, jax.Array], dict[str, jax.Array]]


def restore(checkpoint: Path, config: TransformerConfig) -> tuple[Function, Weights]:
    """Restore a checkpoint (an absolute path) as a function and the weights to call it with.

    Each weight is named by its key path, as in "blocks.0.attn.query.kernel".
    """
    # An abstract target has the shapes and dtypes of the state, and no arrays.
    graphdef, target = nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(checkpoint, target)
    paths = {".".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}

    def transformer(weights: Weights, tokens: jax.Array) -> dict[str, jax.Array]:
        state = nnx.from_flat_state({paths[name]: array for name, array in weights.items()})
        return {"logits": nnx.merge(graphdef, state)(tokens)}

    weights = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}
    return transformer, weights


def export_program(function: Function, weights: Weights, config: TransformerConfig) -> bytes:
    """Export for CPU and CUDA: `tokens`, int32[b,sequence], to `logits`, for every batch size b."""
    # Otherwise the program holds this machine's source paths, and its digest depends on them.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda"))(
        {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()},
        jax.ShapeDtypeStruct((b, config.sequence), jnp.int32),
    )
    return bytes(exported.serialize())


def export_checkpoint(checkpoint: Path, config: TransformerConfig, directory: Path) -> None:
    """Write `program.bin` and `weights.safetensors` into a directory."""
    function, weights = restore(checkpoint, config)
    (directory / "program.bin").write_bytes(export_program(function, weights, config))
    safetensors.flax.save_file(weights, directory / "weights.safetensors")
