"""Refuses programs that cannot run anywhere but in the process that exported them.

JAX refuses most of them at export. A program that was made otherwise, or with safety checks
disabled, is refused here, where its publisher still learns why.
"""

import re
from collections.abc import Collection

from servax_registry.artifact import Program
from servax_registry.errors import InvalidProgram, listed
from servax_registry.inspection.custom_calls import GUARANTEED_STABLE

# The ways in which releases of JAX, on one platform or another, call back into Python.
_PYTHON_CALLBACK = re.compile(r"xla_.*python_.*callback")


def refuse_unportable(program: Program, *, allowed: Collection[str] = ()) -> None:
    """Raises InvalidProgram, with what to do about it, unless the program can run elsewhere.

    `allowed` are targets of custom calls that the operator permits beyond those that JAX keeps
    stable, because every worker provides them.
    """
    if program.effects:
        raise InvalidProgram(
            f"has side effects that need the process that exported it: {listed(program.effects)}; "
            "export the function without them"
        )
    unknown = [
        target
        for target in program.custom_calls
        if target not in GUARANTEED_STABLE and target not in allowed
    ]
    callbacks = [target for target in unknown if _PYTHON_CALLBACK.fullmatch(target)]
    if callbacks:
        raise InvalidProgram(
            f"calls back into the Python process that exported it ({listed(callbacks)}), which no "
            "worker has; export the function without jax.debug.print, jax.debug.callback, "
            "pure_callback and io_callback"
        )
    if unknown:
        raise InvalidProgram(
            f"makes custom calls that JAX does not promise to keep ({listed(unknown)}); export the "
            "function without them, or have the registry's operator allow them, where every "
            "worker provides them"
        )
