"""The child of `trial`: compiles and runs the program on standard input; the one that needs JAX."""

import collections
import dataclasses
import math
import mmap
import os
import re
import sys
from typing import Any

from servax_registry.artifact import Program, Trial
from servax_registry.inspection import answer
from servax_registry.inspection.child import OUT_OF_MEMORY
from servax_registry.inspection.confinement import confine
from servax_registry.inspection.exported import read_program

_STDIN, _STDOUT = 0, 1
_OPEN_FILES = 256
# The sizes that all symbolic dimensions get in turn, until the program takes them.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_REASON_LENGTH = 500
_GENERATORS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


class _Unsuited(Exception):
    """The program does not take arguments of these sizes."""


def main() -> None:
    """Confines itself, tries, answers; its arguments are three of TrialLimits."""
    memory, cpu_seconds, array_size = map(int, sys.argv[1:])
    # Whatever JAX prints is no answer.
    output = os.dup(_STDOUT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    # It takes what others leave of the processor.
    os.nice(19)
    confine(memory=memory, cpu_seconds=cpu_seconds, open_files=_OPEN_FILES)
    try:
        trial = _try(array_size)
    except ImportError as error:
        trial = Trial("impossible", f"JAX does not work beside the registry: {error}")
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception as error:  # a finding: JAX raises whatever there is
        trial = Trial("failed", _text(error))
    os.write(output, answer.encode_trial(trial))
    # Without running what would free the program.
    os._exit(0)


def _try(array_size: int) -> Trial:
    import jax
    from jaxlib.mlir.dialects import stablehlo

    with mmap.mmap(_STDIN, 0, access=mmap.ACCESS_READ) as blob:
        program = read_program(blob)
        newest = stablehlo.get_current_version()
        if _ordered(program.stablehlo_version) > _ordered(newest):
            return Trial(
                "impossible",
                f"it is written in StableHLO {program.stablehlo_version}, JAX {jax.__version__} "
                f"beside the registry reads up to {newest}",
            )
        exported = _flattened(program, bytearray(blob))
    size, compiled, arguments = _compile(exported)
    ran = _size(arguments) + _size(exported.out_avals, size) <= array_size
    if ran:
        for result in compiled(*map(_zeros, arguments)):
            result.block_until_ready()
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Trial(
        "passed",
        jax_version=jax.__version__,
        size=size,
        ran=ran,
        flops=_count(cost.get("flops")),
        accessed_bytes=_count(cost.get("bytes accessed")),
        argument_bytes=_count(getattr(memory, "argument_size_in_bytes", None)),
        result_bytes=_count(getattr(memory, "output_size_in_bytes", None)),
        temporary_bytes=_count(getattr(memory, "temp_size_in_bytes", None)),
        code_bytes=_count(getattr(memory, "generated_code_size_in_bytes", None)),
    )


def _flattened(program: Program, blob: bytearray) -> Any:
    """The export, taking its flat arguments and giving a tuple of its flat results."""
    import jax

    for name in program.custom_nodes:
        kind = type("StandIn", (), {})
        jax.tree_util.register_pytree_node(kind, lambda _: ((), None), lambda _, __: None)
        try:
            jax.export.register_pytree_node_serialization(
                kind,
                serialized_name=name,
                serialize_auxdata=lambda data: data,
                deserialize_auxdata=lambda data: data,
            )
        except ValueError as error:
            if "Duplicate serialization registration" not in str(error):
                raise
            # JAX knows this type itself.
    exported = jax.export.deserialize(blob)
    return dataclasses.replace(
        exported,
        in_tree=jax.tree.structure(((0,) * len(exported.in_avals), {})),
        out_tree=jax.tree.structure((0,) * len(exported.out_avals)),
    )


def _compile(exported: Any) -> tuple[int, Any, list[Any]]:
    """The smallest size that the program takes, and for it the executable and its arguments."""
    dimensions = [dimension for aval in exported.in_avals for dimension in aval.shape]
    if all(type(dimension) is int for dimension in dimensions):
        return 0, *_compile_for(exported, 0)
    last: Exception | None = None
    for size in _SIZES:
        try:
            return size, *_compile_for(exported, size)
        except _Unsuited as error:
            last = error
    raise ValueError(f"none of the sizes {', '.join(map(str, _SIZES))} is taken: {last}") from last


def _compile_for(exported: Any, size: int) -> tuple[Any, list[Any]]:
    import jax

    arguments = [
        jax.ShapeDtypeStruct(_shape(aval, size), aval.dtype)  # type: ignore[no-untyped-call]
        for aval in exported.in_avals
    ]
    try:
        lowered = jax.jit(exported.call).lower(*arguments)
    except ValueError as error:
        if not size:
            raise
        raise _Unsuited(_text(error)) from error
    try:
        return lowered.compile(), arguments
    except Exception as error:
        # Broken constraints of the export's symbols are only found here.
        if size and "Error refining shapes" in str(error):
            raise _Unsuited(_text(error)) from error
        raise


def _shape(aval: Any, size: int) -> tuple[int, ...]:
    """An array's dimensions where every symbol has this size."""
    sizes: dict[str, int] = collections.defaultdict(lambda: size)
    # JAX has no public way to evaluate a symbolic dimension.
    return tuple(
        dimension if type(dimension) is int else int(dimension._evaluate(sizes))
        for dimension in aval.shape
    )


def _size(avals: Any, size: int = 0) -> int:
    """How many bytes arrays take; keys of random numbers count as 16."""
    return sum(
        math.prod(_shape(aval, size)) * getattr(aval.dtype, "itemsize", 16) for aval in avals
    )


def _zeros(argument: Any) -> Any:
    import jax
    import numpy as np

    if isinstance(argument.dtype, np.dtype):
        return np.zeros(argument.shape, argument.dtype)
    # "key<fry>": a random number generator by JAX's short name for it.
    key = jax.random.key(0, impl=_GENERATORS[str(argument.dtype)])
    return jax.numpy.broadcast_to(key, argument.shape)


def _count(value: Any) -> int:
    """A number of the compiler's; 0 for none, and for what is none."""
    return int(value) if value is not None and math.isfinite(value) and value > 0 else 0


def _text(error: Exception) -> str:
    """An error in one line, bounded."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_REASON_LENGTH]


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)))


if __name__ == "__main__":
    main()
