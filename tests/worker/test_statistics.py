"""What is counted of the calls of a version."""

import numpy as np
import pytest

from servax import Client
from servax.errors import NotFound
from servax.types import Batching, Spent
from servax_worker.batch import Ran
from servax_worker.statistics import Statistics, VersionStatistics


def ran(rows, calls, begun, seconds=0.5):
    """A batch whose steps took some seconds."""
    return Ran(rows, 0, calls, begun, seconds, 2 * seconds, 3 * seconds)


def test_requests_count_all_of_their_batches():
    """A request counts once, with the whole time of every batch that it was in."""
    statistics = VersionStatistics(clock=lambda: 1234.5)

    statistics.ran(ran(8, calls=2, begun=2))  # a request of 3 rows, and the first 5 of another
    statistics.ran(ran(2, calls=1, begun=0))  # the others of that

    assert statistics.steps.compute.count == 2
    assert statistics.steps.input.seconds == pytest.approx((2 + 1) * 0.5)
    assert statistics.steps.compute.seconds == pytest.approx((2 + 1) * 1.0)
    assert statistics.steps.output.seconds == pytest.approx((2 + 1) * 1.5)
    assert statistics.rows == 10
    assert {rows: steps.compute.count for rows, steps in statistics.batches.items()} == {8: 1, 2: 1}
    assert statistics.batches[8].compute.seconds == 1.0
    assert statistics.last_batch == 1234.5


def test_each_version_has_its_own():
    """Versions are told apart by model and number."""
    statistics = Statistics()

    statistics.of("a", 1).answered(seconds=2.0, queue_seconds=0.5)
    statistics.of("a", 1).answered(seconds=1.0, queue_seconds=0.25)

    assert statistics.of("a", 1).success.count == 2
    assert statistics.of("a", 1).success.seconds == 3.0
    assert statistics.of("a", 1).queue.seconds == 0.75
    assert statistics.of("a", 2).success.count == 0
    assert statistics.of("b", 1).success.count == 0


def test_calls_of_many_rows_count_once(publish, exported, symbolic, serving):
    """A call that was cut into several batches is one call of all of its rows."""
    publish("cut", exported(lambda x: x + 1, symbolic("b, 2")).serialize(), batching=Batching("b"))
    with serving("cut", warm_up={"b": (1, 4)}) as running:
        running.wait_until_loaded()
        with Client(worker=running.address) as client:
            client.predict("cut", {"x": np.zeros((10, 2), np.float32)})
            (told,) = client.statistics("cut")
            with pytest.raises(NotFound, match="no model 'other' here"):
                client.statistics("other")
        statistics = running.server._metrics.statistics.of("cut", 1)

    assert statistics.success.count == statistics.steps.compute.count == 1
    assert statistics.rows == 10
    assert sum(steps.compute.count for steps in statistics.batches.values()) == 3
    assert (told.model, told.version, told.failed) == ("cut", 1, Spent())
    assert (told.succeeded.count, told.waited.count) == (1, 1)
    assert sum(batch.rows * batch.compute.count for batch in told.batches) == 10
