"""Reads what programs and weights say of themselves, without JAX."""

from servax_registry.inspection.cage import Limits, inspect_program
from servax_registry.inspection.safetensors import header_size, parse_safetensors_header

INSPECTION_VERSION = 1
"""Raised when inspecting the same blob gives another result than before."""

__all__ = [
    "INSPECTION_VERSION",
    "Limits",
    "header_size",
    "inspect_program",
    "parse_safetensors_header",
]
