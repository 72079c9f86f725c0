"""Two classifiers of handwritten digits: a CNN in Flax NNX and an MLP in plain JAX."""
