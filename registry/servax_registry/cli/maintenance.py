"""gc and check: what frees room, and what finds damage."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

import click
from rich.filesize import decimal

from servax_registry.cli.parameters import blobs_option, database_option, json_option, opened
from servax_registry.cli.tables import print_json, print_table, progress_bar
from servax_registry.store.blobs import BlobStore
from servax_registry.store.checking import Check, Problem
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


@click.command()
@database_option
@blobs_option
@json_option
def check(url: str, blobs_url: str | None, as_json: bool) -> None:
    """Check that every blob has its digest, and that everything is there that should be.

    Reads all blobs, repairs nothing, and is safe beside registries that serve. Exit codes: 0
    nothing is wrong, 1 something is.
    """
    with opened(url) as database, progress_bar("check") as report:
        checking = Check(database, blobs_url, report)
        problems = list(checking.run())
    if not print_check(checking, problems, as_json=as_json):
        sys.exit(1)


def print_check(checking: Check, problems: Sequence[Problem], *, as_json: bool) -> bool:
    """Print what a check found; tell whether nothing worse than harmless is wrong."""
    if as_json:
        print_json(
            {
                "blobs": checking.count,
                "bytes": checking.bytes,
                "problems": [asdict(problem) for problem in problems],
            }
        )
    else:
        if problems:
            rows = [(each.what, each.problem, each.remedy) for each in problems]
            print_table(["what", "problem", "remedy"], rows)
        click.echo(
            f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}; {checking.count} blobs "
            f"({decimal(checking.bytes)}) were read"
        )
    return all(problem.harmless for problem in problems)


COMMANDS = (gc, check)
