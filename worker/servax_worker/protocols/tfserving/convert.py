"""TensorFlow Serving's messages to and from the worker's values."""

import time
from collections.abc import Iterable

from google.protobuf.wrappers_pb2 import Int64Value

from servax.errors import InvalidTensor
from servax.types import DEFAULT_SIGNATURE, ServedState, ServedVersion, Signature, TensorSpec
from servax_proto.tfserving import serving_pb2, tensor_pb2
from servax_worker.convert import MAX_NAMES
from servax_worker.errors import InvalidInput, NotServed, TooLarge
from servax_worker.predictor import Answer, Request
from servax_worker.protocols.tfserving import tensors

SIGNATURE_DEF = "signature_def"
"""The one kind of metadata that there is."""

_PREDICT = "tensorflow/serving/predict"
_MOST_PROBLEMS = 20  # in one message

_State = serving_pb2.ModelVersionStatus.State
_STATES: dict[ServedState, _State] = {
    ServedState.RESOLVING: _State.START,
    ServedState.DOWNLOADING: _State.LOADING,
    ServedState.COMPILING: _State.LOADING,
    ServedState.VERIFYING: _State.LOADING,
    ServedState.READY: _State.AVAILABLE,
    ServedState.DRAINING: _State.UNLOADING,
    ServedState.FAILED: _State.END,
}

# Where two references meet in one version, what tells most of whether it can be called.
_TELLING = [_State.AVAILABLE, _State.LOADING, _State.START, _State.UNLOADING, _State.END]


def model_name(spec: serving_pb2.ModelSpec) -> str:
    """The model that a request means; raises InvalidInput where it names none."""
    if not spec.name:
        raise InvalidInput("model_spec names no model")
    return spec.name


def choice(spec: serving_pb2.ModelSpec) -> tuple[int | None, str | None]:
    """The version's number, or the alias; a label of digits is a number, as no alias can be."""
    if spec.WhichOneof("version_choice") == "version":
        return spec.version.value, None
    label = spec.version_label
    if label.isascii() and label.isdecimal():
        return int(label), None
    return None, label or None


def request_from_proto(
    message: serving_pb2.PredictRequest, seconds_left: float | None, max_bytes: int
) -> Request:
    """The request; raises InvalidInput that names the inputs that are no arrays, and TooLarge."""
    spec = message.model_spec
    for kind, names in (("inputs", message.inputs), ("outputs", message.output_filter)):
        if len(names) > MAX_NAMES:
            raise InvalidInput(f"{len(names)} {kind}; a request has at most {MAX_NAMES}")
    inputs = {}
    problems = []
    left = max_bytes
    for name, tensor in message.inputs.items():
        try:
            inputs[name] = tensors.from_proto(tensor, left)
            left -= inputs[name].nbytes
        except InvalidTensor as error:
            problems.append(f"input '{name}': {error}")
            if len(problems) == _MOST_PROBLEMS:
                break
        except TooLarge as error:
            raise TooLarge(f"input '{name}': {error}") from error
    if problems:
        raise InvalidInput("; ".join(problems))
    version, alias = choice(spec)
    return Request(
        model=model_name(spec),
        inputs=inputs,
        version=version,
        alias=alias,
        signature=spec.signature_name or DEFAULT_SIGNATURE,
        outputs=tuple(message.output_filter),
        deadline=None if seconds_left is None else time.monotonic() + seconds_left,
        max_answer_bytes=max_bytes,
    )


def answer_to_proto(answer: Answer, *, content: bool) -> serving_pb2.PredictResponse:
    """The answer, its elements in `tensor_content` or in the fields of their types."""
    return serving_pb2.PredictResponse(
        outputs={
            name: tensors.to_proto(array, content=content) for name, array in answer.outputs.items()
        },
        model_spec=serving_pb2.ModelSpec(
            name=answer.model,
            version=Int64Value(value=answer.version),
            signature_name=answer.signature,
        ),
    )


def metadata_to_proto(served: ServedVersion) -> serving_pb2.GetModelMetadataResponse:
    """A version's signatures."""
    signatures = {signature.name: _signature_def(signature) for signature in served.signatures}
    response = serving_pb2.GetModelMetadataResponse(
        model_spec=serving_pb2.ModelSpec(
            name=served.model, version=Int64Value(value=served.version)
        )
    )
    response.metadata[SIGNATURE_DEF].Pack(serving_pb2.SignatureDefMap(signature_def=signatures))
    return response


def status_to_proto(
    served: Iterable[ServedVersion], spec: serving_pb2.ModelSpec
) -> serving_pb2.GetModelStatusResponse:
    """The states of those versions that a request means; raises NotServed where it means none."""
    version, alias = choice(spec)
    found: dict[int, serving_pb2.ModelVersionStatus] = {}
    for each in served:
        if version not in (None, each.version) or alias not in (None, each.alias):
            continue
        status = _status(each)
        other = found.get(each.version, status)
        found[each.version] = min(status, other, key=lambda one: _TELLING.index(one.state))
    if not found:
        wanted = f"version {version}" if version is not None else f"alias '{alias}'"
        there_are = ", ".join(sorted({f"version {each.version}" for each in served}))
        raise NotServed(f"no {wanted} of '{spec.name}' here; there is {there_are}")
    return serving_pb2.GetModelStatusResponse(
        model_version_status=[found[number] for number in sorted(found, reverse=True)]
    )


def _status(served: ServedVersion) -> serving_pb2.ModelVersionStatus:
    status = serving_pb2.StatusProto()
    if served.state is ServedState.FAILED:
        status.error_code = serving_pb2.StatusProto.FAILED_PRECONDITION
        status.error_message = served.detail
    return serving_pb2.ModelVersionStatus(
        version=served.version, state=_STATES[served.state], status=status
    )


def _signature_def(signature: Signature) -> tensor_pb2.SignatureDef:
    return tensor_pb2.SignatureDef(
        inputs={spec.name: _tensor_info(spec) for spec in signature.inputs},
        outputs={spec.name: _tensor_info(spec) for spec in signature.outputs},
        method_name=_PREDICT,
    )


def _tensor_info(spec: TensorSpec) -> tensor_pb2.TensorInfo:
    dims = [
        tensor_pb2.TensorShapeProto.Dim(size=int(size))
        if size.isdecimal()
        else tensor_pb2.TensorShapeProto.Dim(size=-1, name=size)
        for size in spec.shape
    ]
    return tensor_pb2.TensorInfo(
        name=spec.name,
        dtype=tensors.data_type(spec.dtype),
        tensor_shape=tensor_pb2.TensorShapeProto(dim=dims),
    )
