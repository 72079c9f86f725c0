"""Real exports are loaded, compiled and called; damaged or dishonest ones are refused."""

import collections
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

from servax.dtypes import DTYPES
from servax.types import TensorSpec
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.placement import Weights
from servax_worker.runtime import Runtime


@pytest.fixture(scope="session")
def runtime(cache_directory):
    """This process's JAX."""
    return Runtime(cache_directory / "executables")


@pytest.fixture
def call(runtime, described):
    """Loads, compiles and calls an export in one go: `call(exported, sizes, x0, x1…)`."""

    def call(program, sizes, *inputs, **options):
        blob, signature = described(program, **options)
        executable = runtime.load(blob, signature).compile(sizes, {})
        outputs = executable({f"x{index}": value for index, value in enumerate(inputs)})
        return tuple(outputs.values())

    return call


def test_the_result_is_that_of_jit(call, exported, symbolic):
    """A symbolic program gives for each size what the function itself gives under jit, exactly."""

    def function(x, y):
        return jnp.tanh(x @ y), x.sum(axis=1)

    y = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    program = exported(function, symbolic("b, 3"), jax.ShapeDtypeStruct(y.shape, y.dtype))

    for size in (1, 2, 7):
        x = np.linspace(-1, 1, 3 * size, dtype=np.float32).reshape(size, 3)
        for ours, expected in zip(
            call(program, {"b": size}, x, y), jax.jit(function)(x, y), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)


def test_arguments_in_trees_are_flat(call, exported):
    """Dicts, tuples, keyword arguments, unused arguments and results in trees are all flattened."""

    def function(pair, *, options, unused):
        return {"sum": pair[0] + pair[1], "more": [options["scale"] * pair[0], None]}

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    program = exported(function, (scalar, scalar), options={"scale": scalar}, unused=scalar)
    results = call(program, {}, *np.float32([1, 2, 3, 4]))

    assert [float(result) for result in results] == [3, 3]


class Box:
    """A pytree node that the worker does not know."""

    def __init__(self, inner, label):
        self.inner, self.label = inner, label


def test_no_class_is_needed(call, exported):
    """Custom pytree nodes in arguments and results need no registration by their publisher."""
    jax.tree_util.register_pytree_node(
        Box, lambda box: ((box.inner,), box.label), lambda label, inner: Box(*inner, label)
    )
    name = "tests.Box"
    export.register_pytree_node_serialization(
        Box, serialized_name=name, serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
    )
    program = exported(
        lambda box: Box(box.inner * 2, "out"), Box(jax.ShapeDtypeStruct((2,), jnp.float32), "in")
    )
    blob = program.serialize()
    # A publisher's process knows the class, a worker's does not.
    del jax._src.export._export.deserialization_registry[name]
    with pytest.raises(ValueError, match="unregistered type"):
        export.deserialize(blob)

    (result,) = call(program, {}, np.float32([1, 2]), custom_nodes=(name,))

    np.testing.assert_array_equal(result, [2, 4])


def test_known_nodes_are_left_to_jax(call, exported):
    """A custom node that JAX itself registers is not registered again."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    program = exported(
        lambda tree: tree["a"] - tree["b"], collections.OrderedDict(a=scalar, b=scalar)
    )
    (result,) = call(
        program, {}, np.float32(3), np.float32(1), custom_nodes=("collections.OrderedDict",)
    )

    assert result == 2


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_goes_in_and_out(call, exported, dtype):
    """An array of any element type of the API comes back as it went in."""
    with jax.enable_x64(True):
        program = exported(
            lambda x: jnp.concatenate([x, x]), jax.ShapeDtypeStruct((2,), DTYPES[dtype])
        )
    x = np.array([1, 0]).astype(DTYPES[dtype])
    if dtype == "float8_e8m0fnu":  # has no zero
        x = np.array([1, 2]).astype(ml_dtypes.float8_e8m0fnu)
    (result,) = call(program, {}, x)

    assert result.dtype == x.dtype
    assert result.tobytes() == np.concatenate([x, x]).tobytes()


@pytest.mark.parametrize(("kind", "width"), [("threefry2x32", 2), ("rbg", 4), ("unsafe_rbg", 4)])
def test_typed_keys_travel_as_their_data(call, exported, kind, width):
    """A program over typed random keys takes and gives the keys' uint32 data."""

    def function(key):
        return jax.random.normal(key, (3,)), jax.random.split(key, 2)

    key = jax.random.key(7, impl=kind)
    program = exported(function, jax.ShapeDtypeStruct((), key.dtype))
    normal, split = call(program, {}, np.asarray(jax.random.key_data(key)))
    expected_normal, expected_split = jax.jit(function)(key)

    np.testing.assert_array_equal(normal, expected_normal)
    np.testing.assert_array_equal(split, jax.random.key_data(expected_split))
    assert split.shape == (2, width)


def test_weights_are_arguments(runtime, described, exported, symbolic):
    """Weights are placed once and passed by position; other weights need no other program."""
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    blob, signature = described(
        exported(lambda w, x, v: x * w + v, vector, symbolic("b, 3"), vector)
    )
    w, x, v = signature.inputs
    signature = replace(signature, inputs=(x,), weights=(w, v))
    program = runtime.load(blob, signature)
    value = np.ones((2, 3), np.float32)

    for scale in (2, 3):
        weights = Weights({"x0": np.full(3, scale, np.float32), "x2": np.float32([0, 1, 2])})
        (result,) = program.compile({"b": 2}, weights)({"x1": value}).values()
        np.testing.assert_array_equal(result, value * scale + np.float32([0, 1, 2]))


def test_a_size_that_breaks_a_constraint_is_refused(runtime, described, exported, symbolic):
    """A size that the program does not take is the caller's error, also when JAX finds it."""
    blob, signature = described(exported(lambda x: x, symbolic("b", constraints=["b <= 4"])))
    program = runtime.load(blob, signature)

    assert [str(constraint) for constraint in program.constraints] == ["b <= 4"]
    with pytest.raises(InvalidInput, match="JAX refuses b=5: ValueError"):
        program.compile({"b": 5}, {})


def test_the_persistent_cache_is_used(runtime, described, exported, symbolic):
    """What was compiled once is found again by a program that was loaded anew."""
    blob, signature = described(exported(lambda x: jnp.sin(x) + 0.125, symbolic("b, 5")))
    first = runtime.load(blob, signature).compile({"b": 3}, {})
    assert first.source == "compiler"
    del first
    jax.clear_caches()
    second = runtime.load(blob, signature).compile({"b": 3}, {})

    assert second.source == "cache"


def test_versions_share_what_is_compiled(runtime, described, exported, symbolic):
    """While one version of a program serves, the next one, with other weights, compiles nothing."""
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    blob, signature = described(exported(lambda w, x: x * w, vector, symbolic("b, 3")))
    w, x = signature.inputs
    signature = replace(signature, inputs=(x,), weights=(w,))
    value = np.ones((2, 3), np.float32)
    executables = [
        runtime.load(blob, signature).compile(
            {"b": 2}, Weights({"x0": np.full(3, scale, np.float32)})
        )
        for scale in (2, 3)
    ]

    assert [executable.source for executable in executables] == ["compiler", "shared"]
    for executable, scale in zip(executables, (2, 3), strict=True):
        np.testing.assert_array_equal(executable({"x1": value})["y0"], value * scale)


def test_an_executable_tells_what_a_call_takes(runtime, described, exported):
    """Arguments, results and temporaries of a call are counted; weights are not."""
    big, small = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in (1000, 10))
    blob, signature = described(exported(lambda w, x: x + w[:10], big, small))
    w, x = signature.inputs
    signature = replace(signature, inputs=(x,), weights=(w,))
    weights = Weights({"x0": np.zeros(1000, np.float32)})

    executable = runtime.load(blob, signature).compile({}, weights)

    assert weights.nbytes == 4000
    assert 80 <= executable.call_bytes < 1000


def test_a_call_is_steady_without_loops_and_branches(runtime, described, exported):
    """Programs that may take as long as their inputs say are told from those that cannot."""

    def loops(x):
        return jax.lax.while_loop(lambda y: y < 100, lambda y: y * 2, x)

    def branches(x):
        return jax.lax.cond(x > 1, lambda y: y * 2, lambda y: y - 1, x)

    def neither(x):
        return jnp.tanh(x) * 2

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    steady = {}
    for function in (loops, branches, neither):
        blob, signature = described(exported(function, scalar))
        executable = runtime.load(blob, signature).compile({}, {})
        steady[function.__name__] = executable.steady

    assert steady == {"loops": False, "branches": False, "neither": True}


def test_what_the_registry_says_is_checked(runtime, described, exported, symbolic):
    """A program that is not what its signature says is refused with the difference."""
    blob, signature = described(exported(lambda x: x * 2, symbolic("b, 3")))
    (x,), (y,) = signature.inputs, signature.outputs
    for changes, message in [
        ({"inputs": (replace(x, dtype="int32"),)}, r"float32\[b,3\] instead of x0: int32\[b,3\]"),
        ({"inputs": (replace(x, shape=("b", "4")),)}, r"instead of x0: float32\[b,4\]"),
        ({"outputs": (replace(y, shape=("2*b", "3")),)}, "result 0 is"),
        ({"inputs": (x, replace(x, name="z", position=1))}, "1 arguments instead of 2"),
        ({"outputs": ()}, "1 results instead of 0"),
        ({"platforms": ("cpu",)}, "platforms"),
    ]:
        with pytest.raises(CannotServe, match=message):
            runtime.load(blob, replace(signature, **changes))


def test_other_notations_of_a_shape_are_the_same(runtime, described, exported, symbolic):
    """A shape that another release of JAX would print in another order is recognized."""
    blob, signature = described(exported(lambda x: jnp.concatenate([x, x[:1]]), symbolic("b, 3")))
    (y,) = signature.outputs
    other = replace(y, shape=("1 + b", "3"))

    assert runtime.load(blob, replace(signature, outputs=(other,)))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.9])
def test_truncated_blobs_are_refused(runtime, described, exported, symbolic, kept):
    """A truncated program is an error that names the signature and JAX's reason, not a crash."""
    blob, signature = described(exported(lambda x: x * 2, symbolic("b, 3")))
    kept = int(len(blob) * kept) if isinstance(kept, float) else kept
    with pytest.raises(CannotServe, match="cannot load the program of signature"):
        runtime.load(blob[:kept], signature)


def test_a_damaged_module_is_refused(runtime, described, exported, symbolic):
    """Damage in the compiled part, which only shows when compiling, is an error as well."""
    program = exported(lambda x: x * 2, symbolic("b, 3"))
    module = program.mlir_module_serialized
    damaged = replace(program, mlir_module_serialized=module[: len(module) // 2])
    blob, signature = described(damaged)
    loaded = runtime.load(blob, signature)

    with pytest.raises(InvalidInput, match="JAX refuses b=1"):
        loaded.compile({"b": 1}, {})


def test_the_signature_of_a_static_program(runtime, described, exported):
    """A program without symbols is compiled for the one shape that it has."""
    blob, signature = described(exported(lambda x: x + 1, jax.ShapeDtypeStruct((2,), jnp.int32)))
    program = runtime.load(blob, signature)
    (result,) = program.compile({}, {})({"x0": np.int32([1, 2])}).values()

    assert program.constraints == ()
    assert signature.inputs == (TensorSpec("x0", "int32", ("2",), 0),)
    np.testing.assert_array_equal(result, [2, 3])
