"""Tries a program where JAX is installed beside the registry: compiles it, and runs it once.

All of that happens in a child process. What the compiler does with a program that nobody vouches
for, crash, hang and take all memory included, is then a finding like any other.
"""

import importlib.util
import threading
from dataclasses import dataclass
from typing import BinaryIO

from servax_registry.artifact import Program, Trial
from servax_registry.errors import listed
from servax_registry.inspection import answer
from servax_registry.inspection.child import OUT_OF_MEMORY, Stopped, boot, run_child
from servax_registry.inspection.custom_calls import GUARANTEED_STABLE

_BOOT = boot("trial_child")
_NO_BYTECODE = ("-B",)
_PLATFORM = "cpu"
_ENVIRONMENT = {
    "JAX_PLATFORMS": _PLATFORM,
    "JAX_ENABLE_X64": "1",
    # Whether a program has expired is not what is tried.
    "JAX_EXPORT_DESERIALIZE_EXPIRED_VERSIONS": "1",
    # XLA starts as many threads, each of which takes address space.
    "NPROC": "1",
}


@dataclass(frozen=True)
class TrialLimits:
    """What one trial may use.

    Sizes and `memory` are in bytes; `memory` holds where the system has RLIMIT_AS, and has to
    include the 2 GB of address space that JAX takes for itself. Programs above `program_size` are
    not tried, and those whose arguments and results exceed `array_size` are not run.
    """

    memory: int = 4 << 30
    cpu_seconds: int = 30
    wall_seconds: float = 60.0
    program_size: int = 256 << 20
    array_size: int = 64 << 20
    answer_size: int = 1 << 16


_DEFAULT_LIMITS = TrialLimits()


def try_program(
    file: BinaryIO,
    program: Program,
    *,
    limits: TrialLimits = _DEFAULT_LIMITS,
    cancelled: threading.Event | None = None,
) -> Trial:
    """Compiles an inspected program for the smallest sizes it takes, and runs it with zeros.

    `file` is the regular file that `program` was read from. Never raises for what it holds. Ends
    soon, with a trial that tells nothing, when `cancelled` is set.
    """
    if reason := obstacle(program, file.seek(0, 2), limits):
        return Trial("impossible", reason)
    try:
        status, output = run_child(
            _NO_BYTECODE,
            _BOOT,
            (limits.memory, limits.cpu_seconds, limits.array_size),
            file,
            environment=_ENVIRONMENT,
            cpu_seconds=limits.cpu_seconds,
            wall_seconds=limits.wall_seconds,
            answer_size=limits.answer_size,
            quiet=True,
            cancelled=cancelled,
        )
    except Stopped as stopped:
        return Trial("failed", f"stopped while it was tried: {stopped}")
    if status == OUT_OF_MEMORY:
        return Trial(
            "failed", f"stopped while it was tried: that took more than {limits.memory} bytes"
        )
    if status:  # parts of XLA end the process when they give up
        return Trial("failed", f"stopped while it was tried: JAX gave up with status {status}")
    try:
        return answer.decode_trial(output)
    except answer.MalformedAnswer:
        return Trial("failed", "stopped while it was tried: JAX ended without an answer")


def obstacle(program: Program, size: int, limits: TrialLimits = _DEFAULT_LIMITS) -> str:
    """Why a trial would tell nothing of a program of `size` bytes; "" when it does."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed beside the registry"
    if _PLATFORM not in program.platforms:
        return f"it was exported for {', '.join(program.platforms)}, the registry has {_PLATFORM}"
    if program.device_count != 1:
        return f"it runs on {program.device_count} devices, the registry has 1"
    if foreign := set(program.custom_calls) - GUARANTEED_STABLE:
        return f"it makes custom calls that only workers may provide: {listed(sorted(foreign))}"
    if size > limits.program_size:
        return f"it has {size} bytes, programs are tried up to {limits.program_size}"
    return ""
