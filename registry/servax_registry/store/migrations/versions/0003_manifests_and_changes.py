"""Manifests: golden examples, batching, encodings, trials, soft deletion; changes and webhooks."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
TIME = sa.DateTime(timezone=True)

_WRITTEN_IN = (
    "stablehlo_version",
    "serialization_version",
    "calling_convention_version",
    "jax_version",
)


def upgrade() -> None:
    for column in (
        sa.Column("creator", sa.String(256), nullable=False, server_default=""),
        sa.Column("source_revision", sa.String(1024), nullable=False, server_default=""),
        sa.Column("copied_model", sa.String(128), nullable=True),
        sa.Column("copied_number", BIG, nullable=True),
        sa.Column("delete_time", TIME, nullable=True),
    ):
        op.add_column("versions", column)
    op.create_index(op.f("ix_versions_delete_time"), "versions", ["delete_time"])
    op.add_column("signatures", sa.Column("batching", sa.JSON(), nullable=True))
    op.add_column(
        "inspections", sa.Column("written_in", sa.Text(), nullable=False, server_default="")
    )
    op.create_index(op.f("ix_inspections_written_in"), "inspections", ["written_in"])
    op.add_column(
        "inspections", sa.Column("platforms", sa.Text(), nullable=False, server_default="")
    )
    _fill_inspections()
    op.create_index("ix_labels_key_value", "labels", ["key", "value"])
    op.create_table(
        "trials",
        sa.Column("id", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("trial", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_trials_blob_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("blob_id", name=op.f("uq_trials_blob_id")),
    )
    op.create_table(
        "golden_examples",
        sa.Column("id", BIG, nullable=False),
        sa.Column("signature_id", BIG, nullable=False),
        sa.Column("blob_id", BIG, nullable=False),
        sa.Column("rtol", sa.Double(), nullable=False),
        sa.Column("atol", sa.Double(), nullable=False),
        sa.Column("tensors", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["signature_id"],
            ["signatures.id"],
            name=op.f("fk_golden_examples_signature_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_golden_examples_blob_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_golden_examples")),
        sa.UniqueConstraint("signature_id", name=op.f("uq_golden_examples_signature_id")),
    )
    op.create_index(op.f("ix_golden_examples_blob_id"), "golden_examples", ["blob_id"])
    op.create_table(
        "encodings",
        sa.Column("id", BIG, nullable=False),
        sa.Column("signature_id", BIG, nullable=False),
        sa.Column("inspection_id", BIG, nullable=False),
        sa.Column("create_time", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["signature_id"],
            ["signatures.id"],
            name=op.f("fk_encodings_signature_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["inspection_id"], ["inspections.id"], name=op.f("fk_encodings_inspection_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_encodings")),
        sa.UniqueConstraint(
            "signature_id", "inspection_id", name=op.f("uq_encodings_signature_id_inspection_id")
        ),
    )
    op.create_index(op.f("ix_encodings_inspection_id"), "encodings", ["inspection_id"])
    op.create_table(
        "changes",
        sa.Column("id", BIG, nullable=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("actor", sa.String(256), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("alias", NAME, nullable=False),
        sa.Column("previous_version", BIG, nullable=False),
        sa.Column("detail", sa.String(1024), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_changes_model_id", "changes", ["model", "id"])
    op.create_table(
        "webhooks",
        sa.Column("id", BIG, nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("secret", sa.String(256), nullable=False),
        sa.Column("revision", BIG, nullable=False),
        sa.Column("failures", BIG, nullable=False),
        sa.Column("next_time", TIME, nullable=False),
        sa.Column("problem", sa.String(1024), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
        sa.UniqueConstraint("url", name=op.f("uq_webhooks_url")),
    )


def _fill_inspections() -> None:
    inspections = sa.table(
        "inspections",
        sa.column("id", BIG),
        sa.column("program", sa.JSON()),
        sa.column("written_in", sa.Text()),
        sa.column("platforms", sa.Text()),
    )
    connection = op.get_bind()
    for key, program in connection.execute(sa.select(inspections.c.id, inspections.c.program)):
        program = json.loads(program) if isinstance(program, str) else program
        connection.execute(
            inspections.update()
            .where(inspections.c.id == key)
            .values(
                written_in="/".join(str(program[name]) for name in _WRITTEN_IN),
                platforms=f",{','.join(program['platforms'])},",
            )
        )


def downgrade() -> None:
    for table in ("webhooks", "changes", "encodings", "golden_examples", "trials"):
        op.drop_table(table)
    op.drop_index("ix_labels_key_value", "labels")
    op.drop_column("inspections", "platforms")
    op.drop_index(op.f("ix_inspections_written_in"), "inspections")
    op.drop_column("inspections", "written_in")
    op.drop_column("signatures", "batching")
    op.drop_index(op.f("ix_versions_delete_time"), "versions")
    for name in ("delete_time", "copied_number", "copied_model", "source_revision", "creator"):
        op.drop_column("versions", name)
