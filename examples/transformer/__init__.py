"""A byte-level language model: Flax NNX, weights as an argument of the exported program."""
