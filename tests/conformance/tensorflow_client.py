"""A client of TensorFlow Serving's protocol, by tensorflow-serving-api's own stubs."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.conformance.report import NotApplicable

TYPES: dict[int, tuple[str, str]] = {
    types_pb2.DT_BOOL: ("bool", "bool_val"),
    types_pb2.DT_INT8: ("int8", "int_val"),
    types_pb2.DT_INT16: ("int16", "int_val"),
    types_pb2.DT_INT32: ("int32", "int_val"),
    types_pb2.DT_INT64: ("int64", "int64_val"),
    types_pb2.DT_UINT8: ("uint8", "int_val"),
    types_pb2.DT_UINT16: ("uint16", "int_val"),
    types_pb2.DT_UINT32: ("uint32", "uint32_val"),
    types_pb2.DT_UINT64: ("uint64", "uint64_val"),
    types_pb2.DT_HALF: ("float16", "half_val"),
    types_pb2.DT_FLOAT: ("float32", "float_val"),
    types_pb2.DT_DOUBLE: ("float64", "double_val"),
}
_OTHER_SIZES = 4  # of open dimensions after the first
SECONDS = 60.0

Arrays = dict[str, NDArray[Any]]


class Client:
    """Calls one model of a server."""

    def __init__(self, address: str, http: str | None, model: str):
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", -1)]
        )
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.http = http
        self.model = model

    def metadata(self, fields: Iterable[str] = ("signature_def",)) -> Any:
        """The answer of GetModelMetadata."""
        return self.prediction.GetModelMetadata(
            get_model_metadata_pb2.GetModelMetadataRequest(
                model_spec=model_pb2.ModelSpec(name=self.model), metadata_field=fields
            ),
            SECONDS,
        )

    def signatures(self) -> Any:
        """All signatures, a SignatureDefMap."""
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert self.metadata().metadata["signature_def"].Unpack(signatures)
        return signatures

    def signature(self) -> Any:
        """The default signature."""
        return self.signatures().signature_def["serving_default"]

    def version(self) -> int:
        """The version that answers."""
        return int(self.metadata().model_spec.version.value)

    def status(self, **spec: Any) -> Any:
        """The answer of GetModelStatus."""
        request = get_model_status_pb2.GetModelStatusRequest(
            model_spec=model_pb2.ModelSpec(**{"name": self.model, **spec})
        )
        return self.models.GetModelStatus(request, SECONDS)

    def inputs(self, rows: int) -> Arrays:
        """Inputs that fit the default signature, of so many rows where their number is open."""
        arrays = {}
        for name, info in self.signature().inputs.items():
            dtype = np.dtype(TYPES[info.dtype][0])
            shape = [
                size if size >= 0 else rows if axis == 0 else _OTHER_SIZES
                for axis, size in enumerate(sizes_of(info.tensor_shape))
            ]
            arrays[name] = np.full(shape, 1 if dtype.kind == "f" else 0, dtype)
        return arrays

    def request(
        self,
        inputs: Mapping[str, NDArray[Any]],
        tensor: Any = None,
        output_filter: Iterable[str] = (),
        **spec: Any,
    ) -> Any:
        """A PredictRequest; `tensor` makes the inputs' messages, `spec` says more of the model."""
        tensor = tensor or with_content
        return predict_pb2.PredictRequest(
            model_spec=model_pb2.ModelSpec(**{"name": self.model, **spec}),
            inputs={name: tensor(array) for name, array in inputs.items()},
            output_filter=output_filter,
        )

    def predict(self, *arguments: Any, **keywords: Any) -> Any:
        """The answer to what `request` makes."""
        return self.prediction.Predict(self.request(*arguments, **keywords), SECONDS)

    def arrays(self, inputs: Arrays) -> Arrays:
        """The outputs as arrays."""
        return {name: array_of(each) for name, each in self.predict(inputs).outputs.items()}

    def get(self, path: str) -> Any:
        """What a GET gives, below the path of the model."""
        status, document = self.call(f"/v1/models/{self.model}{path}", None)
        assert status == 200, document
        return document

    def post(self, body: Any, path: str = "") -> Any:
        """What :predict gives; `path` names a version."""
        status, document = self.call(f"/v1/models/{self.model}{path}:predict", body)
        assert status == 200, document
        return document

    def call(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and document of any HTTP call; a GET where there is no body."""
        if self.http is None:
            raise NotApplicable("no --http")
        data = None if body is None else body if isinstance(body, bytes) else _encoded(body)
        request = urllib.request.Request(f"http://{self.http}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def _encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def shape_of(sizes: Iterable[int]) -> Any:
    """The message of a shape."""
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in sizes]
    return tensor_shape_pb2.TensorShapeProto(dim=dims)


def sizes_of(shape: Any) -> list[int]:
    """The sizes of a shape."""
    return [dim.size for dim in shape.dim]


def described(info: Any) -> str:
    """A TensorInfo's type and shape."""
    return f"{TYPES[info.dtype][0]}{sizes_of(info.tensor_shape)}"


def data_type(array: NDArray[Any]) -> int:
    """TensorFlow's number of an array's type."""
    return next(number for number, (name, _) in TYPES.items() if name == array.dtype.name)


def with_content(array: NDArray[Any]) -> Any:
    """A TensorProto whose elements are bytes."""
    return tensor_pb2.TensorProto(
        dtype=data_type(array), tensor_shape=shape_of(array.shape), tensor_content=array.tobytes()
    )


def with_values(array: NDArray[Any]) -> Any:
    """A TensorProto whose elements are in the field of their type."""
    tensor = tensor_pb2.TensorProto(dtype=data_type(array), tensor_shape=shape_of(array.shape))
    values = array.view(np.uint16) if array.dtype == np.float16 else array
    getattr(tensor, TYPES[tensor.dtype][1]).extend(values.ravel().tolist())
    return tensor


def array_of(tensor: Any) -> NDArray[Any]:
    """The array of an answer in either form."""
    name, field = TYPES[tensor.dtype]
    shape = sizes_of(tensor.tensor_shape)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, name).reshape(shape)
    values = np.array(getattr(tensor, field))
    if name == "float16":
        return values.astype(np.uint16).view(name).reshape(shape)
    return values.astype(name).reshape(shape)
