"""The REST face of the protocol.

GET   /v2                                              what the server is
GET   /v2/health/live, /v2/health/ready
GET   /v2/models/NAME[/versions/V]                     metadata
GET   /v2/models/NAME[/versions/V]/ready, /config, /stats
GET   /v2/models/stats                                 statistics of all
POST  /v2/models/NAME[/versions/V]/infer               a call
POST  /v2/repository/index, /v2/repository/models/NAME/load, /unload
GET   /v2/systemsharedmemory[/region/NAME]/status      and the same for cudasharedmemory
POST  /v2/systemsharedmemory[/region/NAME]/unregister
POST  /v2/systemsharedmemory/region/NAME/register
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from servax_worker.errors import InvalidInput, Overloaded, TooLarge, Unsupported
from servax_worker.http import read_body
from servax_worker.interceptors import status_of
from servax_worker.protocols.oip.description import Description
from servax_worker.protocols.oip.documents import (
    HEADER_LENGTH,
    InferenceDocument,
    document_of,
    parameters_of,
    read,
)
from servax_worker.protocols.oip.inference import Inference
from servax_worker.protocols.oip.repository import Repository
from servax_worker.protocols.oip.shared_memory import NO_CUDA, SharedMemory

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

# As Triton has it, whose full queues are 503.
_HTTP: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class RestApi:
    """Answers over HTTP."""

    def __init__(
        self,
        inference: Inference,
        description: Description,
        memory: SharedMemory,
        repository: Repository,
        max_request_bytes: int,
    ):
        self._inference = inference
        self._description = description
        self._memory = memory
        self._repository = repository
        self._max_request_bytes = max_request_bytes

    def routes(self) -> list[BaseRoute]:
        """What is answered."""
        model = "/v2/models/{model}"
        memory = "/v2/systemsharedmemory"
        cuda = "/v2/cudasharedmemory"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/v2", self._server),
            ("GET", "/v2/health/live", self._live),
            ("GET", "/v2/health/ready", self._ready),
            ("GET", "/v2/models/stats", self._stats),
            *(
                (method, f"{base}{path}", handler)
                for base in (model, f"{model}/versions/{{version}}")
                for method, path, handler in (
                    ("GET", "", self._metadata),
                    ("GET", "/ready", self._model_ready),
                    ("GET", "/config", self._config),
                    ("GET", "/stats", self._stats),
                    ("POST", "/infer", self._infer),
                )
            ),
            ("POST", "/v2/repository/index", self._index),
            ("POST", "/v2/repository/models/{model}/load", self._load),
            ("POST", "/v2/repository/models/{model}/unload", self._unload),
            ("POST", f"{memory}/region/{{region}}/register", self._register),
            ("POST", f"{cuda}/region/{{region}}/register", self._register_cuda),
            *(
                (method, f"{base}{region}/{what}", handler)
                for region in ("", "/region/{region}")
                for method, base, what, handler in (
                    ("GET", memory, "status", self._regions),
                    ("POST", memory, "unregister", self._unregister),
                    ("GET", cuda, "status", self._no_regions),
                    ("POST", cuda, "unregister", self._nothing),
                )
            ),
        ]
        return [Route(path, _guarded(handler), methods=[method]) for method, path, handler in table]

    async def _server(self, _: Request) -> Response:
        return JSONResponse(document_of(self._description.server()))

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, _: Request) -> Response:
        ready = self._description.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(document_of(self._description.metadata(*_model(request))))

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model(request)
        self._description.served(name, version)
        return JSONResponse({"name": name, "ready": True})

    async def _config(self, request: Request) -> Response:
        return JSONResponse(document_of(self._description.config(*_model(request))))

    async def _stats(self, request: Request) -> Response:
        return JSONResponse(document_of(self._description.statistics(*_model(request))))

    async def _infer(self, request: Request) -> Response:
        body = await self._body(request)
        length = request.headers.get(HEADER_LENGTH)
        document = InferenceDocument(body, length, *_model(request))
        del body  # the document refers to what it needs
        answer, length_of_document = document.render(await self._inference.run(document.call))
        if length_of_document is None:
            return Response(answer, media_type="application/json")
        headers = {HEADER_LENGTH: str(length_of_document)}
        return Response(answer, headers=headers, media_type="application/octet-stream")

    async def _index(self, request: Request) -> Response:
        document = await self._document(request)
        ready = document.get("ready", False)
        name = document.get("repository_name", "")
        if not isinstance(ready, bool) or not isinstance(name, str):
            raise InvalidInput("'ready' is true or false, 'repository_name' a string")
        index = document_of(self._description.index(name, ready=ready))
        return JSONResponse(index["models"])

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._max_request_bytes, "--max-request-bytes")

    async def _document(self, request: Request) -> dict[str, Any]:
        body = await self._body(request)
        return read(body) if body else {}

    async def _load(self, request: Request) -> Response:
        parameters = parameters_of(await self._document(request))
        await self._repository.load(request.path_params["model"], parameters)
        return Response()

    async def _unload(self, request: Request) -> Response:
        await self._repository.unload(request.path_params["model"])
        return Response()

    async def _regions(self, request: Request) -> Response:
        return JSONResponse(
            [
                {
                    "name": region.name,
                    "key": region.key,
                    "offset": region.offset,
                    "byte_size": region.size,
                }
                for region in self._memory.regions(_region(request))
            ]
        )

    async def _register(self, request: Request) -> Response:
        document = await self._document(request)
        key, offset = document.get("key"), document.get("offset", 0)
        size = document.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise InvalidInput("give 'key', a string, and the numbers 'offset' and 'byte_size'")
        self._memory.register(_region(request), key, offset, size)
        return Response()

    async def _unregister(self, request: Request) -> Response:
        self._memory.unregister(_region(request))
        return Response()

    async def _register_cuda(self, _: Request) -> Response:
        raise Unsupported(NO_CUDA)

    async def _no_regions(self, _: Request) -> Response:
        return JSONResponse([])

    async def _nothing(self, _: Request) -> Response:
        return Response()


def _guarded(handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        """Errors are {"error": "…"}."""
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        except Exception as error:
            code, message = status_of(error, request.url.path)
            status = 413 if isinstance(error, TooLarge) else _HTTP[code]
            headers = {}
            if isinstance(error, Overloaded):
                headers["Retry-After"] = str(math.ceil(error.retry_after))
            return JSONResponse({"error": message}, status, headers)

    return guarded


def _model(request: Request) -> tuple[str, str]:
    return request.path_params.get("model", ""), request.path_params.get("version", "")


def _region(request: Request) -> str:
    region: str = request.path_params.get("region", "")
    return region
