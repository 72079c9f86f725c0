# mypy: disable-error-code="no-untyped-call"
# JAX annotates only part of its functions.
"""JAX: deserialize, compile and call programs. Only `placement` beside it imports JAX.

Facts that this module rests on, each tried on JAX 0.10.2 and 0.12.0.1:

* `exported.call` dispatches in about 155 microseconds, an executable compiled ahead of time in 7.
* With x64 off, JAX wraps int64 to int32 without a word; with it on, 32-bit programs are unchanged.
* CPU's asynchronous dispatch is slower for small programs, and lets a caller overwrite an aligned
  input that is still being read; synchronous dispatch has neither fault.
* A program says nothing of the constraints it was exported with, except in the texts of its
  shape assertions.
* JAX's caches keep every program that was ever traced, and glibc keeps what was freed: without
  `Runtime.release`, a load and unload costs about the size of the model for good. Executables
  compiled ahead of time outlive `jax.clear_caches`.
"""

import ctypes
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax
import jax.export
import jax.monitoring
import numpy as np
from jax.extend.mlir.dialects import stablehlo
from numpy.typing import NDArray

from servax.types import Signature, TensorSpec
from servax_worker.activity import Watch
from servax_worker.constraints import read_constraints
from servax_worker.dimensions import Dimension
from servax_worker.errors import CannotServe, ExecutionFailed, InvalidInput, OutOfMemory
from servax_worker.gate import Host, refuse_unservable
from servax_worker.placement import Weights, placement
from servax_worker.signature import KEY_WIDTHS

# jax.random's names of the implementations behind typed keys (jax.random.key).
_KEY_IMPLEMENTATIONS = {
    "key<fry>": "threefry2x32",
    "key<rbg>": "rbg",
    "key<unsafe_rbg>": "unsafe_rbg",
}
# Where the API's name of a dtype is not the one that JAX prints.
_API_NAMES = {"key<urbg>": "key<unsafe_rbg>"}


_libc = ctypes.CDLL(None)

_UNWATCHED = Watch()


class Runtime:
    """This process's JAX, configured for serving. JAX's configuration is global: have one."""

    def __init__(
        self,
        cache_directory: Path,
        watch: Watch = _UNWATCHED,
        allowed_custom_calls: Collection[str] = (),
    ):
        """Configures JAX and starts its backend; tells the `watch` of what runs.

        `cache_directory` keeps compiled executables between runs. They are machine code that is
        loaded without a check, so the directory is made private.
        """
        cache_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        cache_directory.chmod(0o700)
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.config.update("jax_compilation_cache_dir", str(cache_directory))
        # The defaults would leave most models out: they skip what compiles in under a second.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        self._host = Host(
            platform=jax.export.default_export_platform(),
            device_count=jax.local_device_count(),
            jax_version=jax.__version__,
            stablehlo_version=stablehlo.get_current_version(),
        )
        self._watch = watch
        self._allowed_custom_calls = allowed_custom_calls
        self._lock = threading.Lock()
        self._compiled = WeakValueDictionary[str, _CompiledSizes]()
        """What was compiled of the programs that are loaded, by digest."""

    @property
    def memory_limit(self) -> int | None:
        """How many bytes the device lets this process have; None where it does not tell."""
        statistics = jax.local_devices()[0].memory_stats() or {}
        return statistics.get("bytes_limit")

    @property
    def platform(self) -> str:
        """Where programs run: cpu, cuda, rocm or tpu."""
        return self._host.platform

    @property
    def device(self) -> str:
        """What the device is, as JAX names its kind."""
        return str(jax.local_devices()[0].device_kind)

    @property
    def xla_flags(self) -> str:
        """What XLA was told, which decides about the code that it makes."""
        return os.environ.get("XLA_FLAGS", "")

    @property
    def jax_version(self) -> str:
        """The version of JAX."""
        return self._host.jax_version

    @property
    def host(self) -> Host:
        """What programs are run with."""
        return self._host

    def load(self, blob: bytes | memoryview, signature: Signature, version: str = "") -> "Program":
        """Deserializes a program that this worker can run, of a version such as "lm:3".

        Raises CannotServe where it cannot, or where the program is not what its signature says.
        """
        refuse_unservable(signature, self._host, self._allowed_custom_calls)
        for name in signature.custom_nodes:
            _stand_in_for(name)
        try:
            exported = jax.export.deserialize(blob)  # type: ignore[arg-type] # takes any buffer
        except Exception as error:  # a damaged blob raises nearly any type
            raise CannotServe(
                f"JAX {self.jax_version} cannot load the program of signature "
                f"'{signature.name}': {_first_line(error)}"
            ) from error
        _compare(exported, signature)
        with self._lock:
            compiled = self._compiled.setdefault(signature.program.digest, _CompiledSizes())
        watched = _Watched(self._watch, version)
        return Program(_flattened(exported), signature, compiled, watched)

    def release(self) -> None:
        """Gives memory back that programs and weights held which are not referred to any more."""
        jax.clear_caches()
        if hasattr(_libc, "malloc_trim"):  # glibc has it, musl and macOS do not
            _libc.malloc_trim(0)


class _Watched(NamedTuple):
    """A version and who is told when it runs."""

    watch: Watch
    version: str

    def calling(self) -> AbstractContextManager[None]:
        return self.watch.calling(self.version)

    def compiling(self) -> AbstractContextManager[None]:
        return self.watch.compiling(self.version)


class _CompiledSizes:
    """What was compiled of one program and is in use, whatever version it belongs to.

    A new version with the program of an old one that still serves need not compile it.
    """

    def __init__(self) -> None:
        self.by_sizes = WeakValueDictionary[tuple[tuple[str, int], ...], Any]()


class Program:
    """A deserialized program: compiles for one set of sizes at a time."""

    def __init__(
        self,
        exported: jax.export.Exported,
        signature: Signature,
        compiled: _CompiledSizes,
        watched: _Watched,
    ):
        self.signature = signature
        self._exported = exported
        self._compiled = compiled
        self._watched = watched
        self._placement = placement(exported)
        self._inputs = _parsed(signature.inputs)
        self._weights = _parsed(signature.weights)
        module = exported.mlir_module_serialized
        self.constraints = read_constraints(module) if self._is_symbolic() else ()
        """What must hold between sizes besides what the dimensions themselves say."""

    def compile(self, sizes: Mapping[str, int], weights: Weights) -> "Executable":
        """Compiles for the given size of every symbol.

        It takes what another version compiled of the same program, or what the persistent cache
        has. Raises InvalidInput where JAX refuses the sizes, OutOfMemory where the device is too
        small.
        """
        key = tuple(sorted(sizes.items()))
        compiled = self._compiled.by_sizes.get(key)
        source = "shared"
        if compiled is None:
            with self._watched.compiling():
                compiled = self._compiled.by_sizes[key] = self._compile(sizes)
            source = "cache" if _cache.hit else "compiler"
        placed = {
            spec.position: weights.get(spec.name, self._placement.inputs[spec.position])
            for spec in self.signature.weights
        }
        return Executable(compiled, self.signature, placed, dict(sizes), source, self._watched)

    def _compile(self, sizes: Mapping[str, int]) -> Any:
        shapes: list[jax.ShapeDtypeStruct] = [None] * len(self._exported.in_avals)  # type: ignore[list-item]
        for spec, dimensions in (*self._inputs, *self._weights):
            shape = tuple(dimension.evaluate(sizes) for dimension in dimensions)
            if width := KEY_WIDTHS.get(spec.dtype):
                shapes[spec.position] = jax.ShapeDtypeStruct((*shape, width), np.uint32)
            else:
                aval = self._exported.in_avals[spec.position]
                shapes[spec.position] = jax.ShapeDtypeStruct(shape, aval.dtype)
        _cache.hit = False
        try:
            function = jax.jit(self._callable(), **self._placement.options)
            return function.lower(*shapes).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise OutOfMemory(f"no room to compile for {_at(sizes)}: {error}") from error
            raise InvalidInput(f"JAX refuses {_at(sizes)}: {_first_line(error)}") from error
        except Exception as error:  # like deserialize, over a module that JAX never checked before
            raise InvalidInput(f"JAX refuses {_at(sizes)}: {_first_line(error)}") from error

    def _is_symbolic(self) -> bool:
        return any(dim.symbols for _, dimensions in self._inputs for dim in dimensions)

    def _callable(self) -> Any:
        """The program over plain arrays: typed random keys go in and out as their data."""
        exported = self._exported
        specs = (*self.signature.inputs, *self.signature.weights)
        keys_in = {
            spec.position: _KEY_IMPLEMENTATIONS[spec.dtype]
            for spec in specs
            if spec.dtype in KEY_WIDTHS
        }
        keys_out = {spec.position for spec in self.signature.outputs if spec.dtype in KEY_WIDTHS}
        if not keys_in and not keys_out:
            return exported.call

        def over_key_data(*flat: jax.Array) -> tuple[jax.Array, ...]:
            arguments = list(flat)
            for position, implementation in keys_in.items():
                arguments[position] = jax.random.wrap_key_data(flat[position], impl=implementation)
            results = exported.call(*arguments)
            return tuple(
                jax.random.key_data(result) if position in keys_out else result
                for position, result in enumerate(results)
            )

        return over_key_data


# What a compiled program may do for as long as its inputs say, or as nobody can tell.
_UNSTEADY = re.compile(r"\b(while|conditional|custom-call)\(")


@dataclass(frozen=True)
class Executable:
    """A program compiled for fixed sizes, with its weights in place; callable from any thread."""

    _compiled: Any
    _signature: Signature
    _weights: Mapping[int, jax.Array]
    sizes: Mapping[str, int]
    source: str
    """Where it comes from: "shared" with another version, persistent "cache", or "compiler"."""

    _watched: _Watched

    @property
    def call_bytes(self) -> int:
        """How many bytes a call takes on each device beside the weights, as the compiler says."""
        memory = self._compiled.memory_analysis()
        if memory is None:  # not every backend tells
            return 0
        on_device = sum(
            max(shard.data.nbytes for shard in array.addressable_shards)
            for array in self._weights.values()
        )
        arguments = max(memory.argument_size_in_bytes - on_device, 0)
        return int(arguments + memory.output_size_in_bytes + memory.temp_size_in_bytes)

    @property
    def code_bytes(self) -> int:
        """How many bytes the machine code takes on each device; 0 where that is not told."""
        memory = self._compiled.memory_analysis()
        return int(memory.generated_code_size_in_bytes) if memory else 0

    @property
    def steady(self) -> bool:
        """Whether a call takes about as long whatever its inputs hold.

        Nothing of it is known to depend on them, and it runs on processors, not on a device that
        others may keep busy.
        """
        if jax.default_backend() != "cpu":
            return False
        return not _UNSTEADY.search(self._compiled.as_text() or "while(")

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs to completion; the outputs are read-only.

        The inputs must fit: they are not checked again. They may be used in place, so they must
        not change until this returns. Raises OutOfMemory and ExecutionFailed.
        """
        signature = self._signature
        flat: list[Any] = [None] * (len(signature.inputs) + len(signature.weights))
        for position, array in self._weights.items():
            flat[position] = array
        for spec in signature.inputs:
            flat[spec.position] = inputs[spec.name]
        try:
            with self._watched.calling():
                results = self._compiled(*flat)
                return {spec.name: np.asarray(results[spec.position]) for spec in signature.outputs}
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise OutOfMemory(
                    f"the device has no room for a call at {_at(self.sizes)}: {_first_line(error)}"
                ) from error
            raise ExecutionFailed(
                f"the program failed at {_at(self.sizes)}: {_first_line(error)}"
            ) from error


class _CacheLookup(threading.local):
    """Whether this thread's latest compilation was found in the persistent cache."""

    hit = False


_cache = _CacheLookup()


def _note_cache_event(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _cache.hit = True


jax.monitoring.register_event_listener(_note_cache_event)

_stand_ins: set[str] = set()
_stand_ins_lock = threading.Lock()


def _stand_in_for(name: str) -> None:
    """Registers a class under a custom pytree node's serialized name, once per process.

    A program's trees only matter until the call is flattened, so that any class will do. The
    publisher's own way to read its auxiliary data is never used.
    """
    with _stand_ins_lock:
        if name in _stand_ins:
            return
        kind = type("StandIn", (_Node,), {})
        jax.tree_util.register_pytree_node(
            kind, lambda node: (node.children, node.data), lambda data, it: kind(data, it)
        )
        try:
            jax.export.register_pytree_node_serialization(
                kind,
                serialized_name=name,
                serialize_auxdata=lambda data: data,
                deserialize_auxdata=bytes,
            )
        except ValueError as error:
            if "Duplicate serialization registration" not in str(error):
                raise
            # JAX knows this type itself.
        _stand_ins.add(name)


class _Node:
    """A pytree node of which nothing is known but its children and its auxiliary bytes."""

    def __init__(self, data: bytes, children: Any):
        self.data = data
        self.children = tuple(children)


def _flattened(exported: jax.export.Exported) -> jax.export.Exported:
    """The same program, taking its flat arguments and giving a tuple of its flat results."""
    return replace(
        exported,
        in_tree=jax.tree.structure(((0,) * len(exported.in_avals), {})),
        out_tree=jax.tree.structure((0,) * len(exported.out_avals)),
    )


def _compare(exported: jax.export.Exported, signature: Signature) -> None:
    """Raises CannotServe where the program is not what the registry says of it."""
    differences = []
    if tuple(exported.platforms) != signature.platforms:
        differences.append(f"platforms {exported.platforms} instead of {signature.platforms}")
    if exported.nr_devices != signature.device_count:
        differences.append(f"{exported.nr_devices} devices instead of {signature.device_count}")
    if exported.ordered_effects or exported.unordered_effects:
        differences.append("side effects")
    if (checks := tuple(map(str, exported.disabled_safety_checks))) != signature.disabled_checks:
        differences.append(f"disabled safety checks {checks}")
    for kind, avals, specs in (
        ("argument", exported.in_avals, (*signature.inputs, *signature.weights)),
        ("result", exported.out_avals, signature.outputs),
    ):
        if sorted(spec.position for spec in specs) != list(range(len(avals))):
            differences.append(f"{len(avals)} {kind}s instead of {len(specs)}")
            continue
        for spec in specs:
            aval = avals[spec.position]
            dtype = _API_NAMES.get(str(aval.dtype), str(aval.dtype))
            if dtype != spec.dtype or not _same_shape(aval.shape, spec.shape):
                dimensions = ",".join(map(str, aval.shape))
                differences.append(
                    f"{kind} {spec.position} is {dtype}[{dimensions}] instead of {spec}"
                )
    if differences:
        raise CannotServe(
            f"the program of signature '{signature.name}' is not what the registry says: "
            f"{'; '.join(differences[:5])}"
        )


def _same_shape(shape: Sequence[Any], stated: Sequence[str]) -> bool:
    """Whether two notations of a shape mean the same; releases of JAX order terms differently."""
    if tuple(map(str, shape)) == tuple(stated):
        return True
    scope = next((dim.scope for dim in shape if jax.export.is_symbolic_dim(dim)), None)
    try:
        return tuple(jax.export.symbolic_shape(",".join(stated), scope=scope)) == tuple(shape)
    except ValueError:
        return False


def _parsed(specs: Sequence[TensorSpec]) -> list[tuple[TensorSpec, tuple[Dimension, ...]]]:
    return [(spec, tuple(map(Dimension.parse, spec.shape))) for spec in specs]


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items()) or "its fixed shapes"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
