"""What --json prints: an interface, which docs/cli.md describes; keys only get added.

Times are ISO 8601 in UTC, sizes are in bytes.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servax.types import (
    Blob,
    Change,
    Compatibility,
    Encoding,
    Model,
    ServedVersion,
    Signature,
    Spent,
    TensorSpec,
    Trial,
    Version,
    VersionStatistics,
    WorkerStatus,
)

Document = dict[str, Any]


def model(value: Model) -> Document:
    """Describe a model."""
    return {
        "name": value.name,
        "create_time": value.create_time.isoformat(),
        "latest_version": value.latest_version,
        "version_count": value.version_count,
        "aliases": dict(value.aliases),
    }


def version(value: Version) -> Document:
    """Describe a version."""
    return {
        "model": value.model,
        "version": value.number,
        "create_time": value.create_time.isoformat(),
        "size": value.size,
        "description": value.description,
        "labels": dict(value.labels),
        "aliases": list(value.aliases),
        "creator": value.creator,
        "source_revision": value.source_revision,
        "copied_from": str(value.copied_from) if value.copied_from else None,
        "delete_time": value.delete_time.isoformat() if value.delete_time else None,
        "expires": value.expires.isoformat() if value.expires else None,
        "signatures": [signature(each) for each in value.signatures],
        "weights": [
            {
                **blob(shard.blob),
                "tensors": [
                    {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
                    for tensor in shard.tensors
                ],
            }
            for shard in value.weights
        ],
    }


def change(value: Change) -> Document:
    """Describe a change."""
    return {
        "revision": value.revision,
        "time": value.time.isoformat(),
        "actor": value.actor,
        "action": value.action.name,
        "model": value.model,
        "version": value.version,
        "alias": value.alias,
        "previous_version": value.previous_version,
        "detail": value.detail,
    }


def blob(value: Blob) -> Document:
    """Describe a blob."""
    return {"digest": value.digest, "size": value.size}


def signature(value: Signature) -> Document:
    """Describe a signature."""
    return {
        "name": value.name,
        "program": blob(value.program),
        "function_name": value.function_name,
        "inputs": [_spec(each) for each in value.inputs],
        "weights": [_spec(each) for each in value.weights],
        "outputs": [_spec(each) for each in value.outputs],
        "platforms": list(value.platforms),
        "device_count": value.device_count,
        "calling_convention_version": value.calling_convention_version,
        "serialization_version": value.serialization_version,
        "stablehlo_version": value.stablehlo_version,
        "jax_version": value.jax_version,
        "disabled_checks": list(value.disabled_checks),
        "effects": list(value.effects),
        "custom_nodes": list(value.custom_nodes),
        "custom_calls": list(value.custom_calls),
        "compatibility": _window(value.compatibility) if value.compatibility else None,
        "encodings": [_encoding(each) for each in value.encodings],
        "trial": _trial(value.trial) if value.trial else None,
        "batching": (
            {"symbol": value.batching.symbol, "max_rows": value.batching.max_rows}
            if value.batching
            else None
        ),
        "golden": (
            {**blob(value.golden.blob), "rtol": value.golden.rtol, "atol": value.golden.atol}
            if value.golden
            else None
        ),
    }


def _window(value: Compatibility) -> Document:
    return {
        "oldest_jax": value.oldest_jax or None,
        "oldest_jax_date": value.oldest_jax_date.isoformat() if value.oldest_jax_date else None,
        "expires": value.expires.isoformat(),
        "estimated": value.estimated,
    }


def _encoding(value: Encoding) -> Document:
    return {
        "program": blob(value.program),
        "calling_convention_version": value.calling_convention_version,
        "serialization_version": value.serialization_version,
        "stablehlo_version": value.stablehlo_version,
        "jax_version": value.jax_version,
        "compatibility": _window(value.compatibility),
        "create_time": value.create_time.isoformat(),
        "trial": _trial(value.trial) if value.trial else None,
    }


def _trial(value: Trial) -> Document:
    return {
        "outcome": value.outcome.name,
        "reason": value.reason,
        "jax_version": value.jax_version,
        "size": value.size,
        "ran": value.ran,
        "flops": value.flops,
        "accessed_bytes": value.accessed_bytes,
        "argument_bytes": value.argument_bytes,
        "result_bytes": value.result_bytes,
        "temporary_bytes": value.temporary_bytes,
        "code_bytes": value.code_bytes,
    }


def _spec(value: TensorSpec) -> Document:
    return {"name": value.name, "dtype": value.dtype, "shape": list(value.shape)}


def status(value: WorkerStatus) -> Document:
    """Describe a worker."""
    return {
        "platform": value.platform,
        "jax_version": value.jax_version,
        "versions": [served(each) for each in value.versions],
    }


def statistics(value: VersionStatistics) -> Document:
    """Describe how often a version was called."""
    return {
        "model": value.model,
        "version": value.version,
        "succeeded": _spent(value.succeeded),
        "failed": _spent(value.failed),
        "waited": _spent(value.waited),
        "batches": [
            {
                "rows": batch.rows,
                "input": _spent(batch.input),
                "compute": _spent(batch.compute),
                "output": _spent(batch.output),
            }
            for batch in value.batches
        ],
    }


def _spent(value: Spent) -> Document:
    return {"count": value.count, "seconds": value.seconds}


def served(value: ServedVersion) -> Document:
    """Describe a version on a worker."""
    return {
        "model": value.model,
        "version": value.version,
        "alias": value.alias,
        "state": value.state.name,
        "detail": value.detail,
        "signatures": [signature(each) for each in value.signatures],
    }


def array(value: NDArray[Any]) -> Document:
    """Describe an array: complex numbers as [real, imaginary]; "NaN", "Infinity", "-Infinity"."""
    return {
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "data": _elements(_plain(value).tolist()),
    }


def _plain(value: NDArray[Any]) -> NDArray[Any]:
    """Give an array that `tolist` makes JSON of, without rounding anything."""
    if value.dtype.kind == "c":
        return np.stack([value.real, value.imag], axis=-1)
    if value.dtype.kind == "V":  # ml_dtypes: all of them fit
        return value.astype(np.int64 if value.dtype.name in ("int4", "uint4") else np.float64)
    return value


def _elements(value: Any) -> Any:
    if isinstance(value, list):
        return [_elements(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
