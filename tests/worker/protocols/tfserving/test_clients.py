"""tensorflow-serving-api's unmodified stubs against a worker, each in a process of its own.

TensorFlow's names of messages are those of the worker's own modules, so no process has both.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import pytest

from examples.mnist import data, train
from examples.mnist.export import export_cnn, export_mlp
from servax.types import Batching
from tests.conformance import stubs

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="session")
def run_code():
    """Runs a command that finds the stubs; gives its output."""
    try:
        directory = stubs.unpack()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"tensorflow-serving-api cannot be had: {error}")
    paths = [str(directory), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def run_code(*command):
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run_code


@pytest.fixture(scope="session")
def run(run_code):
    """Runs a module; gives its output."""
    return lambda module, *arguments: run_code(sys.executable, "-m", module, *arguments)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Both digit classifiers, exported for any number of images and for 16: folders by name."""
    directory = tmp_path_factory.mktemp("mnist")
    digits, _ = data.load()
    config = train.TrainingConfig(steps=30)
    limit, x64 = jax.config.jax_traceback_in_locations_limit, jax.config.jax_enable_x64
    # A worker that ran in this process has turned it on; who exports a model usually has not.
    jax.config.update("jax_enable_x64", False)
    folders = {}
    for name, fit, export in (
        ("digits-cnn", train.train_cnn, export_cnn),
        ("digits-mlp", train.train_mlp, export_mlp),
    ):
        checkpoint = directory / name / "checkpoint"
        fit(config, digits, checkpoint, lambda step, loss: None)
        for suffix, batch in (("", "b"), ("-16", "16")):
            folders[name + suffix] = directory / name / batch
            folders[name + suffix].mkdir()
            export(checkpoint, folders[name + suffix], batch)
    # To export them leaves source paths out of whatever is exported later, and so changes digests.
    jax.config.update("jax_traceback_in_locations_limit", limit)
    jax.config.update("jax_enable_x64", x64)
    return folders


@pytest.fixture(scope="module")
def push_two_inputs(publish, exported, symbolic):
    """Publishes a version of a model of several inputs and outputs."""
    x = symbolic("b, 3")
    n = jax.ShapeDtypeStruct(x.shape[:1], jnp.float16)
    program = exported(lambda x, n: {"sum": x.sum(-1), "more": x + n[:, None]}, x, n).serialize()

    return lambda: publish("two-inputs", program)


@pytest.fixture(scope="module")
def worker(exports, publish, push_two_inputs, registry, start, tmp_path_factory):
    """A worker in a process of its own."""
    for name, folder in exports.items():
        weights = folder / "weights.safetensors"
        publish(
            name,
            (folder / "program.bin").read_bytes(),
            weights=[weights] if weights.exists() else [],
            batching=Batching("" if name.endswith("-16") else "b"),
        )
    push_two_inputs()
    return start(
        "servax_worker",
        *("--registry", registry, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--cache-dir", str(tmp_path_factory.mktemp("cache"))),
        *("--poll", "0.2", "--max-batch-rows", "16"),
        *(argument for name in (*exports, "two-inputs") for argument in ("--model", name)),
    )


@pytest.fixture
def ready(worker):
    """Waits until a version of a model answers."""

    def ready(model, version=1):
        url = f"http://{worker.serving['http']}/v1/models/{model}"
        found = None
        for _ in range(600):
            found = httpx.get(url).json()
            states = found.get("model_version_status", [])
            if (str(version), "AVAILABLE") in [(s["version"], s["state"]) for s in states]:
                return
            time.sleep(0.1)
        raise AssertionError(found)

    return ready


@pytest.fixture
def conformance(run, worker):
    """Runs the conformance program against a model; gives its table."""

    def conformance(model):
        http = worker.serving["http"]
        arguments = ("tfserving", worker.address, "--http", http, "--model", model)
        return run("tests.conformance", *arguments)

    return conformance


@pytest.mark.parametrize("model", ["digits-mlp-16", "two-inputs"])
def test_conformance(conformance, ready, model):
    """The conformance program finds nothing to complain of, over gRPC and over REST."""
    ready(model)

    table = conformance(model)

    assert "all passed" in table
    assert len(re.findall(r" passed ", table)) == 22, table


def test_a_new_version_answers_without_a_restart(conformance, ready, push_two_inputs):
    """What is published while a worker runs answers its unchanged callers."""
    ready("two-inputs", 1)
    before = conformance("two-inputs")
    push_two_inputs()
    ready("two-inputs", 2)

    assert "version 1 " in before
    assert "version 2 " in conformance("two-inputs")


def test_digits(run, worker, ready, exports):
    """A Flax CNN and an MLP of plain JAX classify digits one by one, in sixteens and in hundreds,
    over gRPC and over REST, all equally well, whether exported for any number or for 16.
    """
    for model in exports:
        ready(model)

    output = run(
        "examples.mnist.tensorflow_serving_client",
        *(worker.address, worker.serving["http"], *exports),
    )

    lines = re.findall(r"digits-(cnn|mlp)\S* over (\w+), (\d+) at once: accuracy ([\d.]+)", output)
    assert len(lines) == len(exports) * len(["gRPC", "REST"]) * len([1, 16, 100]), output
    for kind in ("cnn", "mlp"):
        (accuracy,) = {line[-1] for line in lines if line[0] == kind}
        assert float(accuracy) > 0.6


def test_the_documentation(run_code, worker, ready):
    """What docs/clients.md shows for Python and curl works as it stands there."""
    page = (ROOT / "docs" / "clients.md").read_text()
    page = re.sub(
        r"^## Open Inference Protocol.*?^## ", "## ", page, flags=re.DOTALL | re.MULTILINE
    )
    page = page.replace("127.0.0.1:8500", worker.address).replace('"mnist"', '"digits-mlp"')
    page = page.replace("127.0.0.1:8501", worker.serving["http"])
    page = page.replace("models/mnist", "models/digits-mlp")
    ready("digits-mlp")

    python = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    curl = next(
        each for each in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "curl" in each
    )

    assert [run_code(sys.executable, "-c", code) for code in python] == ["(1, 10)\n"] * 2
    if shutil.which("curl"):
        answers = run_code("bash", "-c", curl)
        assert "AVAILABLE" in answers
        assert "tensorflow/serving/predict" in answers
        assert "predictions" in answers
