"""Prometheus instruments, in a registry of their own."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servax.types import ServedState
from servax_worker.batch import Ran
from servax_worker.statistics import Statistics, VersionStatistics

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_CALL = ("model", "version", "signature")


class Metrics:
    """What a worker counts and measures; times are in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.statistics = Statistics()
        self.requests = Counter(
            "servax_requests",
            "Requests by result: ok, or the kind of error. Labels are empty where the request "
            "named nothing that is served.",
            (*_CALL, "result"),
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "servax_queue_seconds",
            "Time that a request waited for the device.",
            _CALL,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "servax_batch_rows",
            "Rows that ran together, without padding; 1 for a request without declared rows.",
            _CALL,
            buckets=[2**exponent for exponent in range(11)],
            registry=self.registry,
        )
        self.padding_rows = Counter(
            "servax_padding_rows",
            "Rows that were computed only because a batch must have a size that is compiled.",
            _CALL,
            registry=self.registry,
        )
        self.input_seconds = Histogram(
            "servax_input_seconds",
            "Time that joining and padding the inputs of a batch took.",
            _CALL,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.compute_seconds = Histogram(
            "servax_compute_seconds",
            "Time that the device took for a batch.",
            _CALL,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.output_seconds = Histogram(
            "servax_output_seconds",
            "Time that cutting the outputs of a batch took.",
            _CALL,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.compilations = Counter(
            "servax_compilations",
            "Executables made, by source: compiler, or the persistent cache.",
            (*_CALL, "source"),
            registry=self.registry,
        )
        self.compilation_seconds = Histogram(
            "servax_compilation_seconds",
            "Time that making an executable took.",
            _CALL,
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
            registry=self.registry,
        )
        self._state = Gauge(
            "servax_model_state",
            "1 for every state in which a version of a served reference is: one state, except "
            "while the reference moves or where the version that it moved to failed.",
            ("model", "reference", "state"),
            registry=self.registry,
        )
        self._version = Gauge(
            "servax_model_version",
            "The version that answers, 0 while there is none.",
            ("model", "reference"),
            registry=self.registry,
        )

    def of_calls(self, model: str, version: int, signature: str) -> "CallMetrics":
        """The instruments of one signature."""
        statistics = self.statistics.of(model, version)
        return CallMetrics(self, statistics, (model, str(version), signature))

    def watch_queues(
        self, waiting: Callable[[], Iterable[tuple[tuple[str, str, str], int]]]
    ) -> None:
        """Shows how many requests wait, by model, version and signature, whenever it is asked."""
        self.registry.register(_Queues(waiting))

    def watch_memory(self, reserved: Callable[[], Mapping[str, int]]) -> None:
        """Shows how many bytes of the device each version takes, whenever it is asked."""
        self.registry.register(_Memory(reserved))

    def set_states(
        self, model: str, reference: str, states: Collection[ServedState], version: int
    ) -> None:
        """Notes the states of what was asked for as `reference`, and the version that answers."""
        for state in ServedState:
            if state is not ServedState.UNSPECIFIED:
                self._state.labels(model, reference, state.name).set(state in states)
        self._version.labels(model, reference).set(version)

    def forget_states(self, model: str, reference: str) -> None:
        """Shows nothing any more of what was asked for as `reference`."""
        for state in ServedState:
            if state is not ServedState.UNSPECIFIED:
                self._state.remove(model, reference, state.name)
        self._version.remove(model, reference)


class CallMetrics:
    """The instruments of one signature, with their labels looked up."""

    def __init__(
        self, metrics: Metrics, statistics: VersionStatistics, labels: tuple[str, str, str]
    ):
        self._statistics = statistics
        self._ok = metrics.requests.labels(*labels, "ok")
        self._queue_seconds = metrics.queue_seconds.labels(*labels)
        self._batch_rows = metrics.batch_rows.labels(*labels)
        self._padding_rows = metrics.padding_rows.labels(*labels)
        self._input_seconds = metrics.input_seconds.labels(*labels)
        self._compute_seconds = metrics.compute_seconds.labels(*labels)
        self._output_seconds = metrics.output_seconds.labels(*labels)

    def answered(self, seconds: float, queue_seconds: float) -> None:
        """Counts a request that took so long, of which it waited so long."""
        self._ok.inc()
        self._queue_seconds.observe(queue_seconds)
        self._statistics.answered(seconds, queue_seconds)

    def ran(self, ran: Ran) -> None:
        """Counts a batch."""
        self._statistics.ran(ran)
        self._batch_rows.observe(ran.rows)
        self._padding_rows.inc(ran.padding)
        self._input_seconds.observe(ran.input_seconds)
        self._compute_seconds.observe(ran.compute_seconds)
        self._output_seconds.observe(ran.output_seconds)


class _Queues(Collector):
    """Asks the queues how long they are: a gauge that they kept would outlive them."""

    def __init__(self, waiting: Callable[[], Iterable[tuple[tuple[str, str, str], int]]]):
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "servax_queued_requests", "Requests that wait for the device.", labels=_CALL
        )
        totals: dict[tuple[str, str, str], int] = defaultdict(int)
        for labels, count in self._waiting():  # two references may have the same version loaded
            totals[labels] += count
        for labels, count in totals.items():
            family.add_metric(labels, count)
        yield family


class _Memory(Collector):
    """Asks what is reserved, as `_Queues` does."""

    def __init__(self, reserved: Callable[[], Mapping[str, int]]):
        self._reserved = reserved

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "servax_reserved_bytes",
            "Memory of the device that a version takes: weights, code, and calls side by side.",
            labels=["version"],
        )
        for version, size in self._reserved().items():
            family.add_metric([version], size)
        yield family
