"""What was read out of programs: every query on that, within the caller's unit of work."""

from collections.abc import Sequence

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from servax_registry.artifact import Program
from servax_registry.errors import BlobNotFound
from servax_registry.store.models import BlobRow, InspectionRow


class Inspections:
    """A repository over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, digest: str, reader_version: int) -> Program | None:
        """Get what this version of the reader found in a program."""
        return self._session.scalar(
            select(InspectionRow.program)
            .join(InspectionRow.blob)
            .where(BlobRow.digest == digest, InspectionRow.reader_version == reader_version)
        )

    def add(self, digest: str, reader_version: int, program: Program) -> None:
        """Keep what this version of the reader found in a program, unless it is kept already.

        Raises BlobNotFound where the blob was collected meanwhile.
        """
        if self.get(digest, reader_version) is not None:
            return
        blob_id = self._session.scalar(select(BlobRow.id).where(BlobRow.digest == digest))
        if blob_id is None:
            raise BlobNotFound(f"blob {digest} was collected meanwhile")
        self._session.execute(
            insert(InspectionRow).values(
                blob_id=blob_id,
                reader_version=reader_version,
                program=program,
                written_in=str(program.written_in),
                platforms=f",{','.join(program.platforms)},",
            )
        )

    def written_in(self) -> Sequence[str]:
        """Give all that programs were written in; see InspectionRow."""
        return self._session.scalars(select(InspectionRow.written_in).distinct()).all()
