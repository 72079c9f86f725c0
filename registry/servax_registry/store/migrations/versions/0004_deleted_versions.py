"""An index of deleted versions alone."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

DELETED = sa.text("delete_time IS NOT NULL")


def upgrade() -> None:
    op.drop_index("ix_versions_delete_time", "versions")
    op.create_index(
        "ix_versions_delete_time",
        "versions",
        ["delete_time"],
        sqlite_where=DELETED,
        postgresql_where=DELETED,
    )


def downgrade() -> None:
    op.drop_index("ix_versions_delete_time", "versions")
    op.create_index("ix_versions_delete_time", "versions", ["delete_time"])
