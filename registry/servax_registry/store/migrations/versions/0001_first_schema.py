"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("id", BIG, nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.Column("size", BIG, nullable=False),
        sa.Column("committed_size", BIG, nullable=False),
        sa.Column("update_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("complete_time", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "digest LIKE 'sha256:%' AND length(digest) = 71", name=op.f("ck_blobs_digest_form")
        ),
        sa.CheckConstraint(
            "committed_size >= 0 AND committed_size <= size", name=op.f("ck_blobs_committed_size")
        ),
        sa.CheckConstraint(
            "complete_time IS NULL OR committed_size = size", name=op.f("ck_blobs_complete")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blobs")),
        sa.UniqueConstraint("digest", name=op.f("uq_blobs_digest")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "models",
        sa.Column("id", BIG, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("last_number", BIG, nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("last_number >= 0", name=op.f("ck_models_last_number")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_table(
        "chunks",
        sa.Column("id", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["blob_id"], ["blobs.id"], name=op.f("fk_chunks_blob_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint("blob_id", "position", name=op.f("uq_chunks_blob_id_position")),
    )
    op.create_table(
        "inspections",
        sa.Column("id", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("reader_version", BIG, nullable=False),
        sa.Column("program", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_inspections_blob_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inspections")),
        sa.UniqueConstraint(
            "blob_id", "reader_version", name=op.f("uq_inspections_blob_id_reader_version")
        ),
    )
    op.create_table(
        "versions",
        sa.Column("id", BIG, nullable=False),
        sa.Column("model_id", BIG, nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("ck_versions_number")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_versions_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_versions_model_id_number")),
        sa.UniqueConstraint("request_id", name=op.f("uq_versions_request_id")),
    )
    op.create_table(
        "aliases",
        sa.Column("id", BIG, nullable=False),
        sa.Column("model_id", BIG, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id", "number"],
            ["versions.model_id", "versions.number"],
            name=op.f("fk_aliases_model_id_number"),
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_aliases_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aliases")),
        sa.UniqueConstraint("model_id", "name", name=op.f("uq_aliases_model_id_name")),
    )
    op.create_table(
        "labels",
        sa.Column("id", BIG, nullable=False),
        sa.Column("version_id", BIG, nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("value", sa.String(length=1024), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_labels_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
        sa.UniqueConstraint("version_id", "key", name=op.f("uq_labels_version_id_key")),
    )
    op.create_table(
        "shards",
        sa.Column("id", BIG, nullable=False),
        sa.Column("version_id", BIG, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("tensors", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_shards_blob_id")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_shards_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
        sa.UniqueConstraint("version_id", "position", name=op.f("uq_shards_version_id_position")),
    )
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_shards_blob_id"), ["blob_id"], unique=False)

    op.create_table(
        "signatures",
        sa.Column("id", BIG, nullable=False),
        sa.Column("version_id", BIG, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("inspection_id", BIG, nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("outputs", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["inspection_id"], ["inspections.id"], name=op.f("fk_signatures_inspection_id")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
            name=op.f("fk_signatures_version_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signatures")),
        sa.UniqueConstraint("version_id", "name", name=op.f("uq_signatures_version_id_name")),
        sa.UniqueConstraint(
            "version_id", "position", name=op.f("uq_signatures_version_id_position")
        ),
    )
    with op.batch_alter_table("signatures", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_signatures_inspection_id"), ["inspection_id"], unique=False
        )


def downgrade() -> None:
    for table in (
        "signatures",
        "shards",
        "labels",
        "aliases",
        "versions",
        "inspections",
        "chunks",
        "models",
        "blobs",
    ):
        op.drop_table(table)
