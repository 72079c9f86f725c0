"""How often each version was called, and how long that took, since it was loaded first.

For protocols whose clients ask for it; `metrics` has the same for Prometheus, as distributions.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from servax import types
from servax_worker.batch import Ran


@dataclass(slots=True)
class Duration:
    """How often something happened, and how many seconds that took altogether."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts `count` more that took `seconds` altogether."""
        self.count += count
        self.seconds += seconds


@dataclass(slots=True)
class Steps:
    """What a batch takes: joining and padding the inputs, computing, cutting the outputs."""

    input: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    output: Duration = field(default_factory=Duration)

    def add(self, ran: Ran, count: int = 1, times: int = 1) -> None:
        """Counts a batch `count` times, and its seconds so many `times`."""
        self.input.add(ran.input_seconds * times, count)
        self.compute.add(ran.compute_seconds * times, count)
        self.output.add(ran.output_seconds * times, count)


class VersionStatistics:
    """The statistics of one version."""

    def __init__(self, clock: Callable[[], float] = time.time):
        """`clock` gives the seconds since 1970."""
        self._clock = clock
        self.success = Duration()
        """Requests that were answered, from their arrival on."""
        self.failure = Duration()
        """Requests that were not."""
        self.queue = Duration()
        """How long those that were answered waited for the device."""
        self.steps = Steps()
        """The steps of requests: of all batches that they were in, whole."""
        self.batches: defaultdict[int, Steps] = defaultdict(Steps)
        """The steps of batches, by their rows without padding."""
        self.rows = 0
        """The rows that were computed; one for a request without declared rows."""
        self.last_batch = 0.0
        """When the last batch ended, in seconds since 1970; 0 before the first."""

    def answered(self, seconds: float, queue_seconds: float) -> None:
        """Counts a request that took so long, of which it waited so long."""
        self.success.add(seconds)
        self.queue.add(queue_seconds)

    def ran(self, ran: Ran) -> None:
        """Counts a batch."""
        self.steps.add(ran, ran.begun, ran.calls)
        self.batches[ran.rows].add(ran)
        self.rows += ran.rows
        self.last_batch = self._clock()


class Statistics:
    """The statistics of every version that was ever loaded."""

    def __init__(self) -> None:
        self._versions: defaultdict[tuple[str, int], VersionStatistics] = defaultdict(
            VersionStatistics
        )

    def find(self, versions: Iterable[tuple[str, int]]) -> list[types.VersionStatistics]:
        """Those of some versions, as values that stay as they are."""
        return [
            types.VersionStatistics(
                *(model, number),
                *(_spent(found.success), _spent(found.failure), _spent(found.queue)),
                tuple(
                    types.BatchStatistics(
                        rows, _spent(steps.input), _spent(steps.compute), _spent(steps.output)
                    )
                    for rows, steps in sorted(found.batches.items())
                ),
            )
            for model, number in versions
            for found in [self.of(model, number)]
        ]

    def of(self, model: str, version: int) -> VersionStatistics:
        """Those of one version, empty at first."""
        return self._versions[model, version]


def _spent(duration: Duration) -> types.Spent:
    return types.Spent(duration.count, duration.seconds)
