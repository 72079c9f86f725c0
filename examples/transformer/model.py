"""A small decoder-only transformer over bytes, in Flax NNX."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class TransformerConfig:
    """The size of the network; the defaults give 3.36 million parameters."""

    vocabulary: int = 256
    sequence: int = 256
    blocks: int = 4
    d_model: int = 256
    heads: int = 4
    d_ffn: int = 1024


# What each block adds starts small, so that the residual stream carries the embeddings.
_residual_init = nnx.initializers.variance_scaling(0.1, "fan_in", "truncated_normal")


def _sinusoids(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Initialise positions with sines and cosines of many wavelengths.

    A shift by n positions is then the same rotation everywhere ("Attention Is All You Need",
    section 3.5, arXiv:1706.03762), so attention to the byte before is found in hundreds of steps.
    Wavelengths up to 50 times the shortest, instead of the paper's 10,000, and twice its amplitude
    tell neighbours apart better.
    """
    positions, width = shape
    angles = jnp.arange(positions)[:, None] / 50 ** (jnp.arange(0, width, 2) / width)
    return 2 * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1).astype(dtype)


class Attention(nnx.Module):
    """Causal multi-head self-attention: float32[b,t,d_model] to float32[b,t,d_model]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.heads = config.heads
        self.query = nnx.Linear(config.d_model, config.d_model, rngs=rngs)
        self.key = nnx.Linear(config.d_model, config.d_model, rngs=rngs)
        self.value = nnx.Linear(config.d_model, config.d_model, rngs=rngs)
        self.out = nnx.Linear(config.d_model, config.d_model, kernel_init=_residual_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Let each position look at itself and at those before it."""
        query, key, value = (
            projection(x).reshape(*x.shape[:2], self.heads, -1)
            for projection in (self.query, self.key, self.value)
        )
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.reshape(x.shape))


class Block(nnx.Module):
    """Attention, then a feed-forward network, each on a normalised residual stream (pre-norm)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.attn_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.attn = Attention(config, rngs=rngs)
        self.ffn_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.ffn_in = nnx.Linear(config.d_model, config.d_ffn, rngs=rngs)
        self.ffn_out = nnx.Linear(
            config.d_ffn, config.d_model, kernel_init=_residual_init, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map float32[b,t,d_model] to the same shape."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn_out(jax.nn.gelu(self.ffn_in(self.ffn_norm(x))))


class Transformer(nnx.Module):
    """Predicts each byte from those before it: int32[b,sequence] to float32[b,sequence,vocabulary].

    The logits at position i are the prediction of byte i + 1.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.token_embed = nnx.Embed(
            config.vocabulary,
            config.d_model,
            embedding_init=nnx.initializers.normal(1.0),
            rngs=rngs,
        )
        self.position_embed = nnx.Embed(
            config.sequence, config.d_model, embedding_init=_sinusoids, rngs=rngs
        )
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.blocks)])
        self.norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.logits = nnx.Linear(config.d_model, config.vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array, start: jax.Array | int = 0) -> jax.Array:
        """Return the logits; `start` (int32[b,1] or a number) is the position of the first byte."""
        positions = start + jnp.arange(tokens.shape[1])
        x = self.token_embed(tokens) + self.position_embed(positions)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))
