"""The StableHLO of a program: as text, and for older releases of JAX.

The one module of the library that needs JAX.
"""

from dataclasses import replace

from servax.errors import FailedPrecondition, InvalidArgument

# Longer constants are elided: weights that were baked in would fill gigabytes.
_ELEMENTS = 16
# The field of table Exported that holds the module: `jax/_src/export/serialization.fbs` in JAX's
# repository. `jax.export.deserialize` would give it as well, but only where every class of the
# function's pytrees is registered.
_MLIR_MODULE = 13
_MAGIC = b"ML\xefR"


def stablehlo_text(program: bytes, *, limit: int | None) -> str:
    """Give the module of a serialized `jax.export.Exported` in StableHLO's own notation.

    Constants of more than 16 elements are elided, and so is what follows the first `limit`
    characters; None gives the whole module. Source locations are left out.

    Raises `FailedPrecondition` without JAX, and `InvalidArgument` for a program that the
    installed JAX cannot read.
    """
    try:
        import flatbuffers  # type: ignore[import-untyped]
        from jax.extend.mlir import ir
        from jax.extend.mlir.dialects import sdy, stablehlo
        from jaxlib.version import __version__ as version
    except ImportError as error:
        raise _without_jax(error) from error
    try:
        root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, program, 0)
        exported = flatbuffers.table.Table(program, root)
        field = exported.Offset(4 + 2 * _MLIR_MODULE)
        start = exported.Vector(field)
        module = program[start : start + exported.VectorLen(field)]
        if not module.startswith(_MAGIC):
            raise ValueError("it holds no MLIR module")
        with ir.Context() as context:
            stablehlo.register_dialect(context)
            sdy.register_dialect(context)
            parsed = stablehlo.deserialize_portable_artifact(context, module)
            text = str(parsed.operation.get_asm(large_elements_limit=_ELEMENTS))
    except (ValueError, ir.MLIRError, flatbuffers.packer.struct.error) as error:
        raise InvalidArgument(
            f"jaxlib {version} cannot read the program: {error}; it may be damaged, or written by "
            "a newer JAX"
        ) from error
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit} more characters\n"


def retarget(program: bytes, stablehlo_version: str) -> bytes:
    """Write a serialized `jax.export.Exported` anew, in an older version of StableHLO.

    Releases of JAX that read no newer one can then load it, most of the time: whether they compile
    it, only trying tells. It takes a JAX that reads the program, such as the one that wrote it, and
    every class of the function's pytrees registered, as at export.

    Raises `FailedPrecondition` without JAX, and `InvalidArgument` for a program that the installed
    JAX cannot read or a version that it cannot write.
    """
    try:
        import jax.export
        from jax.extend.mlir import ir
        from jax.extend.mlir.dialects import sdy, stablehlo
    except ImportError as error:
        raise _without_jax(error) from error
    try:
        exported = jax.export.deserialize(bytearray(program))
    except Exception as error:  # a damaged program raises nearly any type
        raise InvalidArgument(f"JAX {jax.__version__} cannot read the program: {error}") from error
    try:
        with ir.Context() as context:
            stablehlo.register_dialect(context)
            sdy.register_dialect(context)
            module = stablehlo.deserialize_portable_artifact(
                context, exported.mlir_module_serialized
            )
            written = stablehlo.serialize_portable_artifact(module, stablehlo_version)
    except (ValueError, ir.MLIRError) as error:
        raise InvalidArgument(
            f"JAX {jax.__version__} cannot write the program in StableHLO {stablehlo_version!r}: "
            f"{error}; it writes {stablehlo.get_minimum_version()} to "
            f"{stablehlo.get_current_version()}, and not every program fits an older one"
        ) from error
    return bytes(replace(exported, mlir_module_serialized=written).serialize())


def _without_jax(error: ImportError) -> FailedPrecondition:
    return FailedPrecondition(
        f"reading StableHLO takes JAX on this machine ({error}): pip install 'servax[export]'"
    )
