"""What an operator can set."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Settings:
    """The settings of one registry process.

    `database` is a SQLAlchemy URL, such as sqlite:////var/lib/servax/registry.db. `listen` is
    HOST:PORT, where port 0 takes any free one. `grace` is how many seconds a stopping registry
    gives the calls in flight. `max_transfers` bounds how many blobs are read and written at once.
    `blobs` is the URL of a directory or bucket for new blobs, such as s3://BUCKET/PREFIX or
    file:///var/lib/servax/blobs; None keeps them in the database. `upload_expiry` is how long an
    upload may stand still before it is discarded. `allowed_custom_calls` are targets that programs
    may call beyond those that JAX keeps stable, because every worker has them. `trials` says
    whether programs are tried in the background, which takes JAX.
    """

    database: str = "sqlite:///registry.db"
    listen: str = "127.0.0.1:8400"
    grace: float = 30.0
    max_transfers: int = 64
    blobs: str | None = None
    upload_expiry: timedelta = timedelta(days=7)
    allowed_custom_calls: frozenset[str] = frozenset()
    trials: bool = False
