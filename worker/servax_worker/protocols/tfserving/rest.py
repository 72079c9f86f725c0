"""The REST face of TensorFlow Serving's protocol.

GET   /v1/models/NAME[/versions/V|/labels/L]            the states of versions
GET   /v1/models/NAME[/versions/V|/labels/L]/metadata   signatures
POST  /v1/models/NAME[/versions/V|/labels/L]:predict    a call
"""

import math
import re
from collections.abc import Mapping

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int64Value
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from servax_proto.tfserving import serving_pb2
from servax_worker.errors import InvalidInput, NotServed, Overloaded, TooLarge, Unsupported
from servax_worker.http import read_body
from servax_worker.interceptors import status_of
from servax_worker.predictor import Predictor, Request
from servax_worker.protocols.tfserving import convert, documents
from servax_worker.settings import Settings

_PATH = re.compile(
    r"/v1/models/(?P<model>[^/:]+)"
    r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<what>/metadata|:predict|:classify|:regress)?",
    re.ASCII,
)

# As TensorFlow Serving has it.
_HTTP: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


def routes(predictor: Predictor, settings: Settings) -> list[BaseRoute]:
    """What the worker's HTTP server answers for this protocol."""
    api = _RestApi(predictor, settings)
    return [Route("/v1/{path:path}", api.answer, methods=["GET", "POST"])]


class _RestApi:
    def __init__(self, predictor: Predictor, settings: Settings):
        self._predictor = predictor
        self._settings = settings

    async def answer(self, request: HttpRequest) -> Response:
        """Answers any request below /v1/; errors are {"error": "…"}."""
        try:
            return Response(await self._answer(request), media_type="application/json")
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        except Exception as error:
            code, message = status_of(error, request.url.path)
            status = 413 if isinstance(error, TooLarge) else _HTTP[code]
            headers = {}
            if isinstance(error, Overloaded):
                headers["Retry-After"] = str(math.ceil(error.retry_after))
            return JSONResponse({"error": message}, status, headers)

    async def _answer(self, request: HttpRequest) -> str:
        path = request.scope["path"]
        match = _PATH.fullmatch(path)
        if match is None:
            raise InvalidInput(f"malformed request: {request.method} {path}")
        spec = serving_pb2.ModelSpec(name=match["model"], version_label=match["label"] or "")
        if match["version"]:
            spec.version.CopyFrom(_number(match["version"]))
        match request.method, match["what"] or "":
            case "GET", "":
                served = self._predictor.status(spec.name)
                return _json(convert.status_to_proto(served, spec))
            case "GET", "/metadata":
                return self._metadata(spec)
            case "POST", ":predict":
                return await self._predict(request, spec)
            case "POST", ":classify" | ":regress":
                raise Unsupported(
                    "classify and regress take tf.Example messages, which programs of JAX do not; "
                    "send the inputs as tensors with predict"
                )
            case _:
                raise InvalidInput(f"malformed request: {request.method} {path}")

    def _metadata(self, spec: serving_pb2.ModelSpec) -> str:
        version, alias = convert.choice(spec)
        response = convert.metadata_to_proto(self._predictor.served(spec.name, version, alias))
        # Not the form that protobuf gives a google.protobuf.Any.
        signatures = serving_pb2.SignatureDefMap()
        response.metadata[convert.SIGNATURE_DEF].Unpack(signatures)
        return (
            f'{{"model_spec": {_json(response.model_spec)}, '
            f'"metadata": {{"{convert.SIGNATURE_DEF}": {_json(signatures)}}}}}'
        )

    async def _predict(self, request: HttpRequest, spec: serving_pb2.ModelSpec) -> str:
        limit = self._settings.max_message_bytes
        document = documents.Document.parse(await read_body(request, limit))
        version, alias = convert.choice(spec)
        # Nothing is awaited from here to the call, so that both find the same version.
        served = self._predictor.served(spec.name, version, alias)
        signatures = {signature.name: signature for signature in served.signatures}
        if document.signature not in signatures:
            raise NotServed(
                f"{served.model} version {served.version} has no signature "
                f"'{document.signature}'; it has {', '.join(sorted(signatures))}"
            )
        answer = await self._predictor.predict(
            Request(
                model=spec.name,
                inputs=document.arrays(signatures[document.signature].inputs),
                version=version,
                alias=alias,
                signature=document.signature,
                max_answer_bytes=limit,
            )
        )
        return documents.render(answer.outputs, in_rows=document.in_rows)


def _number(digits: str) -> Int64Value:
    try:
        return Int64Value(value=int(digits))
    except ValueError as error:
        raise InvalidInput(f"version {digits} is no number of a version") from error


def _json(message: Message) -> str:
    return json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
