"""Reads what programs and weights say of themselves, without JAX; tries programs, with it."""

from servax_registry.inspection.cage import Limits, inspect_program
from servax_registry.inspection.compatibility import Window, compatibility
from servax_registry.inspection.custom_calls import GUARANTEED_STABLE
from servax_registry.inspection.portability import refuse_unportable
from servax_registry.inspection.safetensors import (
    PREFIX_SIZE,
    header_size,
    parse_safetensors_header,
)
from servax_registry.inspection.trial import TrialLimits, obstacle, try_program

INSPECTION_VERSION = 2
"""Raised when inspecting the same blob gives another result than before."""

__all__ = [
    "GUARANTEED_STABLE",
    "INSPECTION_VERSION",
    "PREFIX_SIZE",
    "Limits",
    "TrialLimits",
    "Window",
    "compatibility",
    "header_size",
    "inspect_program",
    "obstacle",
    "parse_safetensors_header",
    "refuse_unportable",
    "try_program",
]
