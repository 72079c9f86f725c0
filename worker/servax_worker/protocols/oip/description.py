"""What is served, in the protocol's words: metadata, configuration, statistics, index."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from servax.types import DEFAULT_SIGNATURE, ServedState, ServedVersion, Signature, TensorSpec
from servax_proto.oip import inference_pb2, model_config_pb2
from servax_worker.errors import InvalidInput, NotServed, Unsupported
from servax_worker.predictor import Predictor
from servax_worker.protocols.oip.datatypes import datatype_of
from servax_worker.settings import Settings
from servax_worker.statistics import Duration, Statistics, VersionStatistics

_PLATFORM = "jax_export"
_ANY_ROWS = 2**31 - 1  # the most that the field takes

_MOST_DIGITS = 1000  # Python converts no more than a few thousand

_STATES = {
    ServedState.RESOLVING: "LOADING",
    ServedState.DOWNLOADING: "LOADING",
    ServedState.COMPILING: "LOADING",
    ServedState.VERIFYING: "LOADING",
    ServedState.READY: "READY",
    ServedState.DRAINING: "UNLOADING",
    ServedState.FAILED: "UNAVAILABLE",
}

# Where two references meet in one version, what tells most of whether it can be called.
_TELLING = ["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


def choice(text: str) -> tuple[int | None, str | None]:
    """The version's number, or the alias; digits are a number, as no alias can be."""
    if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS:
        return int(text), None
    return None, text or None


class Description:
    """Answers everything but calls."""

    def __init__(
        self,
        predictor: Predictor,
        statistics: Statistics,
        settings: Settings,
        extensions: Sequence[str],
    ):
        self._predictor = predictor
        self._statistics = statistics
        self._settings = settings
        self._extensions = extensions

    @property
    def ready(self) -> bool:
        """Whether all models are, and the worker is not shutting down."""
        return self._predictor.ready and not self._predictor.draining

    def server(self) -> inference_pb2.ServerMetadataResponse:
        """What the server is."""
        return inference_pb2.ServerMetadataResponse(
            name="servax", version=_version(), extensions=self._extensions
        )

    def served(self, model: str, version: str) -> ServedVersion:
        """The version that would answer; raises as `Predictor.served` does, and InvalidInput."""
        if not model:
            raise InvalidInput("the request names no model")
        return self._predictor.served(model, *choice(version))

    def metadata(self, model: str, version: str) -> inference_pb2.ModelMetadataResponse:
        """What a model takes and gives; raises as `served` does, and Unsupported."""
        served = self.served(model, version)
        signature = _default(served)
        ready = {
            each.version
            for each in self._predictor.status(model)
            if each.state is ServedState.READY
        }
        return inference_pb2.ModelMetadataResponse(
            name=model,
            versions=[str(number) for number in sorted(ready)],
            platform=_PLATFORM,
            inputs=map(_tensor, signature.inputs),
            outputs=map(_tensor, signature.outputs),
        )

    def config(self, model: str, version: str) -> model_config_pb2.ModelConfig:
        """How a model is run; raises as `metadata` does.

        `max_batch_size` is that of Triton: where it is not 0, dimension 0 of every array counts
        rows, is left out of `dims`, and may have any size up to it.
        """
        served = self.served(model, version)
        signature = _default(served)
        rows = _max_rows(signature)
        skip = 1 if rows else 0
        config = model_config_pb2.ModelConfig(
            name=model,
            platform=_PLATFORM,
            backend=_PLATFORM,
            max_batch_size=rows,
            input=[
                model_config_pb2.ModelInput(
                    name=spec.name, data_type=_data_type(spec), dims=_sizes(spec)[skip:]
                )
                for spec in signature.inputs
            ],
            output=[
                model_config_pb2.ModelOutput(
                    name=spec.name, data_type=_data_type(spec), dims=_sizes(spec)[skip:]
                )
                for spec in signature.outputs
            ],
        )
        if signature.batching is not None and self._settings.batching:
            config.dynamic_batching.max_queue_delay_microseconds = round(
                self._settings.queue_delay * 1e6
            )
        return config

    def statistics(self, model: str, version: str) -> inference_pb2.ModelStatisticsResponse:
        """How often versions were called; raises NotServed."""
        number, alias = choice(version)
        found = {
            (each.model, each.version)
            for each in self._predictor.status(model)
            if each.version
            and number in (None, each.version)
            and alias in (None, each.alias)
            and each.state in (ServedState.READY, ServedState.DRAINING)
        }
        if model and not found:
            self.served(model, version)  # knows best what there is instead
        return inference_pb2.ModelStatisticsResponse(
            model_stats=[
                _statistics(name, number, self._statistics.of(name, number))
                for name, number in sorted(found)
            ]
        )

    def index(self, repository: str, *, ready: bool) -> inference_pb2.RepositoryIndexResponse:
        """What there is and in which state; only what is READY if so wanted."""
        if repository:
            raise Unsupported("there is one repository only; leave repository_name empty")
        found: dict[tuple[str, int], tuple[str, str]] = {}
        for each in self._predictor.status():
            state = (_STATES[each.state], each.detail)
            other = found.get((each.model, each.version), state)
            found[each.model, each.version] = min(
                state, other, key=lambda one: _TELLING.index(one[0])
            )
        return inference_pb2.RepositoryIndexResponse(
            models=[
                inference_pb2.RepositoryIndexResponse.ModelIndex(
                    name=name, version=str(number or ""), state=state, reason=reason
                )
                for (name, number), (state, reason) in sorted(found.items())
                if state == "READY" or not ready
            ]
        )


def _version() -> str:
    try:
        return version("servax")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


def _default(served: ServedVersion) -> Signature:
    for signature in served.signatures:
        if signature.name == DEFAULT_SIGNATURE:
            return signature
    names = ", ".join(sorted(signature.name for signature in served.signatures))
    raise NotServed(
        f"{served.model} version {served.version} has no signature '{DEFAULT_SIGNATURE}', which is "
        f"the one to describe; it has {names}. Call them with the parameter 'signature'"
    )


def _max_rows(signature: Signature) -> int:
    """The most rows in a request; 0 where dimension 0 counts none."""
    if signature.batching is not None:
        return signature.batching.max_rows or _ANY_ROWS
    specs = (*signature.inputs, *signature.outputs)
    first = {spec.shape[0] if spec.shape else "" for spec in specs}
    symbol = first.pop() if len(first) == 1 else ""
    others = {dimension for spec in specs for dimension in spec.shape[1:]}
    return _ANY_ROWS if symbol.isidentifier() and symbol not in others else 0


def _tensor(spec: TensorSpec) -> inference_pb2.ModelMetadataResponse.TensorMetadata:
    return inference_pb2.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=datatype_of(spec.dtype), shape=_sizes(spec)
    )


def _sizes(spec: TensorSpec) -> list[int]:
    return [int(size) if size.isdecimal() else -1 for size in spec.shape]


def _data_type(spec: TensorSpec) -> str:
    return f"TYPE_{datatype_of(spec.dtype)}"


def _statistics(
    model: str, number: int, statistics: VersionStatistics
) -> inference_pb2.ModelStatistics:
    steps = statistics.steps
    return inference_pb2.ModelStatistics(
        name=model,
        version=str(number),
        last_inference=int(statistics.last_batch * 1000),
        inference_count=statistics.rows,
        execution_count=sum(batch.compute.count for batch in statistics.batches.values()),
        inference_stats=inference_pb2.InferStatistics(
            success=_duration(statistics.success),
            fail=_duration(statistics.failure),
            queue=_duration(statistics.queue),
            compute_input=_duration(steps.input),
            compute_infer=_duration(steps.compute),
            compute_output=_duration(steps.output),
            cache_hit=_duration(Duration()),
            cache_miss=_duration(Duration()),
        ),
        batch_stats=[
            inference_pb2.InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.input),
                compute_infer=_duration(batch.compute),
                compute_output=_duration(batch.output),
            )
            for rows, batch in sorted(statistics.batches.items())
        ],
    )


def _duration(duration: Duration) -> inference_pb2.StatisticDuration:
    return inference_pb2.StatisticDuration(
        count=duration.count, ns=round(duration.seconds * 1_000_000_000)
    )
