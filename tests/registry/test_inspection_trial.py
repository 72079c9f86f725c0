"""Trials of programs: what is learned of good ones, and that no other does any harm."""

import dataclasses
import functools
import json
import re
import tempfile
import typing
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from servax_registry.artifact import Trial
from servax_registry.inspection import TrialLimits, answer, trial, try_program
from servax_registry.inspection.exported import read_program


class Pair(typing.NamedTuple):
    """A pytree whose class the registry does not have."""

    left: Any
    right: Any


export.register_namedtuple_serialization(Pair, serialized_name="tests.trial.Pair")

VECTOR = jax.ShapeDtypeStruct((3,), jnp.float32)


def exported(function, *arguments) -> bytes:
    """A serialized export."""
    return bytes(export.export(jax.jit(function))(*arguments).serialize())


def with_module(body: str) -> bytes:
    """An export of a function of one float32[3], whose module is another."""
    with mlir.make_ir_context():
        module = stablehlo.serialize_portable_artifact(ir.Module.parse(body), "1.10.0")
    made = export.export(jax.jit(lambda x: x))(VECTOR)
    return bytes(dataclasses.replace(made, mlir_module_serialized=bytes(module)).serialize())


@functools.cache
def sine() -> bytes:
    """A small program."""
    return exported(jnp.sin, VECTOR)


def attempt(blob: bytes, *, changes=(), **limits) -> Trial:
    """Tries a program, of which some of what is known may be changed."""
    program = dataclasses.replace(read_program(blob), **dict(changes))
    with tempfile.TemporaryFile() as file:
        file.write(blob)
        return try_program(file, program, limits=TrialLimits(**limits))


def test_a_program_is_compiled_for_the_smallest_sizes_it_takes_and_run():
    """Constraints, keys and unknown classes do not stand in the way; the compiler is asked."""
    shape = export.symbolic_shape("b, t", constraints=("t >= 5", "mod(b, 4) == 0"))
    rows = jax.ShapeDtypeStruct(shape, jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def function(pair, key):
        return Pair(pair.left @ pair.right.T, jax.random.normal(key, (2,)))

    found = attempt(exported(function, Pair(rows, rows), key))

    assert dataclasses.replace(found, temporary_bytes=0, code_bytes=0) == Trial(
        "passed",
        jax_version=jax.__version__,
        size=8,
        ran=True,
        flops=found.flops,
        accessed_bytes=found.accessed_bytes,
        argument_bytes=2 * 8 * 8 * 4 + 8,
        result_bytes=8 * 8 * 4 + 2 * 4 + 2 * 8,  # and a tuple of two pointers
    )
    assert found.flops >= 2 * 8 * 8 * 8
    assert found.accessed_bytes >= found.argument_bytes


def test_a_program_with_large_arrays_is_compiled_only():
    """Where arguments and results exceed the limit, the program is not run."""
    found = attempt(sine(), array_size=2 * 3 * 4 - 1)

    assert (found.outcome, found.ran, found.size) == ("passed", False, 0)


RECURSION = """
func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = call @main(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}"""
MISMATCH = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}"""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(
            lambda: exported(
                lambda x: jax.lax.while_loop(lambda _: True, lambda y: y + 1, x), VECTOR
            ),
            "that took more than 6 s of CPU time",
            id="hangs",
        ),
        pytest.param(
            lambda: exported(
                lambda x: jnp.sort(jnp.broadcast_to(x[:, None], (3, 1 << 32)), axis=1)[:, 0], VECTOR
            ),
            "RESOURCE_EXHAUSTED",
            id="explodes",
        ),
        pytest.param(lambda: with_module(RECURSION), "ended by SIGSEGV", id="crashes"),
        pytest.param(lambda: with_module(MISMATCH), "verifier errors", id="contradicts itself"),
    ],
)
def test_programs_that_do_harm_fail_with_the_reason(make, reason):
    """A program that hangs, crashes, takes all memory or contradicts itself is a failed one."""
    found = attempt(make(), cpu_seconds=6)

    assert found.outcome == "failed"
    assert re.search(reason, found.reason)


@pytest.mark.parametrize(
    ("changes", "limits", "reason"),
    [
        ({"platforms": ("cuda", "tpu")}, {}, "exported for cuda, tpu, the registry has cpu"),
        ({"device_count": 4}, {}, "runs on 4 devices"),
        ({"custom_calls": ("mine", "shape_assertion")}, {}, "may provide: mine$"),
        ({}, {"program_size": 9}, "programs are tried up to 9$"),
    ],
)
def test_what_cannot_be_tried_here_is_no_failure(changes, limits, reason):
    """A program that the registry's machine could not run anyway is told apart from a bad one."""
    found = attempt(sine(), changes=changes, **limits)

    assert found.outcome == "impossible"
    assert re.search(reason, found.reason)


def test_without_jax_nothing_is_tried(monkeypatch):
    """A registry without JAX says so."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert attempt(sine()) == Trial("impossible", "JAX is not installed beside the registry")


def test_a_program_for_a_newer_jax_is_no_failure():
    """StableHLO that is newer than what is installed here is not held against the program."""
    newer = re.sub(rb"(StableHLO_v1\.)\d\d\.\d", rb"\g<1>99.9", sine())

    found = attempt(newer)

    assert found.outcome == "impossible"
    assert "StableHLO 1.99.9" in found.reason


def replace_child(monkeypatch, *lines: str) -> None:
    """Replaces what the child runs by these lines."""
    preamble = "import sys; sys.path.append(sys.argv.pop(1)); import os, time"
    monkeypatch.setattr(trial, "_BOOT", "\n".join((preamble, *lines)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("os._exit(0)", "without an answer"),
        ("print('[' * 9999)", "without an answer"),
        ('print(\'{"outcome": "passed"}\')', "without an answer"),
        ("print('x' * 99999)", "exceeds 65536 bytes"),
        ("os._exit(3)", "gave up with status 3"),
        ("os._exit(81)", "more than 4294967296 bytes"),
        ("time.sleep(60)", "more than 0.5 s"),
    ],
)
def test_whatever_the_child_does_the_trial_has_failed(monkeypatch, line, reason):
    """A child that babbles, hangs or just ends is a failed trial and nothing else."""
    replace_child(monkeypatch, line)

    found = attempt(sine(), wall_seconds=0.5 if "sleep" in line else 60)

    assert found.outcome == "failed"
    assert re.search(reason, found.reason)


def test_a_broken_jax_is_no_failure_of_the_program(monkeypatch):
    """Where JAX cannot be imported, nothing was learned."""
    child = "servax_registry.inspection.trial_child"
    replace_child(monkeypatch, "sys.modules['jax'] = None", f"import {child} as c; c.main()")

    found = attempt(sine())

    assert found.outcome == "impossible"
    assert "JAX does not work beside the registry" in found.reason


def test_the_child_has_no_secrets_and_few_means(monkeypatch):
    """Neither environment nor files of the registry reach the child, and it cannot write any."""
    monkeypatch.setenv("SERVAX_DB", "postgresql://user:secret@host")
    replace_child(
        monkeypatch,
        "import json, resource",
        "import servax_registry.inspection.trial_child as child",
        "from servax_registry.artifact import Trial",
        "def told(_):",
        "    limits = [resource.getrlimit(kind)[1] for kind in (",
        "        resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE,",
        "        resource.RLIMIT_CPU)]",
        "    return Trial('failed', json.dumps([dict(os.environ), limits]))",
        "child._try = told",
        "child.main()",
    )

    environment, limits = json.loads(attempt(sine(), cpu_seconds=5).reason)

    assert "SERVAX_DB" not in environment
    assert limits == [0, 0, 256, 6]


def test_trials_come_back_unchanged():
    """What is encoded decodes to itself."""
    found = Trial("passed", jax_version="0.12.0", size=1, ran=True, flops=7)

    assert found == answer.decode_trial(answer.encode_trial(found))
