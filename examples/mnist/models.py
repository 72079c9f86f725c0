"""The two classifiers, from `image` to logits.

Both take bytes as they stand in an image file, uint8[b,28,28,1]. A request is then a quarter of
the size of float32, and scaling is part of the program: no caller can forget it or do it
differently from training.
"""

import jax
import jax.numpy as jnp
from flax import nnx

MlpParameters = dict[str, dict[str, jax.Array]]


class Cnn(nnx.Module):
    """Two convolutions and a linear layer: uint8[b,28,28,1] to float32[b,10]."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), rngs=rngs)
        self.logits = nnx.Linear(7 * 7 * 32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Return the logits."""
        x = _scaled(image)
        for convolution in (self.conv1, self.conv2):
            x = nnx.max_pool(jax.nn.relu(convolution(x)), window_shape=(2, 2), strides=(2, 2))
        return self.logits(x.reshape(x.shape[0], -1))


def init_mlp(key: jax.Array, hidden: int = 128) -> MlpParameters:
    """Draw the parameters of a network with one hidden layer."""
    keys = jax.random.split(key)
    init = jax.nn.initializers.lecun_normal()
    return {
        "hidden": {"kernel": init(keys[0], (28 * 28, hidden)), "bias": jnp.zeros(hidden)},
        "logits": {"kernel": init(keys[1], (hidden, 10)), "bias": jnp.zeros(10)},
    }


def apply_mlp(parameters: MlpParameters, image: jax.Array) -> jax.Array:
    """Map uint8[b,28,28,1] to float32[b,10]."""
    hidden, logits = parameters["hidden"], parameters["logits"]
    x = _scaled(image).reshape(image.shape[0], -1)
    x = jax.nn.relu(x @ hidden["kernel"] + hidden["bias"])
    return x @ logits["kernel"] + logits["bias"]


def _scaled(image: jax.Array) -> jax.Array:
    return image.astype(jnp.float32) / 255
