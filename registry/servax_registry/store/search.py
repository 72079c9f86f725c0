"""Which versions a listing is of, as conditions on rows."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, exists, not_, select

from servax_registry.artifact import Selection
from servax_registry.store.models import (
    EncodingRow,
    InspectionRow,
    LabelRow,
    ModelRow,
    SignatureRow,
    VersionRow,
)


def conditions(selection: Selection, expiring: Collection[str]) -> list[ColumnElement[bool]]:
    """Give what must hold of a version, and of its model, to be selected.

    `expiring` are the `written_in` of inspections that expire before the selection's day.
    """
    found: list[ColumnElement[bool]] = []
    if selection.model:
        found.append(ModelRow.name == selection.model)
    if not selection.show_deleted:
        found.append(VersionRow.delete_time.is_(None))
    if selection.created_from is not None:
        found.append(VersionRow.create_time >= selection.created_from)
    if selection.created_before is not None:
        found.append(VersionRow.create_time < selection.created_before)
    for key, value in selection.labels.items():
        label = select(LabelRow.version_id).where(LabelRow.key == key, LabelRow.value == value)
        found.append(VersionRow.id.in_(label))
    if selection.platform:
        found.append(not_(_lacking(selection.platform)))
    if selection.expiring_before is not None:
        found.append(_expiring(expiring))
    return found


def _lacking(platform: str) -> ColumnElement[bool]:
    """Whether a signature was not lowered for a platform."""
    return (
        exists()
        .where(SignatureRow.version_id == VersionRow.id)
        .where(SignatureRow.inspection_id == InspectionRow.id)
        .where(not_(InspectionRow.platforms.contains(f",{platform},", autoescape=True)))
    )


def _expiring(expiring: Collection[str]) -> ColumnElement[bool]:
    """Whether a signature has no encoding that lasts."""
    lasting = (
        exists()
        .where(EncodingRow.signature_id == SignatureRow.id)
        .where(EncodingRow.inspection_id == InspectionRow.id)
        .where(InspectionRow.written_in.not_in(expiring))
        .correlate(SignatureRow)
    )
    own = select(InspectionRow.id).where(InspectionRow.written_in.in_(expiring))
    return (
        exists()
        .where(SignatureRow.version_id == VersionRow.id)
        .where(SignatureRow.inspection_id.in_(own))
        .where(not_(lasting))
    )
