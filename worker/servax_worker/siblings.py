"""What the serving processes of one worker tell together over HTTP.

Each has an application of its own behind a socket in a folder that they share. Whichever process a
caller reaches asks all of them.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from servax_worker.http import Health

_TIMEOUT = 2.0  # seconds; one that does not answer meanwhile is busy starting, or hangs


class Siblings:
    """All serving processes of a worker, this one included."""

    def __init__(self, folder: Path, count: int):
        self._folder = folder
        self._count = count

    def socket(self, number: int) -> Path:
        """Where the process of this number listens."""
        return self._folder / str(number)

    async def health(self) -> Health:
        """Whether all are ready, and the versions of each that answers, with its number."""
        answers = await self._ask("/healthz")
        told = {number: json.loads(text) for number, text in answers.items()}
        versions = [
            {"process": number, **version}
            for number, health in told.items()
            for version in health["versions"]
        ]
        ready = len(told) == self._count and all(health["ready"] for health in told.values())
        return ready, versions

    async def metrics(self) -> bytes:
        """The metrics of each that answers, in Prometheus's text format, labelled `process`."""
        return merged(await self._ask("/metrics"))

    async def _ask(self, path: str) -> dict[int, str]:
        answers = await asyncio.gather(
            *(self._get(self.socket(number), path) for number in range(self._count))
        )
        return {number: text for number, text in enumerate(answers) if text is not None}

    async def _get(self, socket: Path, path: str) -> str | None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        async with httpx.AsyncClient(transport=transport, timeout=_TIMEOUT) as client:
            try:
                return (await client.get(f"http://process{path}")).text
            except httpx.TransportError:
                return None


def merged(expositions: Mapping[int, str]) -> bytes:
    """Expositions in one, each sample with the label `process`."""
    families: dict[str, Metric] = {}
    for number, text in expositions.items():
        for family in text_string_to_metric_families(text):
            whole = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                whole.add_sample(
                    sample.name, {**sample.labels, "process": str(number)}, sample.value
                )
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    """What was collected already."""

    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
