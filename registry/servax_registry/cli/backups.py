"""backup and restore."""

from contextlib import closing
from pathlib import Path

import click
from rich.filesize import decimal
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from servax_registry.cli.maintenance import print_check
from servax_registry.cli.parameters import blobs_option, database_option, failing, json_option
from servax_registry.cli.tables import progress_bar
from servax_registry.store import backup as copies
from servax_registry.store.checking import Check
from servax_registry.store.database import Database


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@database_option
@click.option(
    "--metadata-only",
    is_flag=True,
    help="Back up the database although blobs lie outside of it.",
)
def backup(file: Path, url: str, metadata_only: bool) -> None:
    """Copy a SQLite registry, as it is now, into FILE, beside whoever serves it.

    FILE appears, or is replaced, once the copy is whole.
    """
    source = _file(url, "pg_dump --format=custom --file=FILE URL")
    if file.exists() and source.exists() and file.samefile(source):
        raise click.UsageError(f"{file} is the database itself; name another file")
    with failing():
        outside = copies.blobs_outside(source)
        if outside and not metadata_only:
            raise click.ClickException(
                f"{outside} blobs lie outside of the database, and would not be in {file}: give "
                "--metadata-only, and copy the directory or bucket afterwards"
            )
        part = _part(file)
        with progress_bar("backup") as report:
            copies.copy(source, part, report)
        copies.publish(part, file)
    without = f"; {outside} blobs are not in it" if outside else ""
    click.echo(f"{file} has {decimal(file.stat().st_size)}{without}")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@database_option
@blobs_option
@json_option
def restore(file: Path, url: str, blobs_url: str | None, as_json: bool) -> None:
    """Make a new SQLite database out of the backup FILE.

    It appears once a check has found nothing wrong with it.
    """
    target = _file(url, "pg_restore --dbname=URL FILE")
    for path in (target, target.with_name(f"{target.name}-wal")):
        if path.exists():
            raise click.ClickException(f"{path} exists; restore into a new database")
    part = _part(target)
    try:
        with failing():
            copies.blobs_outside(file)
            with progress_bar("restore") as report:
                copies.copy(file, part, report)
            sound = _is_sound(part, blobs_url, as_json=as_json)
            if not sound:
                raise click.ClickException(f"nothing was restored: {file} is damaged")
            copies.fold(part)
            copies.publish(part, target)
    finally:
        for path in (part, part.with_name(f"{part.name}-wal"), part.with_name(f"{part.name}-shm")):
            path.unlink(missing_ok=True)
    if not as_json:
        click.echo(f"{file} is restored to {target}")


def _is_sound(file: Path, blobs_url: str | None, *, as_json: bool) -> bool:
    """Bring a copy's schema up to date, and check it."""
    url = URL.create("sqlite", database=str(file)).render_as_string()
    with closing(Database(url)) as database, progress_bar("check") as report:
        database.migrate()
        check = Check(database, blobs_url, report)
        problems = list(check.run())
    return print_check(check, problems, as_json=as_json)


def _file(url: str, instead: str) -> Path:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise click.UsageError(f"--db {url!r} is no database URL: {error}") from error
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise click.UsageError(
            f"--db {parsed.render_as_string()} is no SQLite file; PostgreSQL has its own tools: "
            f"{instead}"
        )
    return Path(parsed.database)


def _part(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


COMMANDS = (backup, restore)
