"""Which checkpoint is found again."""

import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.checkpoints import checkpoint_path
from examples.mnist import models, train
from examples.mnist.train import TrainingConfig


def _path(
    root: Path,
    *,
    sources: Sequence[types.ModuleType] = (models, train),
    steps: int = 5,
    data: bytes = b"digits",
) -> Path:
    config = TrainingConfig(steps=steps)
    return checkpoint_path(root, "cnn", sources=sources, config=config, data=data)


def test_same_training_has_the_same_checkpoint(tmp_path):
    """Nothing changed, so the checkpoint is found again, at an absolute path."""
    assert _path(tmp_path) == _path(tmp_path)
    assert _path(tmp_path).is_absolute()


@pytest.mark.parametrize("change", [{"steps": 6}, {"data": b"letters"}, {"sources": (models,)}])
def test_another_training_has_another_checkpoint(tmp_path, change):
    """Another configuration, other data or other source code never finds a stale checkpoint."""
    assert _path(tmp_path) != _path(tmp_path, **change)


def test_edited_source_has_another_checkpoint(tmp_path):
    """Editing a model's file is enough to train it anew."""
    module = types.ModuleType("model")
    module.__file__ = str(tmp_path / "model.py")
    (tmp_path / "model.py").write_text("width = 1\n")
    before = _path(tmp_path, sources=(module,))

    (tmp_path / "model.py").write_text("width = 2\n")

    assert before != _path(tmp_path, sources=(module,))


def test_other_library_version_has_another_checkpoint(tmp_path, monkeypatch):
    """A checkpoint that another release of a library wrote is not reused."""
    before = _path(tmp_path)

    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")

    assert before != _path(tmp_path)
