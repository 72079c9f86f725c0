"""What a server of the Open Inference Protocol must do, by an unmodified tritonclient.

The model may be any that takes and gives numbers: its inputs are made from its metadata, ones for
floats and zeros for the rest. That it computes rightly is not checked, but that all ways to call it
give the same.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, shared_memory, triton_to_np_dtype

from tests.conformance.report import NotApplicable

SERVICE = "inference.GRPCInferenceService"
Arrays = Mapping[str, NDArray[Any]]

_OTHER_SIZES = 4  # of open dimensions after the first
_SECONDS = 60.0
_CALLS = 32


class OpenInference:
    """The checks, and the clients that they use."""

    def __init__(self, address: str, http: str | None, model: str):
        self._address = address
        self._model = model
        self._grpc = over_grpc.InferenceServerClient(address)
        self._http_address = http
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()
        self._grpc.close()

    def liveness(self) -> None:
        """ServerLive and ServerReady say yes"""
        assert self._grpc.is_server_live()
        assert self._grpc.is_server_ready()

    def model_ready(self) -> None:
        """ModelReady knows the model, its version, and no others"""
        assert self._grpc.is_model_ready(self._model)
        assert self._grpc.is_model_ready(self._model, self._version)
        assert not self._is_ready("no-such-model")
        assert not self._is_ready(self._model, "987654")

    def server_metadata(self) -> str:
        """ServerMetadata tells a name, a version and extensions"""
        server = self._grpc.get_server_metadata()
        assert server.name
        assert server.version
        return f"{server.name} {server.version}: {', '.join(sorted(server.extensions))}"

    def metadata(self) -> str:
        """ModelMetadata tells versions, inputs and outputs of known types"""
        metadata = self._metadata
        assert metadata.name == self._model
        assert metadata.versions
        assert metadata.outputs
        for tensor in (*metadata.inputs, *metadata.outputs):
            assert tensor.name
            assert triton_to_np_dtype(tensor.datatype) is not None, tensor.datatype
        return ", ".join(f"{t.name}: {t.datatype}{list(t.shape)}" for t in metadata.inputs)

    def no_metadata(self) -> str:
        """ModelMetadata of an unknown model is NOT_FOUND"""
        return self._refused(lambda: self._grpc.get_model_metadata("no-such-model"), "NOT_FOUND")

    def configuration(self) -> str:
        """ModelConfig agrees with the metadata"""
        config = self._optional(lambda: self._grpc.get_model_config(self._model)).config
        assert config.name == self._model
        rows = [-1] if config.max_batch_size else []
        metadata = self._metadata
        for described, configured in (
            (metadata.inputs, config.input),
            (metadata.outputs, config.output),
        ):
            shapes = {tensor.name: list(tensor.shape) for tensor in described}
            assert {tensor.name: rows + list(tensor.dims) for tensor in configured} == shapes
        return f"max_batch_size {config.max_batch_size}"

    def infer(self) -> str:
        """ModelInfer gives all outputs, with the types and shapes of the metadata"""
        result = self._infer()
        response = result.get_response()
        metadata = self._metadata
        assert response.model_name == self._model
        assert response.model_version in metadata.versions
        assert {output.name for output in response.outputs} == {t.name for t in metadata.outputs}
        for tensor in metadata.outputs:
            output = result.get_output(tensor.name)
            assert output.datatype == tensor.datatype
            assert len(output.shape) == len(tensor.shape)
            pairs = zip(tensor.shape, output.shape, strict=True)
            assert all(size in (-1, given) for size, given in pairs)
            assert result.as_numpy(tensor.name).shape == tuple(output.shape)
        return ", ".join(f"{o.name}: {o.datatype}{list(o.shape)}" for o in response.outputs)

    def request_id(self) -> None:
        """ModelInfer gives the request's id back"""
        assert self._infer(request_id="seven").get_response().id == "seven"

    def version(self) -> str:
        """ModelInfer finds a version by number"""
        response = self._infer(model_version=self._version).get_response()
        assert response.model_version == self._version
        return self._version

    def named_outputs(self) -> str:
        """ModelInfer gives the outputs that are asked for, and no others"""
        name = self._metadata.outputs[-1].name
        result = self._infer(outputs=[over_grpc.InferRequestedOutput(name)])
        assert [output.name for output in result.get_response().outputs] == [name]
        np.testing.assert_array_equal(result.as_numpy(name), self._expected[name])
        return str(name)

    def parameters(self) -> None:
        """ModelInfer ignores parameters that it does not know"""
        self._same(self._infer(parameters={"nobody-knows": 7, "nor-this": True}))

    def batches(self) -> str:
        """ModelInfer takes 1, 2, 16 and 100 rows"""
        if not self._has_rows():
            raise NotApplicable("not every array has rows in its first dimension")
        for rows in (1, 2, 16, 100):
            for name, array in self._arrays(self._infer(self._inputs(rows))).items():
                assert len(array) == rows, f"{rows} rows gave '{name}' {list(array.shape)}"
        return "1, 2, 16, 100"

    def typed_contents(self) -> str:
        """ModelInfer takes elements in fields of their type"""
        fields = {
            **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
            **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
            **{"BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"},
            **{"FP32": "fp32_contents", "FP64": "fp64_contents"},
        }
        request = service_pb2.ModelInferRequest(model_name=self._model)
        for tensor in self._metadata.inputs:
            if tensor.datatype not in fields:
                raise NotApplicable(f"{tensor.datatype} has no field")
            array = self._inputs()[tensor.name]
            sent = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
            getattr(sent.contents, fields[tensor.datatype]).extend(array.ravel().tolist())
        response = self._call(request)
        self._same(over_grpc.InferResult(response))
        return ", ".join(sorted({fields[t.datatype] for t in self._metadata.inputs}))

    def asynchronous(self) -> str:
        """ModelInfer answers many calls at once, each with the same"""
        done = threading.Semaphore(0)
        found: list[Any] = []

        def callback(result: Any, error: Any) -> None:
            found.append(error or result)
            done.release()

        for _ in range(_CALLS):
            self._grpc.async_infer(self._model, self._tensors(over_grpc), callback)
        for _ in range(_CALLS):
            assert done.acquire(timeout=_SECONDS)
        for result in found:
            self._same(result)
        return f"{_CALLS} calls"

    def cancellation(self) -> str:
        """ModelInfer can be cancelled, and the server answers others after that"""
        done = threading.Event()
        errors: list[Any] = []

        def callback(result: Any, error: Any) -> None:
            errors.append(error)
            done.set()

        call = self._grpc.async_infer(self._model, self._tensors(over_grpc), callback)
        call.cancel()
        assert done.wait(_SECONDS)
        self._same(self._infer())
        (error,) = errors
        if error is None:
            return "it had been answered before"
        assert error.status() == "StatusCode.CANCELLED", error
        return str(error.message())

    def client_timeout(self) -> str:
        """ModelInfer ends with the caller's deadline, and the server answers others after that"""
        try:
            self._infer(client_timeout=1e-6)
        except InferenceServerException as error:
            status, told = error.status(), str(error.message())
        else:
            status, told = "StatusCode.DEADLINE_EXCEEDED", "it had been answered before"
        assert status == "StatusCode.DEADLINE_EXCEEDED", told
        self._same(self._infer(client_timeout=_SECONDS))
        return told

    def server_timeout(self) -> None:
        """ModelInfer takes the parameter timeout"""
        self._same(self._infer(timeout=int(_SECONDS * 1e6)))

    def unknown_names(self) -> None:
        """ModelInfer refuses models, versions, inputs and outputs that are not there"""
        tensors = self._tensors(over_grpc)
        self._refused(lambda: self._grpc.infer("no-such-model", tensors), "NOT_FOUND")
        self._refused(lambda: self._infer(model_version="987654"), "NOT_FOUND")
        output = over_grpc.InferRequestedOutput("no-such-output")
        wrong = ("INVALID_ARGUMENT", "NOT_FOUND")
        self._refused(lambda: self._infer(outputs=[output]), *wrong)
        inputs = {**self._inputs(), "no-such-input": np.zeros(1, np.float32)}
        types = {**self._types(), "no-such-input": "FP32"}
        tensors = _tensors(over_grpc, inputs, types)
        self._refused(lambda: self._grpc.infer(self._model, tensors), *wrong)

    def wrong_inputs(self) -> str:
        """ModelInfer refuses shapes and numbers of bytes that do not fit"""
        name, array = self._some_input()
        longer = {**self._inputs(), name: array[None, ..., None]}
        told = self._refused(lambda: self._infer(longer), "INVALID_ARGUMENT")
        request = self._request()
        request.raw_input_contents[0] += b"\0"
        self._refused(lambda: self._call(request), "INVALID_ARGUMENT")
        request = self._request()
        request.inputs[0].contents.fp32_contents.append(1)
        self._refused(lambda: self._call(request), "INVALID_ARGUMENT")
        return told

    def texts(self) -> str:
        """ModelInfer refuses BYTES for numbers"""
        name, _ = self._some_input()
        inputs = {**self._inputs(), name: np.array([b"text"], np.object_)}
        tensors = _tensors(over_grpc, inputs, {**self._types(), name: "BYTES"})
        return self._refused(lambda: self._grpc.infer(self._model, tensors), "INVALID_ARGUMENT")

    def stream(self) -> str:
        """ModelStreamInfer answers every request, each once, and a wrong one with its error"""
        with over_grpc.InferenceServerClient(self._address) as client:
            found: dict[str, Any] = {}
            errors = []
            done = threading.Semaphore(0)

            def callback(result: Any, error: Any) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    found[result.get_response().id] = result
                done.release()

            client.start_stream(callback)
            tensors = self._tensors(over_grpc)
            for number in range(_CALLS):
                client.async_stream_infer(
                    self._model,
                    tensors,
                    request_id=str(number),
                    enable_empty_final_response=bool(number % 2),
                )
            client.async_stream_infer("no-such-model", tensors)
            for _ in range(_CALLS + 1):
                assert done.acquire(timeout=_SECONDS)
            client.stop_stream()
        (error,) = errors
        if (error.status() or "").endswith("UNIMPLEMENTED"):
            raise NotApplicable("no streams")
        assert found.keys() == set(map(str, range(_CALLS)))
        for result in found.values():
            self._same(result)
            parameters = result.get_response().parameters
            assert parameters["triton_final_response"].bool_param
        return f"{_CALLS} answers; {error.message()}"

    def event_loop(self) -> None:
        """The asyncio client calls and streams"""

        async def requests() -> Any:
            yield {"model_name": self._model, "inputs": self._tensors(over_grpc)}

        async def calls() -> None:
            async with over_grpc_aio.InferenceServerClient(self._address) as client:
                assert await client.is_server_live()
                self._same(await client.infer(self._model, self._tensors(over_grpc)))
                async for result, error in client.stream_infer(requests()):
                    assert error is None, error
                    self._same(result)

        asyncio.run(calls())

    def statistics(self) -> str:
        """ModelStatistics counts successes, failures and batches"""
        before = self._optional(self._statistics)
        for _ in range(3):
            self._infer()
        name, array = self._some_input()
        longer = {**self._inputs(), name: array[None, ..., None]}
        self._refused(lambda: self._infer(longer), "INVALID_ARGUMENT")
        after = self._statistics()
        assert after.version == self._version
        for kind in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            new, old = getattr(after.inference_stats, kind), getattr(before.inference_stats, kind)
            assert new.count - old.count == 3, kind
            assert new.ns >= old.ns, kind
        success = after.inference_stats.success
        assert after.inference_count > before.inference_count
        assert after.execution_count - before.execution_count >= 3  # large calls may be cut
        assert after.last_inference >= before.last_inference
        assert after.batch_stats
        return f"{success.count} calls, {success.ns / success.count / 1000:.0f} us each"

    def index(self) -> str:
        """RepositoryIndex lists the model"""
        index = self._optional(self._grpc.get_model_repository_index)
        found = {(m.name, m.version): m.state for m in index.models}
        assert found[self._model, self._version] == "READY"
        return f"{len(found)} versions"

    def load_and_unload(self) -> str:
        """RepositoryModelUnload and Load take the model away and bring it back, if advertised"""
        if "model_repository" not in self._extensions():
            raise NotApplicable("not advertised")
        self._grpc.unload_model(self._model)
        while self._is_ready(self._model):  # Triton unloads after it has answered
            time.sleep(0.05)
        self._grpc.load_model(self._model)
        assert self._grpc.is_model_ready(self._model)
        self._same(self._infer())
        wrong = "NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL"
        return self._refused(lambda: self._grpc.load_model("no-such-model"), *wrong)

    def system_shared_memory(self) -> str:
        """Arrays pass through system shared memory over gRPC, and not beyond its bounds"""
        return self._through_shared_memory(self._grpc, over_grpc, "INVALID_ARGUMENT")

    def health(self) -> None:
        """gRPC's health service says SERVING"""
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        for service in ("", SERVICE):
            status = stub.Check(health_pb2.HealthCheckRequest(service=service)).status
            assert status == health_pb2.HealthCheckResponse.SERVING, service

    def reflection(self) -> str:
        """What the server describes by reflection is what the client knows"""
        pool = service_pb2.DESCRIPTOR.pool
        count = 0
        for file in self._optional(self._described):
            for message in file.message_type:
                count += _compare(message, pool.FindMessageTypeByName(f"inference.{message.name}"))
            for service in file.service:
                known = pool.FindServiceByName(f"inference.{service.name}").methods_by_name
                for method in service.method:
                    assert method.input_type == f".{known[method.name].input_type.full_name}"
                    assert method.output_type == f".{known[method.name].output_type.full_name}"
        return f"{count} fields"

    def rest_health(self) -> None:
        """REST: the server is live and ready, and so is the model"""
        with self._http() as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready(self._model)
            assert client.is_model_ready(self._model, self._version)
            assert not client.is_model_ready("no-such-model")

    def rest_metadata(self) -> None:
        """REST: metadata, configuration, statistics and index are those of gRPC"""
        with self._http() as client:
            assert client.get_server_metadata()["name"] == self._grpc.get_server_metadata().name
            metadata = client.get_model_metadata(self._model)
            for field in ("inputs", "outputs"):
                known = getattr(self._metadata, field)
                assert metadata[field] == [
                    {"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in known
                ]
            config = client.get_model_config(self._model)
            known = self._grpc.get_model_config(self._model).config
            assert config["max_batch_size"] == known.max_batch_size
            assert [t["dims"] for t in config["input"]] == [list(t.dims) for t in known.input]
            (statistics,) = client.get_inference_statistics(self._model)["model_stats"]
            count = statistics["inference_stats"]["success"]["count"]
            assert count == self._statistics().inference_stats.success.count
            assert client.get_inference_statistics()["model_stats"]
            index = client.get_model_repository_index()
            states = {(model["name"], model["version"]): model["state"] for model in index}
            assert states[self._model, self._version] == "READY"

    def rest_infer(self) -> str:
        """REST: infer takes and gives JSON and bytes, compressed or not"""
        with self._http() as client:
            # The client sends BF16 as bytes alone.
            for binary in (True,) if "BF16" in self._types().values() else (True, False):
                tensors = self._tensors(over_http, binary_data=binary)
                outputs = [
                    over_http.InferRequestedOutput(tensor.name, binary_data=binary)
                    for tensor in self._metadata.outputs
                ]
                for compression in (None, "gzip", "deflate"):
                    result = client.infer(
                        self._model,
                        tensors,
                        outputs=outputs,
                        request_id="seven",
                        request_compression_algorithm=compression,
                        response_compression_algorithm=compression,
                    )
                    assert result.get_response()["id"] == "seven"
                    self._same(result)
            self._same(client.infer(self._model, self._tensors(over_http)))
            version = self._version
            self._same(client.infer(self._model, self._tensors(over_http), version, timeout=10**8))
        return "JSON, bytes; identity, gzip, deflate"

    def rest_async(self) -> str:
        """REST: infer answers many calls at once"""
        with self._http(concurrency=8) as client:
            calls = [
                client.async_infer(self._model, self._tensors(over_http)) for _ in range(_CALLS)
            ]
            for call in calls:
                self._same(call.get_result())
        return f"{_CALLS} calls"

    def rest_errors(self) -> str:
        """REST: what is wrong is told as {"error": …}"""
        with self._http() as client:
            tensors = self._tensors(over_http)
            self._refused(lambda: client.infer("no-such-model", tensors), "404", "400")
            name, array = self._some_input()
            longer = {**self._inputs(), name: array[None, ..., None]}
            tensors = _tensors(over_http, longer, self._types())
            return self._refused(lambda: client.infer(self._model, tensors), "400")

    def rest_shared_memory(self) -> str:
        """REST: arrays pass through system shared memory"""
        with self._http() as client:
            return self._through_shared_memory(client, over_http, "400")

    def _http(self, **options: Any) -> Any:
        if self._http_address is None:
            raise NotApplicable("no --http")
        return over_http.InferenceServerClient(
            self._http_address, network_timeout=_SECONDS, **options
        )

    def _call(self, request: Any) -> Any:
        """Sends a request that the client itself would not make."""
        return self._grpc._client_stub.ModelInfer(request)

    @cached_property
    def _metadata(self) -> Any:
        return self._grpc.get_model_metadata(self._model)

    def _extensions(self) -> list[str]:
        return list(self._grpc.get_server_metadata().extensions)

    @cached_property
    def _version(self) -> str:
        return str(self._infer().get_response().model_version)

    def _is_ready(self, model: str, version: str = "") -> bool:
        try:
            return bool(self._grpc.is_model_ready(model, version))
        except InferenceServerException:  # the protocol leaves open whether this is an error
            return False

    def _types(self) -> dict[str, str]:
        return {tensor.name: tensor.datatype for tensor in self._metadata.inputs}

    def _inputs(self, rows: int = 2) -> dict[str, NDArray[Any]]:
        inputs = {}
        for tensor in self._metadata.inputs:
            first, others = tensor.shape[:1], tensor.shape[1:]
            shape = [rows if size == -1 else size for size in first]
            shape += [_OTHER_SIZES if size == -1 else size for size in others]
            one = tensor.datatype.startswith(("FP", "BF"))
            inputs[tensor.name] = np.full(shape, one, triton_to_np_dtype(tensor.datatype))
        return inputs

    def _some_input(self) -> tuple[str, NDArray[Any]]:
        if not self._inputs():
            raise NotApplicable("the model has no inputs")
        return next(iter(self._inputs().items()))

    def _has_rows(self) -> bool:
        metadata = self._metadata
        return all(list(t.shape[:1]) == [-1] for t in (*metadata.inputs, *metadata.outputs))

    def _tensors(self, module: Any, **options: Any) -> list[Any]:
        return _tensors(module, self._inputs(), self._types(), **options)

    def _request(self) -> Any:
        self._some_input()
        request = service_pb2.ModelInferRequest(model_name=self._model)
        for tensor in self._tensors(over_grpc):
            request.inputs.append(tensor._get_tensor())
            request.raw_input_contents.append(tensor._get_content())
        return request

    def _infer(self, inputs: Arrays | None = None, **options: Any) -> Any:
        tensors = _tensors(over_grpc, self._inputs() if inputs is None else inputs, self._types())
        return self._grpc.infer(self._model, tensors, **options)

    def _arrays(self, result: Any) -> dict[str, NDArray[Any]]:
        return {tensor.name: result.as_numpy(tensor.name) for tensor in self._metadata.outputs}

    @cached_property
    def _expected(self) -> dict[str, NDArray[Any]]:
        return self._arrays(self._infer())

    def _same(self, result: Any) -> None:
        """Whether a result is that of the plain call."""
        if isinstance(result, Exception):
            raise result
        for name, array in self._expected.items():
            found = result.as_numpy(name)
            assert found.dtype == array.dtype, name
            np.testing.assert_array_equal(found, array, err_msg=name)

    def _statistics(self) -> Any:
        (statistics,) = self._grpc.get_inference_statistics(self._model, self._version).model_stats
        return statistics

    def _described(self) -> list[FileDescriptorProto]:
        """The files of the service, by reflection."""
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(self._channel)
        asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)]
        found: dict[str, FileDescriptorProto] = {}
        while asked:
            (answer,) = stub.ServerReflectionInfo(iter([asked.pop()]), timeout=_SECONDS)
            assert not answer.HasField("error_response"), answer.error_response
            for data in answer.file_descriptor_response.file_descriptor_proto:
                file = FileDescriptorProto.FromString(data)
                found[file.name] = file
                asked += [
                    reflection_pb2.ServerReflectionRequest(file_by_filename=name)
                    for name in file.dependency
                    if name not in found
                ]
        return [file for file in found.values() if file.package == "inference"]

    def _through_shared_memory(self, client: Any, module: Any, refusal: str) -> str:
        if "system_shared_memory" not in self._extensions():
            raise NotApplicable("not advertised")
        expected, inputs, types = self._expected, self._inputs(), self._types()
        regions: list[Any] = []
        try:
            tensors, outputs = [], []
            client.unregister_system_shared_memory()
            for name, array in inputs.items():
                region = self._region(client, regions, array.nbytes)
                shared_memory.set_shared_memory_region(region, [np.atleast_1d(array)])
                tensors.append(module.InferInput(name, array.shape, types[name]))
                tensors[-1].set_shared_memory(region._triton_shm_name, array.nbytes)
            for name, array in expected.items():
                region = self._region(client, regions, array.nbytes)
                outputs.append((name, region))
            client.infer(self._model, tensors, outputs=self._targets(module, outputs, expected))
            for name, region in outputs:
                array = expected[name]
                found = shared_memory.get_contents_as_numpy(region, array.dtype, array.shape)
                np.testing.assert_array_equal(found, array, err_msg=name)
                del found
            status = client.get_system_shared_memory_status()
            assert len(getattr(status, "regions", status)) == len(regions)
            wanted = self._targets(module, outputs, expected, offset=1)
            self._refused(lambda: client.infer(self._model, tensors, outputs=wanted), refusal)
            client.unregister_system_shared_memory()
            wanted = self._targets(module, outputs, expected)
            told = self._refused(
                lambda: client.infer(self._model, tensors, outputs=wanted),
                *(refusal, "NOT_FOUND", "404"),
            )
        finally:
            for region in regions:
                shared_memory.destroy_shared_memory_region(region)
        return told

    def _targets(self, module: Any, outputs: Any, expected: Arrays, offset: int = 0) -> list[Any]:
        targets = []
        for name, region in outputs:
            targets.append(module.InferRequestedOutput(name))
            targets[-1].set_shared_memory(region._triton_shm_name, expected[name].nbytes, offset)
        return targets

    def _region(self, client: Any, regions: list[Any], size: int) -> Any:
        name = f"conformance-{uuid.uuid4().hex}"
        region = shared_memory.create_shared_memory_region(name, f"/{name}", size)
        regions.append(region)
        client.register_system_shared_memory(name, f"/{name}", size)
        return region

    def _optional(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except InferenceServerException as error:
            if (error.status() or "").endswith("UNIMPLEMENTED"):
                raise NotApplicable("the server does not have it") from error
            raise
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NotApplicable("the server does not have it") from error
            raise

    def _refused(self, call: Callable[[], Any], *statuses: str) -> str:
        """What the server says, as it must, to a wrong call."""
        try:
            call()
        except InferenceServerException as error:
            status, told = (error.status() or "").removeprefix("StatusCode."), error.message()
        except grpc.RpcError as error:
            status, told = error.code().name, error.details()
        else:
            raise AssertionError("it was not refused")
        if status not in statuses:
            raise AssertionError(f"{status} instead of {' or '.join(statuses)}: {told}")
        return str(told)


def _tensors(module: Any, inputs: Arrays, types: Mapping[str, str], **options: Any) -> list[Any]:
    tensors = []
    for name, array in inputs.items():
        tensors.append(module.InferInput(name, list(array.shape), types[name]))
        tensors[-1].set_data_from_numpy(array, **options)
    return tensors


def _compare(described: DescriptorProto, known: Descriptor) -> int:
    """Compares the fields of a message, and of those in it; gives how many there are."""
    copy = DescriptorProto()
    known.CopyToProto(copy)
    theirs_by_name = {field.name: field for field in copy.field}
    for field in described.field:
        other = theirs_by_name[field.name]
        for attribute in ("number", "type", "type_name", "label"):
            ours, theirs = getattr(field, attribute), getattr(other, attribute)
            assert ours == theirs, f"{known.full_name}.{field.name}: {attribute} {ours}, {theirs}"
    nested = [
        _compare(message, known.nested_types_by_name[message.name])
        for message in described.nested_type
    ]
    return len(described.field) + sum(nested)
