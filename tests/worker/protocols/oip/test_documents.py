"""The JSON documents of the REST API, and the bytes that may follow them."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servax_proto.oip import inference_pb2, model_config_pb2
from servax_worker.errors import InvalidInput, Unsupported
from servax_worker.predictor import Answer
from servax_worker.protocols.oip.datatypes import DATATYPES
from servax_worker.protocols.oip.documents import InferenceDocument, document_of
from servax_worker.protocols.oip.inference import SharedInput
from servax_worker.protocols.oip.shared_memory import Place

X = {"name": "x", "datatype": "INT16", "shape": [2], "data": [1, 2]}
BINARY = {"name": "x", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}


def parsed(document, binary=b"", *, length=None, version=""):
    """A document, parsed."""
    head = json.dumps(document).encode()
    told = length if length is not None else str(len(head)) if binary else None
    return InferenceDocument(head + binary, told, "model", version)


def test_a_request_of_json():
    """A document's names, values, parameters and outputs become a request."""
    document = parsed(
        {
            "id": "seven",
            "parameters": {"signature": "other", "unknown": None},
            "inputs": [X, {**X, "name": "n", "shape": [], "data": [5], "datatype": "UINT64"}],
            "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": True}}],
        },
        version="3",
    )

    request = document.call.request
    assert document.call.id == "seven"
    assert (request.model, request.version, request.alias) == ("model", 3, None)
    assert (request.signature, request.outputs) == ("other", ("y", "z"))
    assert request.deadline is None
    np.testing.assert_array_equal(request.inputs["x"], np.array([1, 2], np.int16))
    assert request.inputs["x"].dtype == np.int16
    assert request.inputs["n"].shape == ()


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_elements_are_flat_or_nested(data):
    """The elements come as one list, or as lists in lists."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": data}

    (x,) = parsed({"inputs": [tensor]}).call.request.inputs.values()

    np.testing.assert_array_equal(x, np.array([[1, 2], [3, 4]], np.float32))


def test_bytes_belong_to_arrays_in_turn():
    """Each array with a size takes as many of the bytes as it says."""
    second = {**BINARY, "name": "y", "datatype": "BOOL", "shape": [3]}
    second["parameters"] = {"binary_data_size": 3}
    document = parsed({"inputs": [BINARY, {**X, "name": "j"}, second]}, b"\1\0\2\0\1\0\1")

    inputs = document.call.request.inputs
    assert inputs["x"].tolist() == [1, 2]
    assert inputs["j"].tolist() == [1, 2]
    assert inputs["y"].tolist() == [True, False, True]


def test_places_in_shared_memory():
    """Inputs and outputs may lie in shared memory."""
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    document = parsed(
        {
            "inputs": [{**X, "parameters": parameters}],
            "outputs": [{"name": "y", "parameters": {**parameters, "shared_memory_offset": 8}}],
        }
    )

    assert document.call.shared_inputs == {"x": SharedInput(Place("r", 0, 4), "int16", (2,))}
    assert document.call.shared_outputs == {"y": Place("r", 8, 4)}
    assert not document.call.request.inputs


def tensor(**changes):
    """A request whose only input is changed."""
    return {"inputs": [{**X, **changes}]}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "not a JSON object"),
        ({"inputs": {}}, "'inputs' is not a list of objects"),
        ({"inputs": [1]}, "'inputs' is not a list of objects"),
        ({"inputs": [X, X]}, "'inputs' has 'x' twice"),
        ({"inputs": [{}]}, "'name' is not a string"),
        ({"id": 7}, "'id' is not a string"),
        ({"parameters": []}, "'parameters' is not an object"),
        ({"parameters": {"timeout": 0.5}}, "'timeout' is 0.5"),
        ({"parameters": {"binary_data_output": 1}}, "give true or false"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": "1"}}]}, "output 'y'"),
        (tensor(datatype="BYTES", data=["a", "b"]), "input 'x': BYTES: programs of JAX"),
        (tensor(datatype="FP8"), "'FP8' is none of"),
        (tensor(datatype=None), "'datatype' is not a string"),
        (tensor(shape=[2.0]), "'shape' is not a list of sizes"),
        (tensor(shape=[-2]), "'shape' is not a list of sizes"),
        (tensor(shape=[True, 2]), "'shape' is not a list of sizes"),
        (tensor(shape=[3]), "'data' has 2 elements, the shape is [3]"),
        (tensor(shape=[0, 2**70], data=[]), "larger than any memory"),
        (tensor(shape=[1] * 65), "at most 64"),
        (tensor(data=[1, 2**15]), "outside of -32768 to 32767"),
        (tensor(data=[1, 2.0]), "2.0 does not belong there"),
        (tensor(data=[1, "2"]), "is text"),
        (tensor(data=[1, [2]]), "mixed"),
        (tensor(parameters={"binary_data_size": 4}), "has 'data' and the parameter"),
        ({"inputs": [BINARY]}, "'binary_data_size' is 4, 0 bytes are left"),
        ({"inputs": [{**X, "data": None}]}, "input 'x'"),
        ({"inputs": [{"name": "x", "datatype": "INT16", "shape": [2]}]}, "neither 'data' nor"),
    ],
)
def test_what_is_no_request_is_refused(document, says):
    """Every fault of a document is told with what it concerns."""
    with pytest.raises(InvalidInput) as caught:
        parsed(document)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("binary", "length", "says"),
    [
        (b"\1\0\2\0!", None, "1 bytes after the document belong to no input"),
        (b"\1\0\2", None, "3 bytes are left"),
        (b"\1\0\2\0", "1000", "the body has"),
        (b"\1\0\2\0", "-1", "give a number of bytes"),
        (b"\1\0\2\0", "²", "give a number of bytes"),
        (b"\1\0\2\0", "9" * 5000, "give a number of bytes"),
        (b"\1\0\2\0", "3", "not JSON"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(binary, length, says):
    """The header and the sizes must account for every byte."""
    with pytest.raises(InvalidInput, match=says):
        parsed({"inputs": [BINARY]}, binary, length=length)


def test_classes_are_refused():
    """An output that is to be given as classes is not given as numbers instead."""
    with pytest.raises(Unsupported, match="classification"):
        parsed({"outputs": [{"name": "y", "parameters": {"classification": 3}}]})


def rendered(document, **outputs):
    """An answer: its document, and the bytes after it."""
    body, length = document.render(Answer("model", 2, "serving_default", outputs))
    return json.loads(body[:length]), b"" if length is None else body[length:]


@pytest.mark.parametrize("dtype", DATATYPES)
def test_answers_have_elements_or_bytes(dtype):
    """An answer has elements unless bytes are asked for, which give the same array."""
    y = np.array([[0, 1], [1, 0]]).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))

    plain, nothing = rendered(parsed({"id": "a"}), y=y)
    head, binary = rendered(parsed({"parameters": {"binary_data_output": True}}), y=y)

    assert nothing == b""
    assert (plain["model_name"], plain["model_version"], plain["id"]) == ("model", "2", "a")
    assert "id" not in head
    (output,) = plain["outputs"]
    assert (output["name"], output["datatype"]) == ("y", DATATYPES[dtype])
    assert output["shape"] == [2, 2]
    np.testing.assert_array_equal(np.array(output["data"]).reshape(2, 2).astype(y.dtype), y)
    assert head["outputs"][0]["parameters"] == {"binary_data_size": y.nbytes}
    assert "data" not in head["outputs"][0]
    np.testing.assert_array_equal(np.frombuffer(binary, y.dtype).reshape(2, 2), y)


def test_each_output_has_its_form():
    """An output's own parameter goes before the request's."""
    document = parsed(
        {
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
        }
    )

    head, binary = rendered(document, y=np.int8([1]), z=np.int8([2]))

    assert head["outputs"][0]["data"] == [1]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 1}
    assert binary == b"\2"


def test_types_without_a_name_are_refused():
    """An output of a type that the protocol has no name for is refused."""
    with pytest.raises(Unsupported, match="int4"):
        rendered(parsed({}), y=np.zeros(1, ml_dtypes.int4))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["x", "y", "FP32", "BOOL", "INT8", "BYTES", "r"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("name", "datatype", "shape", "data", "parameters", "inputs", "outputs", "id"),
                    *("binary_data", "binary_data_size", "binary_data_output", "classification"),
                    *("shared_memory_region", "shared_memory_offset", "timeout", "signature"),
                ]
            ),
            children,
            max_size=5,
        )
    ),
    max_leaves=20,
)
SIZES = st.integers(-1, 8)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from("xy"),
        "datatype": st.sampled_from([*DATATYPES.values(), "BYTES"]),
        "shape": st.lists(SIZES, max_size=3),
    },
    optional={
        "data": VALUES | st.lists(st.integers(-1, 300) | st.floats(), max_size=8),
        "parameters": st.fixed_dictionaries(
            {},
            optional={
                "binary_data_size": SIZES,
                "binary_data": st.booleans(),
                "shared_memory_region": st.text(max_size=2),
                "shared_memory_byte_size": SIZES,
            },
        ),
    },
)
DOCUMENTS = VALUES | st.fixed_dictionaries(
    {}, optional={"inputs": st.lists(TENSORS, max_size=3), "outputs": st.lists(TENSORS, max_size=2)}
)


@given(DOCUMENTS, st.binary(max_size=16), st.none() | SIZES.map(str) | st.text(max_size=3))
def test_any_body_is_a_request_or_refused(document, binary, length):
    """No body, however wrong, gives anything but a request or an error of the caller's."""
    try:
        parsed(document, binary, length=length)
    except (InvalidInput, Unsupported):
        return


@given(st.binary(max_size=64), st.none() | st.text(max_size=4))
def test_any_bytes_are_a_request_or_refused(body, length):
    """Nor do bytes that are not even JSON."""
    try:
        InferenceDocument(body, length, "model", "")
    except (InvalidInput, Unsupported):
        return


@given(st.lists(st.sampled_from(sorted(DATATYPES)), max_size=4), st.data())
def test_bytes_survive(dtypes, data):
    """What is sent as bytes is what the request has, whatever was sent before it."""
    tensors, binary, expected = [], b"", {}
    for index, dtype in enumerate(dtypes):
        numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
        count = data.draw(st.integers(0, 3))
        elements = data.draw(
            st.binary(min_size=count * numpy.itemsize, max_size=count * numpy.itemsize)
        )
        if dtype == "bool":
            elements = bytes(byte & 1 for byte in elements)
        tensors.append(
            {
                "name": f"x{index}",
                "datatype": DATATYPES[dtype],
                "shape": [count, 1],
                "parameters": {"binary_data_size": len(elements)},
            }
        )
        binary += elements
        expected[f"x{index}"] = elements
    head = json.dumps({"inputs": tensors}).encode()

    inputs = InferenceDocument(head + binary, str(len(head)), "model", "").call.request.inputs

    assert {name: array.tobytes() for name, array in inputs.items()} == expected


def test_messages_as_documents():
    """Numbers are numbers, names of values are names, and what is not set is there."""
    config = model_config_pb2.ModelConfig(
        name="m", input=[model_config_pb2.ModelInput(name="x", data_type="TYPE_FP32", dims=[-1])]
    )
    statistics = inference_pb2.ModelStatisticsResponse(
        model_stats=[inference_pb2.ModelStatistics(inference_count=2**60)]
    )

    assert document_of(config) == {
        "name": "m",
        "platform": "",
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [],
        "backend": "",
    }
    assert document_of(statistics)["model_stats"][0]["inference_count"] == 2**60
