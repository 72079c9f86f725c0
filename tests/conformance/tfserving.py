"""What a server of TensorFlow Serving's protocol must do, by tensorflow-serving-api's own stubs.

The model may be any that takes and gives numbers: its inputs are made from its metadata, ones for
floats and zeros for the rest.
"""

import math
from typing import Any, Self

import grpc
import numpy as np
from google.protobuf import json_format
from google.protobuf.wrappers_pb2 import Int64Value
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
)

from tests.conformance.report import NotApplicable
from tests.conformance.tensorflow_client import (
    SECONDS,
    TYPES,
    Arrays,
    Client,
    array_of,
    described,
    shape_of,
    sizes_of,
    with_content,
    with_values,
)


class TensorFlowServing:
    """The checks, and the client that they use."""

    def __init__(self, address: str, http: str | None, model: str):
        self._client = Client(address, http, model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.channel.close()

    def signatures(self) -> str:
        """GetModelMetadata tells the default signature"""
        metadata = self._client.metadata()
        assert metadata.model_spec.name == self._client.model
        assert metadata.model_spec.version.value > 0
        signature = self._client.signature()
        assert signature.method_name == "tensorflow/serving/predict"
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            assert info.name
            assert info.dtype in TYPES, f"{info.dtype} is not checked here"
            assert not info.tensor_shape.unknown_rank
        return ", ".join(f"{n}: {described(info)}" for n, info in signature.inputs.items())

    def metadata_fields(self) -> None:
        """GetModelMetadata refuses other fields, and none"""
        for fields in ([], ["graph"]):
            self._refused(
                lambda fields=fields: self._client.metadata(fields),
                {grpc.StatusCode.INVALID_ARGUMENT},
            )

    def state(self) -> str:
        """GetModelStatus says that the version is AVAILABLE"""
        version = self._client.version()
        states = {each.version: each for each in self._client.status().model_version_status}
        State = get_model_status_pb2.ModelVersionStatus.State
        assert states[version].state == State.AVAILABLE, State.Name(states[version].state)
        assert states[version].status.error_code == 0
        (one,) = self._client.status(version=Int64Value(value=version)).model_version_status
        assert one == states[version]
        return f"version {version}"

    def no_state(self) -> None:
        """GetModelStatus knows no other models and versions"""
        not_found = {grpc.StatusCode.NOT_FOUND}
        self._refused(lambda: self._client.status(version=Int64Value(value=987654)), not_found)
        self._refused(lambda: self._client.status(name="no-such-model"), not_found)

    def predict(self) -> str:
        """Predict gives all outputs, with the types and shapes of the metadata"""
        response = self._client.predict(self._client.inputs(2))
        signature = self._client.signature()
        assert response.model_spec.name == self._client.model
        assert response.model_spec.version.value == self._client.version()
        assert response.outputs.keys() == signature.outputs.keys()
        for name, info in signature.outputs.items():
            output = response.outputs[name]
            assert output.dtype == info.dtype
            given, sizes = sizes_of(output.tensor_shape), sizes_of(info.tensor_shape)
            assert len(given) == len(sizes)
            assert all(size in (-1, there) for size, there in zip(sizes, given, strict=True))
            array_of(output)
        return ", ".join(f"{n}: {sizes_of(o.tensor_shape)}" for n, o in response.outputs.items())

    def typed_fields(self) -> None:
        """Predict answers in float_val and the like, where clients read"""
        for name, output in self._client.predict(self._client.inputs(2)).outputs.items():
            assert not output.tensor_content, f"'{name}' is in tensor_content"
            assert len(getattr(output, TYPES[output.dtype][1])) == math.prod(
                sizes_of(output.tensor_shape)
            )

    def batches(self) -> str:
        """Predict takes 1, 2, 16 and 100 rows"""
        if not self._has_rows():
            raise NotApplicable("not every array has rows in its first dimension")
        for rows in (1, 2, 16, 100):
            for name, array in self._client.arrays(self._client.inputs(rows)).items():
                assert len(array) == rows, f"{rows} rows gave '{name}' {list(array.shape)}"
        return "1, 2, 16, 100"

    def typed_values(self) -> None:
        """Predict takes values in float_val and the like"""
        inputs = self._client.inputs(2)
        self._same(self._client.predict(inputs), self._client.predict(inputs, with_values))

    def one_value(self) -> None:
        """Predict repeats a single value for all elements"""

        def one(array: NDArray[Any]) -> Any:
            tensor = with_values(array.ravel()[:1])
            tensor.tensor_shape.CopyFrom(shape_of(array.shape))
            return tensor

        inputs = self._client.inputs(2)
        self._same(self._client.predict(inputs), self._client.predict(inputs, one))

    def output_filter(self) -> str:
        """Predict gives the outputs that are asked for, and no others"""
        name = sorted(self._client.signature().outputs)[0]
        response = self._client.predict(self._client.inputs(1), output_filter=[name])
        assert list(response.outputs) == [name]
        return str(name)

    def named(self) -> None:
        """Predict finds a version by number and a signature by name"""
        spec = {
            "version": Int64Value(value=self._client.version()),
            "signature_name": "serving_default",
        }
        self._same(
            self._client.predict(self._client.inputs(2)),
            self._client.predict(self._client.inputs(2), **spec),
        )

    def side_by_side(self) -> None:
        """Predict answers 64 calls at once, each with the same"""
        request = self._client.request(self._client.inputs(2))
        calls = [self._client.prediction.Predict.future(request, SECONDS) for _ in range(64)]
        first, *others = [call.result() for call in calls]
        for other in others:
            self._same(first, other)

    def unknown_names(self) -> None:
        """Predict refuses models, versions, labels, signatures and outputs that are not there"""
        not_found = {grpc.StatusCode.NOT_FOUND}
        # Real servers disagree on labels and signatures.
        wrong = not_found | {
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
        }
        inputs = self._client.inputs(1)
        self._refused(lambda: self._client.predict(inputs, name="no-such-model"), not_found)
        self._refused(
            lambda: self._client.predict(inputs, version=Int64Value(value=987654)), not_found
        )
        self._refused(lambda: self._client.predict(inputs, version_label="no-such-label"), wrong)
        self._refused(
            lambda: self._client.predict(inputs, signature_name="no-such-signature"), wrong
        )
        self._refused(lambda: self._client.predict(inputs, output_filter=["no-such-output"]), wrong)

    def wrong_inputs(self) -> str:
        """Predict refuses inputs that do not fit"""
        invalid = {grpc.StatusCode.INVALID_ARGUMENT}
        inputs = self._client.inputs(1)
        name = sorted(inputs)[0]
        array = inputs[name]
        other = np.float64 if array.dtype != np.float64 else np.float32
        self._refused(lambda: self._client.predict({}), invalid)
        self._refused(lambda: self._client.predict(inputs | {"no-such-input": array}), invalid)
        self._refused(lambda: self._client.predict(inputs | {name: array.astype(other)}), invalid)
        short = with_content(array)
        short.tensor_content += b"\0"
        self._refused(lambda: self._client.predict(inputs, lambda _: short), invalid)
        return self._refused(
            lambda: self._client.predict(inputs | {name: array[None, ..., None]}), invalid
        )

    def strings(self) -> str:
        """Predict refuses text for numbers"""
        text = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, tensor_shape=shape_of((1,)), string_val=[b"text"]
        )
        return self._refused(
            lambda: self._client.predict(self._client.inputs(1), lambda _: text),
            {grpc.StatusCode.INVALID_ARGUMENT},
        )

    def classify(self) -> str:
        """Classify of a signature for predictions is refused"""
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = self._client.model
        return self._refused(
            lambda: self._client.prediction.Classify(request, SECONDS),
            {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED},
        )

    def rest_state(self) -> None:
        """REST: the states are those of gRPC"""
        document = self._client.get("")
        assert document == json_format.MessageToDict(
            self._client.status(),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        assert self._client.get(f"/versions/{self._client.version()}")["model_version_status"]

    def rest_signatures(self) -> None:
        """REST: the metadata is that of gRPC"""
        document = self._client.get("/metadata")
        signatures = json_format.ParseDict(
            document["metadata"]["signature_def"], get_model_metadata_pb2.SignatureDefMap()
        )
        assert signatures == self._client.signatures()
        assert document["model_spec"]["name"] == self._client.model
        assert document["model_spec"]["version"] == str(self._client.version())

    def rest_columns(self) -> None:
        """REST: a call in columns is answered as over gRPC"""
        inputs = self._client.inputs(2)
        columns = {name: array.tolist() for name, array in inputs.items()}
        answer = self._client.post({"inputs": columns})["outputs"]
        self._same_numbers(answer, self._client.arrays(inputs))
        if len(columns) == 1:
            (value,) = columns.values()
            assert self._client.post({"inputs": value})["outputs"] == answer

    def rest_rows(self) -> None:
        """REST: a call in rows is answered as over gRPC"""
        if not self._has_rows():
            raise NotApplicable("not every array has rows in its first dimension")
        inputs = self._client.inputs(3)
        rows = [{name: array[i].tolist() for name, array in inputs.items()} for i in range(3)]
        answer = self._client.post({"instances": rows})["predictions"]
        expected = self._client.arrays(inputs)
        for index, row in enumerate(answer):
            self._same_numbers(row, {name: array[index] for name, array in expected.items()})
        if len(inputs) == 1:
            (name,) = inputs
            assert (
                self._client.post({"instances": [row[name] for row in rows]})["predictions"]
                == answer
            )

    def rest_named(self) -> None:
        """REST: a version is found by number and a signature by name"""
        columns = {name: array.tolist() for name, array in self._client.inputs(1).items()}
        document = {"signature_name": "serving_default", "inputs": columns}
        assert self._client.post(document, f"/versions/{self._client.version()}")["outputs"]

    def rest_refusals(self) -> None:
        """REST: refusals have their status, and an error"""
        columns = {"inputs": {name: each.tolist() for name, each in self._client.inputs(1).items()}}
        text = {"inputs": dict.fromkeys(self._client.inputs(1), "text")}
        for path, body, statuses in (
            ("/v1/models/no-such-model:predict", columns, {404}),
            (f"/v1/models/{self._client.model}/versions/987654:predict", columns, {404}),
            (f"/v1/models/{self._client.model}:predict", b"{", {400}),
            (f"/v1/models/{self._client.model}:predict", {}, {400}),
            (f"/v1/models/{self._client.model}:predict", {"instances": []}, {400}),
            (f"/v1/models/{self._client.model}:predict", columns | {"instances": [1]}, {400}),
            (f"/v1/models/{self._client.model}:predict", text, {400}),
            (
                f"/v1/models/{self._client.model}:predict",
                columns | {"signature_name": "no-such-signature"},
                {400, 404},
            ),
            (f"/v1/models/{self._client.model}:no-such-method", columns, {400, 404}),
            ("/v1/models/no-such-model", None, {404}),
        ):
            status, document = self._client.call(path, body)
            assert status in statuses, f"{path} gave {status}: {document}"
            assert isinstance(document["error"], str), document

    def _has_rows(self) -> bool:
        signature = self._client.signature()
        return all(
            sizes_of(info.tensor_shape)[:1] == [-1]
            for info in (*signature.inputs.values(), *signature.outputs.values())
        )

    def _same(self, one: Any, other: Any) -> None:
        assert one.outputs.keys() == other.outputs.keys()
        for name in one.outputs:
            expected, found = array_of(one.outputs[name]), array_of(other.outputs[name])
            # Calls that are joined may be rounded otherwise.
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)

    def _same_numbers(self, document: Any, expected: Arrays) -> None:
        values = document if len(expected) > 1 else dict.fromkeys(expected, document)
        assert values.keys() == expected.keys()
        for name, value in values.items():
            np.testing.assert_allclose(np.array(value), expected[name], rtol=1e-4, atol=1e-5)

    def _refused(self, call: Any, codes: set[grpc.StatusCode]) -> str:
        error = _error(call)
        assert error.code() in codes, f"{error.code()}: {error.details()}"
        assert error.details(), "no message"
        return str(error.details())


def _error(call: Any) -> Any:
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("it was not refused")
