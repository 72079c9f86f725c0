"""Keeps plans between runs: measuring takes seconds, a restart should not."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from servax_worker.batch import Bucket
from servax_worker.tuning import Plan

log = structlog.get_logger(__name__)


class Plans:
    """A folder of plans, each under the digest of what it depends on."""

    def __init__(self, directory: Path):
        """Makes the folder; raises OSError."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory

    def find(self, circumstances: Mapping[str, Any]) -> Plan | None:
        """The plan that was kept for the same circumstances."""
        path = self._path(circumstances)
        try:
            kept = json.loads(path.read_bytes())
            return Plan(
                int(kept["side_by_side"]),
                float(kept["pace"]),
                {
                    tuple((str(symbol), int(size)) for symbol, size in key): tuple(
                        Bucket(int(rows), float(seconds), bool(brief))
                        for rows, seconds, brief in buckets
                    )
                    for key, buckets in kept["buckets"]
                },
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("a plan cannot be read and is made anew", path=str(path), why=repr(error))
            return None

    def keep(self, circumstances: Mapping[str, Any], plan: Plan) -> None:
        """Keeps a plan; where the disk is full, it will be made anew the next time."""
        path = self._path(circumstances)
        text = json.dumps(
            {
                "side_by_side": plan.side_by_side,
                "pace": plan.pace,
                "buckets": list(plan.buckets.items()),
            }
        )
        temporary = path.with_suffix(".new")
        try:
            temporary.write_text(text)
            temporary.replace(path)
        except OSError as error:
            log.warning("a plan cannot be kept", path=str(path), why=str(error))

    def _path(self, circumstances: Mapping[str, Any]) -> Path:
        text = json.dumps(circumstances, sort_keys=True)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
