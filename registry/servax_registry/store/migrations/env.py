"""Runs the migrations on the connection that the caller put into the configuration."""

from alembic import context

from servax_registry.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
