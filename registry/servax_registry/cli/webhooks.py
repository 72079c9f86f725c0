"""webhook: whom a registry tells of changes."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import click

from servax_registry.cli.parameters import database_option, json_option, opened
from servax_registry.cli.tables import print_json, print_table
from servax_registry.store.changes import Changes
from servax_registry.store.webhooks import Webhooks

# What the columns of the database take, and what can be guessed.
_MOST_URL = 2048
_LEAST_SECRET, _MOST_SECRET = 16, 256


@click.group()
def webhook() -> None:
    """Tell other services, by signed HTTP requests, of everything that changes.

    The registries that serve the database do so.
    """


@webhook.command()
@click.argument("address", metavar="URL")
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help=f"What requests are signed with, {_LEAST_SECRET} to {_MOST_SECRET} characters.",
)
@database_option
def add(address: str, secret_file: Path, url: str) -> None:
    """Tell URL of what changes from now on.

    A URL that is there already gets another secret, and is told at once what it missed.
    """
    _check(address)
    secret = _read(secret_file)
    with opened(url) as database, database.write() as session:
        Webhooks(session).put(address, secret, datetime.now(UTC))
    click.echo(f"{address} is told of changes")


@webhook.command()
@database_option
@json_option
def ls(url: str, as_json: bool) -> None:
    """List the webhooks, how far each was told, and what went wrong."""
    with opened(url) as database, database.read() as session:
        webhooks, latest = Webhooks(session).all(), Changes(session).latest()
    if as_json:
        print_json(
            [
                {
                    "url": each.url,
                    "revision": each.revision,
                    "latest": latest,
                    "failures": each.failures,
                    "next_time": each.next_time.isoformat(),
                    "problem": each.problem,
                }
                for each in webhooks
            ]
        )
        return
    print_table(
        ["url", "told up to", "of", "failures", "next attempt", "problem"],
        [
            (
                each.url,
                each.revision,
                latest,
                each.failures,
                f"{each.next_time.astimezone():%Y-%m-%d %H:%M:%S}" if each.failures else "",
                each.problem,
            )
            for each in webhooks
        ],
    )


@webhook.command()
@click.argument("address", metavar="URL")
@database_option
def rm(address: str, url: str) -> None:
    """Tell URL of nothing any more."""
    with opened(url) as database, database.write() as session:
        if not Webhooks(session).delete(address):
            there = ", ".join(each.url for each in Webhooks(session).all()) or "none"
            raise click.ClickException(f"{address} is no webhook; there is: {there}")
    click.echo(f"{address} is told of nothing any more")


def _check(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise click.UsageError(
            f"{address!r} is no address of a webhook; give https://HOST/PATH, without a password"
        )
    if len(address) > _MOST_URL or not address.isprintable():
        raise click.UsageError(f"the URL must be at most {_MOST_URL} printable characters")


def _read(file: Path) -> str:
    try:
        secret = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read {str(file)!r}: {error}") from error
    if not _LEAST_SECRET <= len(secret) <= _MOST_SECRET:
        raise click.ClickException(
            f"{str(file)!r} has {len(secret)} characters; a secret has {_LEAST_SECRET} to "
            f"{_MOST_SECRET}, such as those of: openssl rand -hex 32"
        )
    return secret


COMMANDS = (webhook,)
