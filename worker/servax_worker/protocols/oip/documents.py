"""The JSON documents of the protocol's REST API, with its extension for binary tensors.

A body is a document, or a document and after it the bytes of arrays, in the order in which the
document names them; a header of HTTP then says how long the document is. An array with bytes has
the parameter "binary_data_size", any other has its elements in "data": flat, or nested.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from servax.dtypes import dtype_name
from servax.errors import InvalidTensor
from servax.tensors import as_array, byte_size, from_bytes, wire_bytes
from servax_worker.errors import InvalidInput
from servax_worker.predictor import Answer, Request
from servax_worker.protocols.numbers import Misfit, array_of
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

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header that says how many bytes of a body are the document."""


class InferenceDocument:
    """A request, and the form in which its outputs are to be given."""

    def __init__(self, body: bytes, header_length: str | None, model: str, version: str):
        """Reads a body; `header_length` is what the header of HTTP says.

        Raises InvalidInput where it is no request, and Unsupported.
        """
        length = _length(body, header_length)
        document = read(body[:length] if length < len(body) else body)
        self._binary = memoryview(body)[length:]
        parameters = parameters_of(document)
        inputs: dict[str, NDArray[Any]] = {}
        shared: dict[str, SharedInput] = {}
        for name, tensor in _named("inputs", document).items():
            try:
                place = place_of(parameters_of(tensor))
                dtype, shape = dtype_of(_text(tensor, "datatype")), _shape(tensor)
                if place is None:
                    inputs[name] = self._array(tensor, dtype, shape)
                else:
                    shared[name] = SharedInput(place, dtype, tuple(shape))
            except (InvalidTensor, InvalidInput, Misfit) as error:
                raise InvalidInput(f"input '{name}': {error}") from error
        if self._binary:
            raise InvalidInput(f"{len(self._binary)} bytes after the document belong to no input")
        targets = {}
        self._all_binary = _flag(parameters, "binary_data_output", default=False)
        self._forms: dict[str, bool] = {}
        for name, output in _named("outputs", document).items():
            wanted = parameters_of(output)
            try:
                refuse_classification(wanted)
                if (place := place_of(wanted)) is not None:
                    targets[name] = place
                self._forms[name] = _flag(wanted, "binary_data", default=self._all_binary)
            except InvalidInput as error:
                raise InvalidInput(f"output '{name}': {error}") from error
        number, alias = choice(version)
        request = Request(
            model=model,
            inputs=inputs,
            version=number,
            alias=alias,
            signature=signature_of(parameters),
            outputs=tuple(self._forms),
            deadline=deadline_of(parameters),
        )
        self.call = Call(request, _text(document, "id", ""), shared, targets)

    def render(self, answer: Answer) -> tuple[bytes, int | None]:
        """The answer's body, and how much of it is the document where that is not all.

        Raises Unsupported for types that the protocol has no name for.
        """
        outputs = []
        pieces: list[memoryview] = []
        for name, output in answer.outputs.items():
            array = as_array(output)
            datatype = datatype_of(dtype_name(array.dtype))
            tensor: dict[str, Any] = {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
            }
            if place := self.call.shared_outputs.get(name):
                tensor["parameters"] = {
                    "shared_memory_region": place.region,
                    "shared_memory_offset": place.offset,
                    "shared_memory_byte_size": array.nbytes,
                }
            elif self._forms.get(name, self._all_binary):
                tensor["parameters"] = {"binary_data_size": array.nbytes}
                pieces.append(wire_bytes(array))
            else:
                # JSON has no narrower floats, and ml_dtypes no way to be written.
                wide = array.astype(np.float32) if datatype in ("FP16", "BF16") else array
                tensor["data"] = wide.ravel().tolist()
            outputs.append(tensor)
        document: dict[str, Any] = {
            "model_name": answer.model,
            "model_version": str(answer.version),
            "outputs": outputs,
        }
        if self.call.id:
            document["id"] = self.call.id
        head = json.dumps(document, separators=(",", ":")).encode()
        if not pieces:
            return head, None
        return b"".join([head, *pieces]), len(head)

    def _array(self, tensor: Mapping[str, Any], dtype: str, shape: list[int]) -> NDArray[Any]:
        size = parameters_of(tensor).get("binary_data_size")
        if size is not None:
            if "data" in tensor:
                raise InvalidInput("it has 'data' and the parameter 'binary_data_size'")
            if not _is_count(size) or size > len(self._binary):
                raise InvalidInput(
                    f"parameter 'binary_data_size' is {size!r}, {len(self._binary)} bytes are left"
                )
            data, self._binary = self._binary[:size], self._binary[size:]
            return from_bytes(dtype, shape, data)
        if "data" not in tensor:
            raise InvalidInput("it has neither 'data' nor the parameter 'binary_data_size'")
        byte_size(dtype, shape)
        array = array_of(tensor["data"], dtype)
        if array.size != math.prod(shape):
            raise InvalidInput(f"'data' has {array.size} elements, the shape is {shape}")
        return array.reshape(shape)


def read(body: bytes) -> dict[str, Any]:
    """A JSON object; raises InvalidInput."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput("the body is not a JSON object")
    return document


def document_of(message: Message) -> dict[str, Any]:
    """A message as the protocol writes it in JSON: numbers as numbers, and with all fields."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and not field.is_repeated:
            if message.HasField(field.name):
                document[field.name] = document_of(value)
        elif field.message_type is not None:
            document[field.name] = [document_of(each) for each in value]
        elif field.enum_type is not None:
            document[field.name] = field.enum_type.values_by_number[value].name
        else:
            document[field.name] = list(value) if field.is_repeated else value
    return document


def _length(body: bytes, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdecimal()) or len(header_length) > 18:
        raise InvalidInput(f"{HEADER_LENGTH} is '{header_length}'; give a number of bytes")
    if int(header_length) > len(body):
        raise InvalidInput(f"{HEADER_LENGTH} is {header_length}, the body has {len(body)} bytes")
    return int(header_length)


def _named(field: str, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arrays in a list, by name."""
    entries = document.get(field, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput(f"'{field}' is not a list of objects")
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name = _text(entry, "name")
        if name in found:
            raise InvalidInput(f"'{field}' has '{name}' twice")
        found[name] = entry
    return found


def parameters_of(document: Mapping[str, Any]) -> Parameters:
    """The parameters of a document, or of an array in it; raises InvalidInput."""
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidInput("'parameters' is not an object")
    return parameters


def _text(document: Mapping[str, Any], field: str, default: str | None = None) -> str:
    text = document.get(field, default)
    if not isinstance(text, str):
        raise InvalidInput(f"'{field}' is not a string")
    return text


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise InvalidInput("'shape' is not a list of sizes")
    return shape


def _flag(parameters: Parameters, name: str, *, default: bool) -> bool:
    flag = parameters.get(name, default)
    if not isinstance(flag, bool):
        raise InvalidInput(f"parameter '{name}' is {flag!r}; give true or false")
    return flag


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
