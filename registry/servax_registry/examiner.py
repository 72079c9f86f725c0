"""Tries, in the background, every program that versions name."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from servax_registry.artifact import Trial
from servax_registry.errors import BlobNotFound, StorageFull, StorageUnavailable
from servax_registry.inspection import TrialLimits, obstacle, try_program
from servax_registry.inspector import program_file
from servax_registry.store.blobs import BlobStore
from servax_registry.store.changes import Changes
from servax_registry.store.database import Database
from servax_registry.store.trials import Trials, Untried

# How many seconds pass between two looks at whether something changed.
_INTERVAL = 2.0

# In wall time a trial may take much longer than alone: everything else comes first.
_LIMITS = TrialLimits(wall_seconds=300.0)

_log = structlog.get_logger(__name__)


class Examiner:
    """Tries programs one at a time, the newest first, and keeps what came of it.

    What did not pass with another release of JAX than `jax_version`, the one that is installed, is
    tried anew. Several registries on one database may try the same program; the first result stays.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        jax_version: str,
        *,
        attempt: Callable[..., Trial] = try_program,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._jax_version = jax_version
        self._attempt = attempt
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._examine, name="examiner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End soon; a trial that is under way is begun anew by the next registry."""
        self._closing.set()
        self._thread.join()

    def _examine(self) -> None:
        seen: int | None = None
        while True:
            try:
                if seen is None:
                    with self._database.write() as session:
                        Trials(session).forget(self._jax_version)
                # Whatever adds a program is a change, and asking for the latest costs nothing.
                with self._database.read() as session:
                    latest = Changes(session).latest()
                if latest != seen:
                    self._catch_up()
                    seen = latest
            except (StorageUnavailable, StorageFull) as error:
                _log.warning("cannot try programs now", reason=str(error))
            except Exception:
                _log.exception("looking for programs to try failed")
            if self._closing.wait(_INTERVAL):
                return

    def _catch_up(self) -> None:
        while not self._closing.is_set():
            with self._database.read() as session:
                untried = Trials(session).next()
            if untried is None:
                return
            began = time.monotonic()
            trial = replace(self._try(untried), jax_version=self._jax_version)
            if self._closing.is_set():
                return
            with self._database.write() as session:
                Trials(session).add(untried.blob.digest, trial)
            _log.info(
                "tried a program",
                digest=untried.blob.digest,
                outcome=trial.outcome,
                reason=trial.reason,
                seconds=round(time.monotonic() - began, 3),
            )

    def _try(self, untried: Untried) -> Trial:
        reason = obstacle(untried.program, untried.blob.size, _LIMITS)
        if reason:
            return Trial("impossible", reason)
        try:
            with program_file(self._blobs, untried.blob) as file:
                return self._attempt(file, untried.program, limits=_LIMITS, cancelled=self._closing)
        except (StorageUnavailable, StorageFull):
            raise
        except BlobNotFound as error:  # it was collected meanwhile, and nothing will be kept
            return Trial("impossible", str(error))
        except Exception:
            # Kept as well, or it would be tried again and again, and nothing else.
            _log.exception("trying a program failed", digest=untried.blob.digest)
            return Trial("impossible", "the registry's log tells why")
