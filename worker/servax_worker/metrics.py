"""Prometheus instruments, in a registry of their own."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from servax.types import ServedState

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_CALL = ("model", "version", "signature")


class Metrics:
    """What a worker counts and measures; times are in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self.compute_seconds = Histogram(
            "servax_compute_seconds",
            "Time that the device took for a request.",
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

    def set_states(
        self, model: str, reference: str, states: Collection[ServedState], version: int
    ) -> None:
        """Notes the states of what was asked for as `reference`, and the version that answers."""
        for state in ServedState:
            if state is not ServedState.UNSPECIFIED:
                self._state.labels(model, reference, state.name).set(state in states)
        self._version.labels(model, reference).set(version)
