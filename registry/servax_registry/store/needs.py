"""Which version needs which blob."""

from servax_registry.store.models import (
    BlobRow,
    EncodingRow,
    GoldenRow,
    InspectionRow,
    ShardRow,
    SignatureRow,
    VersionRow,
)

NEEDS = (
    (ShardRow.version_id == VersionRow.id, ShardRow.blob_id == BlobRow.id),
    (
        SignatureRow.version_id == VersionRow.id,
        SignatureRow.inspection_id == InspectionRow.id,
        InspectionRow.blob_id == BlobRow.id,
    ),
    (
        SignatureRow.version_id == VersionRow.id,
        EncodingRow.signature_id == SignatureRow.id,
        EncodingRow.inspection_id == InspectionRow.id,
        InspectionRow.blob_id == BlobRow.id,
    ),
    (
        SignatureRow.version_id == VersionRow.id,
        GoldenRow.signature_id == SignatureRow.id,
        GoldenRow.blob_id == BlobRow.id,
    ),
)
"""Conditions, each of which joins versions with the blobs that they need in one way."""
