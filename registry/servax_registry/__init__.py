"""The registry: stores jax.export artifacts and knows what they are."""
