"""What came of trying programs: every query on that, within the caller's unit of work."""

from dataclasses import dataclass

from sqlalchemy import JSON, delete, exists, or_, select, type_coerce
from sqlalchemy.orm import Session, joinedload

from servax_registry.artifact import Blob, Program, Trial
from servax_registry.store.models import (
    BlobRow,
    EncodingRow,
    InspectionRow,
    SignatureRow,
    TrialRow,
)


@dataclass(frozen=True)
class Untried:
    """A program that waits for being tried."""

    blob: Blob
    program: Program


class Trials:
    """A repository over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def next(self) -> Untried | None:
        """Give the newest program of a version, or encoding of one, that was not tried yet."""
        used = or_(
            exists().where(SignatureRow.inspection_id == InspectionRow.id),
            exists().where(EncodingRow.inspection_id == InspectionRow.id),
        )
        tried = exists().where(TrialRow.blob_id == InspectionRow.blob_id)
        row = self._session.scalar(
            select(InspectionRow)
            .where(used, ~tried)
            .order_by(InspectionRow.id.desc())
            .limit(1)
            .options(joinedload(InspectionRow.blob))
        )
        if row is None:
            return None
        assert row.blob.digest is not None, "a blob that a version names is never discarded"
        return Untried(Blob(row.blob.digest, row.blob.size), row.program)

    def add(self, digest: str, trial: Trial) -> None:
        """Keep a trial, unless the program was tried by another registry or collected meanwhile."""
        tried = exists().where(TrialRow.blob_id == BlobRow.id)
        key = self._session.scalar(select(BlobRow.id).where(BlobRow.digest == digest, ~tried))
        if key is not None:
            self._session.add(TrialRow(blob_id=key, trial=trial))

    def forget(self, jax_version: str) -> None:
        """Drop what did not pass with another release of JAX than this one."""
        trial = type_coerce(TrialRow.trial, JSON)
        self._session.execute(
            delete(TrialRow).where(
                trial["outcome"].as_string() != "passed",
                trial["jax_version"].as_string() != jax_version,
            )
        )
