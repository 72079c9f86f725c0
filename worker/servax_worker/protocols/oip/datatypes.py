"""The protocol's names of element types."""

from collections.abc import Mapping
from types import MappingProxyType

from servax.errors import InvalidTensor
from servax_worker.errors import Unsupported

DATATYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "BOOL",
        "int8": "INT8",
        "int16": "INT16",
        "int32": "INT32",
        "int64": "INT64",
        "uint8": "UINT8",
        "uint16": "UINT16",
        "uint32": "UINT32",
        "uint64": "UINT64",
        "float16": "FP16",
        "bfloat16": "BF16",
        "float32": "FP32",
        "float64": "FP64",
    }
)
"""By JAX's names."""

_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}


def datatype_of(dtype: str) -> str:
    """The protocol's name of one of JAX's types; raises Unsupported where it has none."""
    if dtype not in DATATYPES:
        raise Unsupported(
            f"the Open Inference Protocol has no type for {dtype}; call with servax.v1.Prediction, "
            f"which has all"
        )
    return DATATYPES[dtype]


def dtype_of(datatype: str) -> str:
    """JAX's name of one of the protocol's types; raises InvalidTensor where it has none."""
    if datatype == "BYTES":
        raise InvalidTensor("BYTES: programs of JAX take no text or bytes; send numbers")
    if datatype not in _DTYPES:
        raise InvalidTensor(f"datatype '{datatype}' is none of {', '.join(_DTYPES)}")
    return _DTYPES[datatype]
