"""Unmodified clients of the Open Inference Protocol and a worker, each in a process of its own.

tritonclient's names of messages are those of the worker's own modules, so no process has both.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import pytest

from benchmarks import perf_analyzer
from servax import Client
from servax.types import Batching

ROOT = Path(__file__).parents[4]
DTYPES = ["float32", "int32", "int64", "bool", "float16", "bfloat16"]


@pytest.fixture(scope="module")
def worker(publish, exported, symbolic, registry, start, tmp_path_factory):
    """A worker that takes shared memory."""
    for dtype in DTYPES:
        with jax.enable_x64(True):
            same = exported(lambda x: x, symbolic("b, 3", dtype)).serialize()
        publish(f"client-{dtype}", same, batching=Batching("b"))
    x = symbolic("b, 3")
    n = jax.ShapeDtypeStruct((), jnp.int8)
    two = exported(lambda x, n: {"more": x + n, "positive": x.sum(-1) > 0}, x, n).serialize()
    publish("client-two", two)
    images = symbolic("b, 28, 28, 1", "uint8")
    digits = exported(lambda image: {"logits": image.reshape(-1, 784)[:, :10] / 255}, images)
    publish("digits", digits.serialize(), batching=Batching("b"), aliases=["production"])
    models = [*(f"client-{dtype}" for dtype in DTYPES), "client-two", "digits"]
    worker = start(
        "servax_worker",
        *("--registry", registry, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--cache-dir", str(tmp_path_factory.mktemp("cache"))),
        *("--allow-shared-memory", "--allow-management", "--warm-up", "b=1,2", "--no-load-apart"),
        *(argument for name in models for argument in ("--model", name)),
        *("--model", "digits@production"),
    )
    with Client(worker=worker.address) as client:
        for name in models:
            client.wait_until_ready(name, timeout=60)
    return worker


def run(*command):
    """Runs a command; gives its output."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("model", [*(f"client-{dtype}" for dtype in DTYPES), "client-two"])
def test_conformance(worker, model):
    """The conformance program, by tritonclient, finds nothing to complain of over gRPC and REST."""
    table = run(
        *(sys.executable, "-m", "tests.conformance", "oip", worker.address),
        *("--http", worker.serving["http"], "--model", model),
    )

    assert "all passed" in table
    assert len(re.findall(r" passed ", table)) >= 33, table


def test_perf_analyzer(worker):
    """Triton's load generator runs to its end over gRPC, streams, shared memory and HTTP."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.perf_analyzer", "--callers", "1,4"),
            *("--seconds", "0.3", "--model", "client-float32"),
            *("--grpc", worker.address, "--http", worker.serving["http"]),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if result.returncode == perf_analyzer.NO_BINARY:
        pytest.skip(result.stdout)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "FAILED" not in result.stdout


def test_the_documentation(worker):
    """What docs/clients.md shows of this protocol for Python and curl works as it stands there."""
    page = (ROOT / "docs" / "clients.md").read_text()
    (section,) = re.findall(
        r"^## Open Inference Protocol\n(.*?)^## ", page, re.DOTALL | re.MULTILINE
    )
    section = section.replace("127.0.0.1:8500", worker.address)
    section = section.replace("127.0.0.1:8501", worker.serving["http"])
    section = section.replace('"mnist"', '"digits"').replace("models/mnist", "models/digits")

    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        assert run(sys.executable, "-W", "error", "-c", code).endswith("(1, 10)\n")
    if shutil.which("curl"):
        for code in re.findall(r"```bash\n(.*?)```", section, re.DOTALL):
            answers = run("bash", "-c", code)
            assert '"datatype":"UINT8"' in answers
            assert '"name":"logits","datatype":"FP32","shape":[1,10],"data":[' in answers


def test_metrics_of_the_calls(worker):
    """What clients of this protocol call is in the metrics too."""
    metrics = httpx.get(f"http://{worker.serving['http']}/metrics").text

    assert re.search(r'servax_requests_total\{model="client-two",result="ok".*?\} \d', metrics)
