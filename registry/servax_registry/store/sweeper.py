"""Deletes, in the background, what nobody will ever ask for again."""

import threading
from datetime import timedelta

import structlog

from servax_registry.errors import StorageUnavailable
from servax_registry.store.blobs import BlobStore

# How many seconds pass between two sweeps.
_INTERVAL = 3600.0

_log = structlog.get_logger(__name__)


class Sweeper:
    """Expires abandoned uploads and deletes what was discarded: at once, and then every hour.

    Every registry process has one; several on one database do not get in each other's way.
    """

    def __init__(self, blobs: BlobStore, upload_expiry: timedelta) -> None:
        self._blobs = blobs
        self._upload_expiry = upload_expiry
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let it finish what it is deleting, and end."""
        self._closing.set()
        self._thread.join()

    def _sweep(self) -> None:
        while True:
            try:
                self._blobs.expire(self._upload_expiry)
            except StorageUnavailable as error:
                _log.warning("cannot sweep now", reason=str(error))
            except Exception:
                _log.exception("sweeping failed")
            if self._closing.wait(_INTERVAL):
                return
