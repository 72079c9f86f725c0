"""Reads what a program's MLIR module says beyond the export's own fields.

JAX serializes no parameter names, but the module of an export keeps them as the locations of its
arguments: `loc("tokens")`, `loc("params['w']")`. That they are found is never promised: whatever
is not understood gives no locations.

The custom calls that a module makes, and whether it exchanges data with its host, must be known
before anybody runs it: a module of which that cannot be told is refused.
"""

import mmap
import re
from dataclasses import dataclass

from servax_registry.errors import InvalidProgram
from servax_registry.inspection import tables
from servax_registry.inspection.cursor import Cursor, UnreadableError
from servax_registry.inspection.operations import (
    NONE,
    Operation,
    read_block,
    read_operation,
    read_region,
    walk,
)
from servax_registry.inspection.tables import OperationName, Tables

_MAGIC = b"ML\xefR"
_BYTECODE_VERSION = 6
_PRODUCER = re.compile(r"StableHLO_v([0-9]{1,5}\.[0-9]{1,5}\.[0-9]{1,5})")
_PRODUCER_LIMIT = 64

# The dialects that StableHLO's portable artifacts consist of, Shardy's being "sdy".
_DIALECTS = ("builtin", "vhlo", "sdy")
# Both have their properties in alphabetical order: api_version, backend_config, call_target_name.
_CUSTOM_CALLS = ("vhlo.custom_call_v1", "vhlo.custom_call_v2")
_TARGET = "call_target_name"
# Operations that wait for, or send to, the process that runs the program. JAX writes none of them.
_HOST_OPERATION = re.compile(r"vhlo\.(infeed|outfeed|recv|send)_v[0-9]+")

_MODULE = "builtin.module"
_FUNCTION = "vhlo.func_v1"
# Where dimensions are symbolic or effects ordered, `main` only wraps the function that has the
# names.
_FUNCTION_NAMES = ("_wrapped_jax_export_main", "main")
# Marks the arguments that JAX puts before the function's own: platform index and dimensions.
_GLOBAL_CONSTANT = "jax.global_constant"


@dataclass(frozen=True)
class Module:
    """What is read of a module.

    `custom_calls` are the targets of all its custom calls, sorted; `host_operations` are infeed,
    outfeed, recv and send, as far as it has them, sorted. `argument_locations` are those of the
    arguments that the exported function keeps, "" where one is unknown; empty when they could not
    be recovered.
    """

    stablehlo_version: str
    custom_calls: tuple[str, ...]
    host_operations: tuple[str, ...]
    argument_locations: tuple[str, ...]


def has_magic(blob: bytes | mmap.mmap, start: int, size: int) -> bool:
    """Whether the `size` bytes from `start` on begin as MLIR bytecode does."""
    return size > len(_MAGIC) and blob[start : start + len(_MAGIC)] == _MAGIC


def read_module(blob: bytes | mmap.mmap, start: int, size: int, argument_count: int) -> Module:
    """Reads the module in the `size` bytes of the blob from `start` on.

    `argument_count` is how many arguments of the exported function the module keeps. Raises
    InvalidProgram when the bytes are no module that StableHLO serialized, or when it cannot be
    told which custom calls it makes.
    """
    cursor = Cursor(blob, start, start + size)
    stablehlo_version = _read_header(cursor)
    try:
        module = Tables(cursor)
        custom_calls = _custom_calls(module)
    except UnreadableError as error:
        raise InvalidProgram(
            f"damaged, or written by a newer JAX than this registry reads: what its MLIR module "
            f"calls cannot be told: {error}"
        ) from error
    try:
        locations = _argument_locations(module, argument_count)
    except UnreadableError:
        # Names for people are worth less than the program: it does without.
        locations = ()
    host_operations = {
        match[1]
        for match in map(_HOST_OPERATION.fullmatch, map(str, module.operation_names))
        if match
    }
    return Module(stablehlo_version, custom_calls, tuple(sorted(host_operations)), locations)


def _read_header(cursor: Cursor) -> str:
    """The version of StableHLO in the header; refuses every encoding but the known one."""
    try:
        magic = cursor.take(len(_MAGIC))
        version = cursor.number()
        producer = cursor.text_to_nul(_PRODUCER_LIMIT)
    except UnreadableError as error:
        raise InvalidProgram(f"damaged: the header of its MLIR module: {error}") from error
    stablehlo = _PRODUCER.fullmatch(producer)
    if magic != _MAGIC or stablehlo is None:
        raise InvalidProgram(
            f"damaged: its MLIR module was written by {producer!r}, expected StableHLO_v…"
        )
    if version != _BYTECODE_VERSION:
        newer = version > _BYTECODE_VERSION
        raise InvalidProgram(
            f"written by {'a newer' if newer else 'an older'} StableHLO ({stablehlo[1]}) than this "
            f"registry reads: MLIR bytecode version {version} instead of {_BYTECODE_VERSION}; "
            f"{'upgrade the registry, or ' if newer else ''}export with "
            f"{'an older' if newer else 'a newer'} JAX"
        )
    return stablehlo[1]


def _custom_calls(module: Tables) -> tuple[str, ...]:
    """The targets of all custom calls in the module, sorted."""
    calls = {index for index, name in enumerate(module.operation_names) if _is_custom_call(name)}
    if not calls:
        return ()  # operations can only be what the table names
    made = {
        (operation.attributes, operation.properties)
        for operation in walk(module.operations())
        if operation.name in calls
    }
    return tuple(sorted({_target(module, *each) for each in made}))


def _is_custom_call(name: OperationName) -> bool:
    if name.dialect not in _DIALECTS:
        raise UnreadableError(f"it has the operation {name}, of an unknown dialect")
    if "custom_call" not in name.name:
        return False
    if str(name) not in _CUSTOM_CALLS or not name.native:
        raise UnreadableError(f"it has the operation {name}, an unknown kind of custom call")
    return True


def _target(module: Tables, attributes: int, properties: int) -> str:
    """The target of a custom call, of which there must not be a second one among the attributes."""
    if properties == NONE:
        raise UnreadableError("a custom call has no properties")
    if attributes != NONE:
        keys = module.keys(attributes, tables.BUILTIN_DICTIONARY, tables.BUILTIN_STRING)
        if _TARGET in keys:
            raise UnreadableError("a custom call has two targets")
    fields = module.properties(properties)
    _, _, target = (fields.number() for _ in range(3))
    return module.text(target, tables.VHLO_STRING)


def _argument_locations(module: Tables, count: int) -> tuple[str, ...]:
    """The locations of the last `count` arguments that are not global constants."""
    functions = _functions(module)
    name = next((name for name in _FUNCTION_NAMES if name in functions), None)
    if name is None:
        raise UnreadableError(f"it has none of the functions {_FUNCTION_NAMES}")
    argument_attributes, body = functions[name]
    _, locations = read_block(body)
    dictionaries = module.attribute(argument_attributes, tables.VHLO_ARRAY).numbers()
    if dictionaries:  # one per argument, or none at all
        constant = {item: _is_global_constant(module, item) for item in set(dictionaries)}
        locations = [
            location
            for location, dictionary in zip(locations, dictionaries, strict=False)
            if not constant[dictionary]
        ]
    if len(locations) < count:
        raise UnreadableError(f"{name} has {len(locations)} arguments, expected {count}")
    # The tokens of ordered effects come before the arguments, too.
    locations = locations[len(locations) - count :]
    texts = {location: _location(module, location) for location in set(locations)}
    return tuple(texts[location] for location in locations)


def _functions(module: Tables) -> dict[str, tuple[int, Cursor]]:
    """Per function of the module: the attributes of its arguments, and its first block."""
    cursor = module.operations()
    read_block(cursor)
    name, _, body = _read_symbol(module, cursor)
    if name != _MODULE or body is None:
        raise UnreadableError(f"it begins with {name}")
    functions = {}
    operation_count, _ = read_block(body)
    for _ in range(operation_count):
        name, operation, block = _read_symbol(module, body)
        if name == _FUNCTION and block is not None:
            # Alphabetically: arg_attrs, function_type, res_attrs, sym_name, sym_visibility.
            properties = module.properties(operation.properties)
            argument_attributes, _, _, symbol, _ = (properties.number() for _ in range(5))
            functions[module.text(symbol, tables.VHLO_STRING)] = argument_attributes, block
    return functions


def _read_symbol(module: Tables, cursor: Cursor) -> tuple[str, Operation, Cursor | None]:
    """An operation as modules hold them, passed with all that is in it; and its first block."""
    operation = read_operation(cursor)
    name = str(module.operation_name(operation.name))
    if operation.body is cursor:
        raise UnreadableError(f"{name} is not isolated")
    if operation.body is not None and not read_region(operation.body):
        raise UnreadableError(f"{name} has no block")
    return name, operation, operation.body


def _is_global_constant(module: Tables, dictionary: int) -> bool:
    keys = module.keys(dictionary, tables.VHLO_DICTIONARY, tables.VHLO_STRING)
    return _GLOBAL_CONSTANT in keys


def _location(module: Tables, index: int) -> str:
    """The name in a location; "" where it is unknown or of another kind."""
    if index == NONE:
        return ""
    try:
        name = module.attribute(index, tables.BUILTIN_NAME_LOCATION).number()
    except UnreadableError:
        return ""
    return module.text(name, tables.BUILTIN_STRING)
