"""The protocol's messages to and from calls."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from servax.dtypes import dtype_name, numpy_dtype
from servax.errors import InvalidTensor
from servax.tensors import as_array, byte_size, from_bytes, wire_bytes
from servax_proto.oip import inference_pb2
from servax_worker.errors import InvalidInput, TooLarge
from servax_worker.predictor import Answer, Request
from servax_worker.protocols.oip.datatypes import datatype_of, dtype_of
from servax_worker.protocols.oip.description import choice
from servax_worker.protocols.oip.inference import Call, SharedInput
from servax_worker.protocols.oip.parameters import (
    Parameters,
    deadline_of,
    place_of,
    refuse_classification,
    signature_of,
)
from servax_worker.protocols.oip.shared_memory import Place

MAX_ANSWER_BYTES = 2**31 - 1 - (1 << 20)
"""The most that the arrays of one answer may take: protobuf's limit, less room for the rest."""

_InputTensor = inference_pb2.ModelInferRequest.InferInputTensor
_ParameterMap = Mapping[str, inference_pb2.InferParameter]

_FIELDS = {
    "bool": "bool_contents",
    "int8": "int_contents",
    "int16": "int_contents",
    "int32": "int_contents",
    "int64": "int64_contents",
    "uint8": "uint_contents",
    "uint16": "uint_contents",
    "uint32": "uint_contents",
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}
"""Where the elements of a type are."""

# What they are there.
_STORED = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def call_from_proto(
    message: inference_pb2.ModelInferRequest, seconds_left: float | None = None
) -> Call:
    """The call; raises InvalidInput where inputs are no arrays, and Unsupported."""
    if not message.model_name:
        raise InvalidInput("the request names no model")
    parameters = _values(message.parameters)
    inputs: dict[str, NDArray[np.generic]] = {}
    shared: dict[str, SharedInput] = {}
    raw = iter(message.raw_input_contents)
    for tensor in message.inputs:
        if tensor.name in inputs or tensor.name in shared:
            raise InvalidInput(f"there are two inputs '{tensor.name}'")
        try:
            place = place_of(_values(tensor.parameters))
            dtype = dtype_of(tensor.datatype)
            if place is not None:
                shared[tensor.name] = SharedInput(place, dtype, tuple(tensor.shape))
            elif message.raw_input_contents:
                inputs[tensor.name] = from_bytes(dtype, tensor.shape, _next(raw, tensor))
            else:
                inputs[tensor.name] = _typed(tensor, dtype)
        except (InvalidTensor, InvalidInput) as error:
            raise InvalidInput(f"input '{tensor.name}': {error}") from error
    if unused := sum(1 for _ in raw):
        raise InvalidInput(f"raw_input_contents has {unused} entries more than there are inputs")
    outputs, targets = _outputs(message)
    version, alias = choice(message.model_version)
    request = Request(
        model=message.model_name,
        inputs=inputs,
        version=version,
        alias=alias,
        signature=signature_of(parameters),
        outputs=outputs,
        deadline=deadline_of(parameters, seconds_left),
        max_answer_bytes=None if targets else MAX_ANSWER_BYTES,
    )
    return Call(request, message.id, shared, targets)


def answer_to_proto(answer: Answer, call: Call) -> inference_pb2.ModelInferResponse:
    """The answer, its arrays as bytes.

    Raises TooLarge, and Unsupported for types that the protocol has no name for.
    """
    response = inference_pb2.ModelInferResponse(
        model_name=answer.model, model_version=str(answer.version), id=call.id
    )
    size = 0
    for name, output in answer.outputs.items():
        array = as_array(output)
        tensor = response.outputs.add(
            name=name, datatype=datatype_of(dtype_name(array.dtype)), shape=array.shape
        )
        place = call.shared_outputs.get(name)
        if place is None:
            size += array.nbytes
            if size > MAX_ANSWER_BYTES:
                raise TooLarge(f"the answer does not fit one message of {MAX_ANSWER_BYTES} bytes")
            response.raw_output_contents.append(bytes(wire_bytes(array)))
        else:
            # Clients count the entries.
            response.raw_output_contents.append(b"")
            tensor.parameters["shared_memory_region"].string_param = place.region
            tensor.parameters["shared_memory_offset"].int64_param = place.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = array.nbytes
    return response


def _values(parameters: _ParameterMap) -> Parameters:
    found = {}
    for name, parameter in parameters.items():
        if field := parameter.WhichOneof("parameter_choice"):
            found[name] = getattr(parameter, field)
    return found


def _outputs(
    message: inference_pb2.ModelInferRequest,
) -> tuple[tuple[str, ...], dict[str, Place]]:
    """What to give, and where in shared memory."""
    targets = {}
    for output in message.outputs:
        parameters = _values(output.parameters)
        try:
            refuse_classification(parameters)
            place = place_of(parameters)
        except InvalidInput as error:
            raise InvalidInput(f"output '{output.name}': {error}") from error
        if place is not None:
            targets[output.name] = place
    return tuple(output.name for output in message.outputs), targets


def _next(raw: Iterator[bytes], tensor: _InputTensor) -> bytes:
    if tensor.HasField("contents"):
        raise InvalidInput("it has contents although the request has raw_input_contents")
    data = next(raw, None)
    if data is None:
        raise InvalidInput("raw_input_contents has no entry for it")
    return data


def _typed(tensor: _InputTensor, dtype: str) -> NDArray[np.generic]:
    if dtype not in _FIELDS:
        raise InvalidTensor(f"{tensor.datatype} has no contents; send it in raw_input_contents")
    field = _FIELDS[dtype]
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            raise InvalidTensor(
                f"it has {other.name}; the elements of {tensor.datatype} are in {field}"
            )
    elements = getattr(tensor.contents, field)
    byte_size(dtype, tensor.shape)
    if len(elements) != math.prod(tensor.shape):
        raise InvalidTensor(
            f"{len(elements)} elements in {field} for {tensor.datatype}{list(tensor.shape)}"
        )
    values = np.fromiter(elements, _STORED.get(field, numpy_dtype(dtype)), len(elements))
    array = values.astype(numpy_dtype(dtype), copy=False)
    if array.dtype != values.dtype and not np.array_equal(array.astype(values.dtype), values):
        raise InvalidTensor(f"an element in {field} is outside of {tensor.datatype}")
    return array.reshape(tuple(tensor.shape))
