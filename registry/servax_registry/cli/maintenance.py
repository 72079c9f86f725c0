"""gc: what frees room."""

from datetime import timedelta

import click
from rich.filesize import decimal

from servax_registry.cli.parameters import blobs_option, database_option, json_option, opened
from servax_registry.cli.tables import print_json, print_table
from servax_registry.store.blobs import BlobStore
from servax_registry.store.collection import Collected, Collector


@click.command()
@database_option
@blobs_option
@click.option("--dry-run", is_flag=True, help="Only tell what there is to collect.")
@click.option(
    "--retention",
    default=30.0,
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="For how long a deleted version can be undeleted.",
)
@click.option(
    "--grace",
    default=24.0,
    type=click.FloatRange(min=0),
    metavar="HOURS",
    help="For how long a blob that no version needs is kept after a publisher sent it, or was told "
    "that it is stored.",
)
@json_option
def gc(
    url: str,
    blobs_url: str | None,
    dry_run: bool,
    retention: float,
    grace: float,
    as_json: bool,
) -> None:
    """Collect versions that were deleted long ago, and blobs that no version needs.

    Safe beside registries that serve.
    """
    with opened(url) as database:
        collector = Collector(
            database,
            BlobStore(database, blobs_url),
            retention=timedelta(days=retention),
            grace=timedelta(hours=grace),
        )
        collected = collector.measure() if dry_run else collector.collect()
    if as_json:
        print_json(_document(collected, dry_run))
        return
    versions = [(f"{version.model}:{version.number}",) for version in collected.versions]
    if versions:
        print_table(["version"], versions)
    print_table(
        ["to free" if dry_run else "freed", "count", "size"],
        [
            ("versions", len(versions), ""),
            ("blobs", collected.blobs, decimal(collected.size)),
        ],
    )


def _document(collected: Collected, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "versions": [
            {"model": version.model, "version": version.number} for version in collected.versions
        ],
        "blobs": collected.blobs,
        "bytes": collected.size,
    }


COMMANDS = (gc,)
