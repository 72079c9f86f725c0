"""Blobs outside of the database; names in the order of their characters in PostgreSQL."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NAMES = (("models", "name"), ("signatures", "name"), ("labels", "key"), ("aliases", "name"))


def upgrade() -> None:
    # Not in a batch: that rebuilds the table in SQLite, and dropping the old one deletes, by
    # cascade, the chunks of every blob.
    op.add_column("blobs", sa.Column("folder", sa.String(length=128), nullable=True))
    op.create_table(
        "segments",
        sa.Column("id", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("size", BIG, nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["blob_id"], ["blobs.id"], name=op.f("fk_segments_blob_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint("blob_id", "position", name=op.f("uq_segments_blob_id_position")),
    )
    if op.get_bind().dialect.name == "postgresql":
        for table, column in NAMES:
            op.alter_column(table, column, type_=sa.String(length=128, collation="C"))
        # Weights do not compress; trying costs more than writing them.
        op.execute("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTENDED")
        for table, column in NAMES:
            op.alter_column(table, column, type_=sa.String(length=128, collation="default"))
    op.drop_table("segments")
    op.drop_column("blobs", "folder")
