"""Makes what the demo publishes: trains or takes checkpoints from the cache, and exports them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.flax
from jax import export
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from examples.checkpoints import checkpoint_path
from examples.mnist import data as mnist_data
from examples.mnist import export as mnist_export
from examples.mnist import models as mnist_models
from examples.mnist import train as mnist_train
from examples.transformer import corpus
from examples.transformer import export as transformer_export
from examples.transformer import model as transformer_model
from examples.transformer import train as transformer_train

Call = Callable[[NDArray[Any]], NDArray[np.float32]]
Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Example:
    """An exported model, and what to hold the answers of a worker against.

    `from_source` runs the model's own code, `from_program` the exported program; both map a batch
    of inputs to logits in this process. `samples` are real inputs; `labels` are the right answers
    to them, for a classifier.
    """

    name: str
    input: str
    program: Path
    weights: Path | None
    from_source: Call
    from_program: Call
    samples: NDArray[Any]
    labels: NDArray[np.int32] | None = None


def prepare_transformer(console: Console, cache: Path, directory: Path) -> Example:
    """Prepare the language model; its samples are four windows of the text it learned from."""
    config = transformer_train.TrainingConfig()
    text = corpus.load()
    checkpoint = checkpoint_path(
        cache,
        "transformer",
        sources=(transformer_model, transformer_train),
        config=config,
        data=text.tobytes(),
    )
    with _training(console, checkpoint, "transformer", config.steps) as report:
        if report:
            transformer_train.train(config, text, checkpoint, report)
    transformer_export.export_checkpoint(checkpoint, config.model, directory)
    function, weights = transformer_export.restore(checkpoint, config.model)
    windows = text[: 4 * config.model.sequence].reshape(4, -1)
    return Example(
        "transformer",
        "tokens",
        directory / "program.bin",
        directory / "weights.safetensors",
        _call(function, weights),
        _call(_program(directory), safetensors.flax.load_file(directory / "weights.safetensors")),
        windows.astype(np.int32),
    )


def prepare_cnn(console: Console, cache: Path, directory: Path) -> Example:
    """Prepare the CNN; its samples are the test images."""
    checkpoint, digits = _trained_on_digits(console, cache, "mnist-cnn", mnist_train.train_cnn)
    mnist_export.export_cnn(checkpoint, directory)
    function, weights = mnist_export.restore_cnn(checkpoint)
    return Example(
        "mnist-cnn",
        "image",
        directory / "program.bin",
        directory / "weights.safetensors",
        _call(function, weights),
        _call(_program(directory), safetensors.flax.load_file(directory / "weights.safetensors")),
        digits.images,
        digits.labels,
    )


def prepare_mlp(console: Console, cache: Path, directory: Path) -> Example:
    """Prepare the MLP, whose program holds its weights; its samples are the test images."""
    checkpoint, digits = _trained_on_digits(console, cache, "mnist-mlp", mnist_train.train_mlp)
    mnist_export.export_mlp(checkpoint, directory)
    return Example(
        "mnist-mlp",
        "image",
        directory / "program.bin",
        None,
        _call(mnist_export.restore_mlp(checkpoint)),
        _call(_program(directory)),
        digits.images,
        digits.labels,
    )


def _trained_on_digits(
    console: Console,
    cache: Path,
    name: str,
    train: Callable[[mnist_train.TrainingConfig, mnist_data.Digits, Path, Report], None],
) -> tuple[Path, mnist_data.Digits]:
    """Return a checkpoint and the digits to test it with."""
    config = mnist_train.TrainingConfig()
    train_digits, test_digits = mnist_data.load()
    checkpoint = checkpoint_path(
        cache,
        name,
        sources=(mnist_models, mnist_train),
        config=config,
        data=train_digits.images.tobytes() + train_digits.labels.tobytes(),
    )
    with _training(console, checkpoint, name, config.steps) as report:
        if report:
            train(config, train_digits, checkpoint, report)
    return checkpoint, test_digits


def _program(directory: Path) -> Callable[..., dict[str, jax.Array]]:
    exported = export.deserialize(bytearray((directory / "program.bin").read_bytes()))
    call: Callable[..., dict[str, jax.Array]] = exported.call
    return call


def _call(function: Callable[..., dict[str, jax.Array]], *weights: Any) -> Call:
    compiled = jax.jit(function)
    return lambda inputs: np.asarray(compiled(*weights, inputs)["logits"])


@contextmanager
def _training(console: Console, checkpoint: Path, name: str, steps: int) -> Iterator[Report | None]:
    """Give what shows the progress of training, or None where the checkpoint exists.

    A bar on a terminal, ten lines in a log.
    """
    if checkpoint.exists():
        console.print(f"{name}: checkpoint from the cache, {checkpoint.name}")
        yield None
        return
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps, {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"{name}: training", total=steps, loss="compiling")
            yield lambda step, loss: progress.update(task, completed=step, loss=f"loss {loss:.2f}")
    else:
        console.print(f"{name}: training, {steps} steps")

        def report(step: int, loss: float) -> None:
            if step % max(1, steps // 10) == 0:
                console.print(f"{name}: step {step}/{steps}, loss {loss:.2f}")

        yield report
    console.print(f"{name}: saved with Orbax, {checkpoint.name}")
