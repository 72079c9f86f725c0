"""What changed, in order: every query on that, within the caller's unit of work."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from servax_registry.artifact import Action, Change
from servax_registry.store.models import ChangeRow


@dataclass(frozen=True)
class Recent:
    """The changes behind a revision, and the one to go on behind; `more` are there already."""

    changes: tuple[Change, ...]
    revision: int
    more: bool


class Changes:
    """A repository over one session.

    Revisions rise in the order in which units of work commit, since those that write are `alone`:
    who has seen one has seen all before it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def record(
        self,
        actor: str,
        action: Action,
        model: str,
        version: int,
        *,
        alias: str = "",
        previous_version: int = 0,
        detail: str = "",
    ) -> None:
        """Note what this unit of work does; see Change."""
        row = ChangeRow(
            time=datetime.now(UTC),
            actor=actor,
            action=action.value,
            model=model,
            version=version,
            alias=alias,
            previous_version=previous_version,
            detail=detail,
        )
        self._session.add(row)
        # In the order of the calls, whatever else the session has to write.
        self._session.flush()
        # Those who observe the database are told once it is committed.
        self._session.info.setdefault("changes", []).append(_change(row))

    def since(self, revision: int, limit: int, model: str = "", alias: str = "") -> Recent:
        """Give at most `limit` changes of a higher revision, of one model and alias where named."""
        query = select(ChangeRow).where(ChangeRow.id > revision)
        if model:
            query = query.where(ChangeRow.model == model)
        if alias:
            query = query.where(ChangeRow.alias == alias)
        # What is not told because it does not fit the conditions need not be looked at again.
        latest = self.latest()
        rows = self._session.scalars(query.order_by(ChangeRow.id).limit(limit + 1)).all()
        more = len(rows) > limit
        changes = tuple(map(_change, rows[:limit]))
        return Recent(changes, changes[-1].revision if more else max(latest, revision), more)

    def latest(self) -> int:
        """Give the revision of the newest change; 0 without any."""
        return self._session.scalar(select(func.max(ChangeRow.id))) or 0


def _change(row: ChangeRow) -> Change:
    return Change(
        revision=row.id,
        time=row.time,
        actor=row.actor,
        action=Action(row.action),
        model=row.model,
        version=row.version,
        alias=row.alias,
        previous_version=row.previous_version,
        detail=row.detail,
    )
