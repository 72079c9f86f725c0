"""The transformer's way from training to an exported program, in small."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax import export
from numpy.typing import NDArray

from examples.transformer import corpus
from examples.transformer.export import export_checkpoint, restore
from examples.transformer.model import TransformerConfig
from examples.transformer.train import Phase, TrainingConfig, train

CONFIG = TrainingConfig(
    model=TransformerConfig(sequence=16, blocks=1, d_model=16, heads=2, d_ffn=32),
    phases=(Phase(20, 4, 8), Phase(10, 2, 16)),
    learning_rate=1e-2,
    warmup_steps=3,
)
TEXT = corpus.load()
TOKENS = TEXT[: 3 * 16].reshape(3, 16).astype(np.int32)

# Calls a program the way a worker does: with nothing but the two files.
CALL = """
import sys
import jax, numpy as np, safetensors.numpy
from jax import export
directory = sys.argv[1]
weights = safetensors.numpy.load_file(directory + "/weights.safetensors")
exported = export.deserialize(bytearray(open(directory + "/program.bin", "rb").read()))
outputs = jax.jit(exported.call)(weights, np.load(directory + "/tokens.npy"))
np.savez(directory + "/outputs.npz", **outputs)
assert not {"flax", "optax", "orbax", "examples"} & set(sys.modules)
"""


@dataclass(frozen=True)
class Trained:
    """What one short training left behind; `logits` runs the restored model's own code."""

    directory: Path
    losses: list[float]
    logits: Callable[[NDArray[np.int32]], jax.Array]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train for a few steps, save, restore and export."""
    directory = tmp_path_factory.mktemp("transformer")
    losses: list[float] = []
    train(CONFIG, TEXT, directory / "checkpoint", lambda step, loss: losses.append(loss))
    export_checkpoint(directory / "checkpoint", CONFIG.model, directory)
    function, weights = restore(directory / "checkpoint", CONFIG.model)
    compiled = jax.jit(function)
    return Trained(directory, losses, lambda tokens: compiled(weights, tokens)["logits"])


def test_training_lowers_the_loss_and_reports_every_step(trained):
    """Training reports as many losses as it has steps, and the last are below the first."""
    assert CONFIG.steps == len(trained.losses)
    assert np.mean(trained.losses[-5:]) < trained.losses[0] - 1


def test_interrupted_training_leaves_nothing(trained, tmp_path):
    """Training is deterministic until Ctrl-C, which leaves nothing that looks like a checkpoint."""
    losses: list[float] = []

    def report(step, loss):
        losses.append(loss)
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, TEXT, tmp_path / "checkpoint", report)

    assert trained.losses[:5] == losses
    assert list(tmp_path.iterdir()) == []


def test_stored_weights_are_named_as_the_program_takes_them(trained):
    """The safetensors file has the key paths of the program's first argument, and no others."""
    stored = safetensors.numpy.load_file(trained.directory / "weights.safetensors")
    exported = export.deserialize(bytearray((trained.directory / "program.bin").read_bytes()))
    (weights, tokens), keywords = jax.tree.unflatten(exported.in_tree, exported.in_avals)

    assert {name: array.shape for name, array in stored.items()} == {
        name: spec.shape for name, spec in weights.items()
    }
    assert "blocks.0.attn.query.kernel" in stored
    assert tokens.str_short() == "int32[b,16]"
    assert keywords == {}


def test_program_is_for_cpu_and_cuda_and_names_no_source_file(trained):
    """The program runs on both platforms and does not leak where it was exported."""
    program = (trained.directory / "program.bin").read_bytes()

    assert export.deserialize(bytearray(program)).platforms == ("cpu", "cuda")
    assert b"examples/transformer" not in program
    assert str(Path.cwd()).encode() not in program


def test_fresh_process_without_model_code_gives_equal_logits(trained):
    """The two files alone give the logits of the restored model, bit by bit, for any batch size."""
    np.save(trained.directory / "tokens.npy", TOKENS)

    subprocess.run(
        [sys.executable, "-c", CALL, str(trained.directory)],
        check=True,
        cwd=trained.directory,
    )

    outputs = np.load(trained.directory / "outputs.npz")
    assert list(outputs) == ["logits"]
    np.testing.assert_array_equal(trained.logits(TOKENS), outputs["logits"])


def test_logits_do_not_depend_on_later_bytes(trained):
    """Attention is causal: changing a byte leaves all logits before it as they were."""
    changed = TOKENS.copy()
    changed[:, 9] += 1

    before, after = trained.logits(TOKENS), trained.logits(changed)

    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert not np.array_equal(before[:, 9], after[:, 9])
