"""Trains both classifiers for a few seconds and saves them with Orbax."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from examples.mnist.data import Digits
from examples.mnist.models import Cnn, apply_mlp, init_mlp

Report = Callable[[int, float], None]
Parameters = TypeVar("Parameters")


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides what comes out of training."""

    steps: int = 400
    batch: int = 64
    learning_rate: float = 2e-3
    seed: int = 0


def train_cnn(config: TrainingConfig, digits: Digits, checkpoint: Path, report: Report) -> None:
    """Train the CNN and save its state as a new Orbax checkpoint; see `_fit` for `report`."""
    graphdef, state = nnx.split(Cnn(rngs=nnx.Rngs(config.seed)))
    state = _fit(
        lambda state, image: nnx.merge(graphdef, state)(image), state, config, digits, report
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(checkpoint, state)


def train_mlp(config: TrainingConfig, digits: Digits, checkpoint: Path, report: Report) -> None:
    """Train the MLP and save its parameters as a new Orbax checkpoint; see `_fit` for `report`."""
    parameters = init_mlp(jax.random.key(config.seed))
    parameters = _fit(apply_mlp, parameters, config, digits, report)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(checkpoint, parameters)


def _fit(
    apply: Callable[[Parameters, jax.Array], jax.Array],
    parameters: Parameters,
    config: TrainingConfig,
    digits: Digits,
    report: Report,
) -> Parameters:
    """Return the trained parameters; `report` gets each step's number, from 1, and its loss."""
    optimizer = optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.steps))
    optimizer_state = optimizer.init(parameters)

    @jax.jit
    def step(
        parameters: Parameters, optimizer_state: optax.OptState, image: jax.Array, label: jax.Array
    ) -> tuple[Parameters, optax.OptState, jax.Array]:
        def loss(parameters: Parameters) -> jax.Array:
            logits = apply(parameters, image)
            losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, label)
            return losses.mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return optax.apply_updates(parameters, updates), optimizer_state, value

    random = np.random.default_rng(config.seed)
    for number in range(1, config.steps + 1):
        batch = random.integers(len(digits.labels), size=config.batch)
        parameters, optimizer_state, loss = step(
            parameters, optimizer_state, digits.images[batch], digits.labels[batch]
        )
        report(number, float(loss))
    return parameters
