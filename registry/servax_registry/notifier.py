"""Tells webhooks of changes, in the background.

Every registry process has a notifier, and webhooks that are common to all: a claim in the database,
which runs out by itself, keeps two of them from telling the same one at the same time. What changed
is read from the record of changes, and how far a webhook was told is kept beside it, so nothing is
lost by restarts or outages; after some, a webhook may be told twice.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from servax_registry.artifact import Change
from servax_registry.errors import StorageFull, StorageUnavailable
from servax_registry.store.changes import Changes
from servax_registry.store.database import Database
from servax_registry.store.webhooks import Webhook, Webhooks

if TYPE_CHECKING:
    from servax_registry.delivery import Deliverer

# How many changes one request tells of.
_BATCH = 100

# How many seconds pass before changes that other processes made are noticed.
_INTERVAL = 2.0

# How long a claim lasts: longer than a webhook has to answer.
_CLAIM = timedelta(seconds=60)

# How many seconds pass after the first failure; each further one doubles that, up to the longest.
_PAUSE, _LONGEST_PAUSE = 1.0, 300.0

_log = structlog.get_logger(__name__)


class Notifier:
    """Tells webhooks of every change, from its making until it is closed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()
        database.observe(self._wake)

    def close(self) -> None:
        """Break off what is being told, and end."""
        self._closing = True
        self._wake()
        self._thread.join()

    def _wake(self, _: Sequence[Change] = ()) -> None:
        with suppress(RuntimeError):  # It is closed.
            self._loop.call_soon_threadsafe(self._woken.set)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._tell_all())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    async def _tell_all(self) -> None:
        deliverer: Deliverer | None = None
        telling: dict[int, asyncio.Task[None]] = {}
        async with AsyncExitStack() as stack:
            while not self._closing:
                for key in await self._due():
                    if key not in telling or telling[key].done():
                        deliverer = deliverer or await _open(stack)
                        telling[key] = asyncio.create_task(self._tell(key, deliverer))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _INTERVAL)
                self._woken.clear()
            for task in telling.values():
                task.cancel()
            await asyncio.gather(*telling.values(), return_exceptions=True)

    async def _due(self) -> Sequence[int]:
        def due() -> Sequence[int]:
            with self._database.read() as session:
                return Webhooks(session).due(datetime.now(UTC))

        try:
            return await asyncio.to_thread(due)
        except StorageUnavailable as error:
            _log.warning("cannot look for webhooks now", reason=str(error))
        except Exception:
            _log.exception("looking for webhooks failed")
        return ()

    async def _tell(self, key: int, deliverer: "Deliverer") -> None:
        """Tell a webhook of the next changes, unless somebody else does."""
        try:
            claimed, changes = await asyncio.to_thread(self._claim, key)
            if claimed is None:
                return
            try:
                problem = await deliverer.deliver(claimed.url, claimed.secret, changes)
            except asyncio.CancelledError:
                self._note(lambda webhooks: webhooks.release(claimed, datetime.now(UTC)))
                raise
            await asyncio.to_thread(self._settle, claimed, changes[-1].revision, problem)
        except (StorageUnavailable, StorageFull) as error:
            # The claim runs out, and the next one tells it once more.
            _log.warning("cannot note what a webhook was told", reason=str(error))
        except Exception:
            _log.exception("telling a webhook failed")
        else:
            self._woken.set()

    def _claim(self, key: int) -> tuple[Webhook | None, Sequence[Change]]:
        now = datetime.now(UTC)
        with self._database.write(durable=False, alone=False) as session:
            webhooks = Webhooks(session)
            claimed = webhooks.claim(key, now, now + _CLAIM)
            if claimed is None:
                return None, ()
            changes = Changes(session).since(claimed.revision, _BATCH).changes
            if not changes:  # Somebody else has told it of them just before.
                webhooks.release(claimed, now)
                return None, ()
            return claimed, changes

    def _settle(self, claimed: Webhook, revision: int, problem: str) -> None:
        now = datetime.now(UTC)
        if not problem:
            self._note(lambda webhooks: webhooks.told(claimed, revision, now))
            return
        pause = timedelta(seconds=min(_PAUSE * 2.0 ** min(claimed.failures, 30), _LONGEST_PAUSE))
        self._note(lambda webhooks: webhooks.failed(claimed, problem, now + pause))
        _log.warning(
            "a webhook was not told",
            host=urlsplit(claimed.url).netloc,  # what follows is secret, with some services
            failures=claimed.failures + 1,
            reason=problem,
        )

    def _note(self, note: Callable[[Webhooks], None]) -> None:
        with self._database.write(durable=False, alone=False) as session:
            note(Webhooks(session))


async def _open(stack: AsyncExitStack) -> "Deliverer":
    # Only registries that have webhooks pay for an HTTP client, with 20 MB.
    from servax_registry.delivery import Deliverer

    return await stack.enter_async_context(Deliverer())
