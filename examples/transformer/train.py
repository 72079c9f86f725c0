"""Trains the transformer for a short while and saves it with Orbax."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from numpy.typing import NDArray

from examples.transformer.model import Transformer, TransformerConfig


@dataclass(frozen=True)
class Phase:
    """A number of steps, each on `windows` random windows of `length` bytes."""

    steps: int
    windows: int
    length: int


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides what comes out of training.

    Most steps see short windows: attention finds the bytes that matter much sooner among few
    (sequence length warm-up, arXiv:2108.06084), and a last phase carries that over to the full
    length. On two cores the defaults take about two minutes.
    """

    model: TransformerConfig = field(default_factory=TransformerConfig)
    phases: tuple[Phase, ...] = (Phase(600, 16, 32), Phase(150, 4, 128), Phase(150, 4, 256))
    learning_rate: float = 2e-3
    warmup_steps: int = 20
    seed: int = 0

    @property
    def steps(self) -> int:
        """The length of all phases together."""
        return sum(phase.steps for phase in self.phases)


def train(
    config: TrainingConfig,
    text: NDArray[np.uint8],
    checkpoint: Path,
    report: Callable[[int, float], None],
) -> None:
    """Train on `text` (uint8[n]) and save the model's state as a new Orbax checkpoint.

    `report` is called after each step with its number, from 1, and the loss in nats per byte.
    `checkpoint` must be an absolute path. It appears only once it is complete: whoever interrupts
    training leaves nothing behind.
    """
    model = Transformer(config.model, rngs=nnx.Rngs(config.seed))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_steps, config.steps, config.learning_rate / 50
    )
    optimizer = nnx.Optimizer(
        model,
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98)),
        wrt=nnx.Param,
    )
    random = np.random.default_rng(config.seed)
    step = 0
    for phase in config.phases:
        for _ in range(phase.steps):
            starts = random.integers(len(text) - phase.length, size=(phase.windows, 1))
            windows = text[starts + np.arange(phase.length + 1)].astype(np.int32)
            # Short windows stand at all positions, so that none stays unknown.
            places = random.integers(
                config.model.sequence - phase.length + 1, size=(phase.windows, 1), dtype=np.int32
            )
            loss = _train_step(model, optimizer, jnp.asarray(windows), jnp.asarray(places))
            step += 1
            report(step, float(loss))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(checkpoint, nnx.state(model))


@nnx.jit
def _train_step(
    model: Transformer,
    optimizer: nnx.Optimizer[Transformer],
    windows: jax.Array,
    places: jax.Array,
) -> jax.Array:
    def loss(model: Transformer) -> jax.Array:
        logits = model(windows[:, :-1], places)
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:])
        return losses.mean()

    value: jax.Array
    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value
