"""Both digit classifiers' way from training to exported programs, in small."""

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax import export

from examples.mnist import data
from examples.mnist.export import export_cnn, export_mlp, restore_cnn, restore_mlp
from examples.mnist.train import TrainingConfig, train_cnn, train_mlp

CONFIG = TrainingConfig(steps=30, batch=32)


@pytest.fixture(scope="module")
def digits():
    """Load the digits: those to train with, those to test with."""
    return data.load()


def _ignore(step: int, loss: float) -> None:
    pass


def test_digits_are_split_without_overlap(digits):
    """4,000 images to train with and 1,000 others to test with, of all ten digits."""
    train, test = digits

    assert (train.images.shape, test.images.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert train.images.max() == 255
    assert set(range(10)) == set(train.labels) == set(test.labels)
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_cnn_takes_its_weights_as_an_argument(digits, tmp_path):
    """The CNN's program, given the stored weights, equals the restored model and has learned."""
    train, test = digits
    train_cnn(CONFIG, train, tmp_path / "checkpoint", _ignore)
    export_cnn(tmp_path / "checkpoint", tmp_path)
    stored = safetensors.numpy.load_file(tmp_path / "weights.safetensors")
    exported = export.deserialize(bytearray((tmp_path / "program.bin").read_bytes()))
    function, weights = restore_cnn(tmp_path / "checkpoint")

    expected = np.asarray(jax.jit(function)(weights, test.images[:200])["logits"])
    actual = np.asarray(jax.jit(exported.call)(stored, test.images[:200])["logits"])

    assert weights.keys() == stored.keys()
    np.testing.assert_array_equal(expected, actual)
    assert (actual.argmax(-1) == test.labels[:200]).mean() > 0.6


def test_mlp_holds_its_weights(digits, tmp_path):
    """The MLP's program needs nothing beside it, equals the restored model and has learned."""
    train, test = digits
    train_mlp(CONFIG, train, tmp_path / "checkpoint", _ignore)
    export_mlp(tmp_path / "checkpoint", tmp_path)
    exported = export.deserialize(bytearray((tmp_path / "program.bin").read_bytes()))
    function = restore_mlp(tmp_path / "checkpoint")

    expected = np.asarray(jax.jit(function)(test.images[:200])["logits"])
    actual = np.asarray(jax.jit(exported.call)(test.images[:200])["logits"])

    assert not (tmp_path / "weights.safetensors").exists()
    np.testing.assert_array_equal(expected, actual)
    assert (actual.argmax(-1) == test.labels[:200]).mean() > 0.6
