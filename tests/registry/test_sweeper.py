"""Sweeping in the background."""

import threading
from datetime import timedelta

from servax_registry.errors import StorageUnavailable
from servax_registry.store import sweeper
from servax_registry.store.sweeper import Sweeper


class FakeBlobs:
    """Fails at first, as a store does that has an outage; counts how often it was swept."""

    def __init__(self, sweeps):
        self.ages = []
        self.done = threading.Event()
        self._sweeps = sweeps

    def expire(self, age):
        """Take note."""
        self.ages.append(age)
        if len(self.ages) == 1:
            raise StorageUnavailable("an outage")
        if len(self.ages) == self._sweeps:
            self.done.set()


def test_it_sweeps_at_once_and_again_until_it_is_closed(monkeypatch):
    """Sweeps follow one another, also after one that failed, and end when the sweeper is closed."""
    monkeypatch.setattr(sweeper, "_INTERVAL", 0.001)
    blobs = FakeBlobs(sweeps=3)

    running = Sweeper(blobs, timedelta(days=7))
    blobs.done.wait()
    running.close()

    count = len(blobs.ages)
    assert set(blobs.ages) == {timedelta(days=7)}
    assert count >= 3
    assert len(blobs.ages) == count
