"""Webhooks, and how far each was told: every query on that, within the caller's unit of work."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from servax_registry.store.changes import Changes
from servax_registry.store.models import ChangeRow, WebhookRow


@dataclass(frozen=True)
class Webhook:
    """An address that is told of changes, signed with `secret`.

    It was told of all changes up to `revision`. `failures` attempts in a row did not succeed, the
    last one because of `problem`. Nobody is to ask it before `next_time`.
    """

    key: int
    url: str
    secret: str
    revision: int
    failures: int
    next_time: datetime
    problem: str


class Webhooks:
    """A repository over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, url: str, secret: str, now: datetime) -> None:
        """Add a webhook, to be told of what changes from now on.

        One that is there already gets another secret, and is told at once what it missed.
        """
        known = self._session.scalar(
            update(WebhookRow)
            .where(WebhookRow.url == url)
            .values(secret=secret, failures=0, next_time=now, problem="")
            .returning(WebhookRow.id)
        )
        if known is None:
            row = WebhookRow(url=url, secret=secret, failures=0, next_time=now, problem="")
            row.revision = Changes(self._session).latest()
            self._session.add(row)

    def delete(self, url: str) -> bool:
        """Delete a webhook; False where there is none of this URL."""
        gone = delete(WebhookRow).where(WebhookRow.url == url).returning(WebhookRow.id)
        return self._session.scalar(gone) is not None

    def all(self) -> Sequence[Webhook]:
        """Give all of them, by URL."""
        query = select(WebhookRow).order_by(WebhookRow.url)
        return [_webhook(row) for row in self._session.scalars(query)]

    def due(self, now: datetime) -> Sequence[int]:
        """Give the keys of those that have something to be told, and may be told it."""
        latest = select(func.max(ChangeRow.id)).scalar_subquery()
        return self._session.scalars(
            select(WebhookRow.id).where(WebhookRow.revision < latest, WebhookRow.next_time <= now)
        ).all()

    def claim(self, key: int, now: datetime, until: datetime) -> Webhook | None:
        """Keep everybody else from telling it until then; None where somebody else was faster."""
        row = self._session.scalar(
            update(WebhookRow)
            .where(WebhookRow.id == key, WebhookRow.next_time <= now)
            .values(next_time=until)
            .returning(WebhookRow)
        )
        return _webhook(row) if row else None

    def told(self, claimed: Webhook, revision: int, now: datetime) -> None:
        """Note that it was told of all changes up to `revision`."""
        self._settle(claimed, revision=revision, failures=0, next_time=now, problem="")

    def failed(self, claimed: Webhook, problem: str, next_time: datetime) -> None:
        """Note that it could not be told, and when to try again."""
        self._settle(
            claimed, failures=claimed.failures + 1, next_time=next_time, problem=problem[:1024]
        )

    def release(self, claimed: Webhook, now: datetime) -> None:
        """Let others tell it."""
        self._settle(claimed, next_time=now)

    def _settle(self, claimed: Webhook, **values: object) -> None:
        # Not where the claim ran out and somebody else has made one, or where the webhook is gone.
        self._session.execute(
            update(WebhookRow)
            .where(WebhookRow.id == claimed.key, WebhookRow.next_time == claimed.next_time)
            .values(**values)
        )


def _webhook(row: WebhookRow) -> Webhook:
    return Webhook(
        row.id, row.url, row.secret, row.revision, row.failures, row.next_time, row.problem
    )
