"""The commands that look things up in the registry."""

from datetime import date, datetime
from pathlib import Path

import click

from servax.cli import details, documents, inputs, tables
from servax.cli.parameters import DAY, PAIR, REFERENCE, output_options, registry_option
from servax.client import Client
from servax.hlo import stablehlo_text
from servax.reference import ModelReference
from servax.types import DEFAULT_SIGNATURE, Version


@click.command()
@click.argument("name", required=False)
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    type=PAIR,
    multiple=True,
    help="Only versions with this label; may be repeated.",
)
@click.option("--platform", help="Only versions for this platform, such as cuda.")
@click.option("--since", type=click.DateTime(), help="Only versions published then or later.")
@click.option("--before", type=click.DateTime(), help="Only versions published before.")
@click.option(
    "--expiring",
    metavar="WITHIN",
    type=DAY,
    help="Only versions that expire within that time, as in 60d, 8w or 6m, or before a day.",
)
@click.option("--deleted", is_flag=True, help="Deleted versions too.")
@registry_option
@output_options
def ls(
    name: str | None,
    labels: tuple[tuple[str, str], ...],
    platform: str | None,
    since: datetime | None,
    before: datetime | None,
    expiring: date | None,
    deleted: bool,
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """List the models, or the versions of the model NAME, newest first.

    With a condition, list the versions of all models, or of NAME, that meet it.
    """
    versions_wanted = any((name, labels, platform, since, before, expiring, deleted))
    with Client(registry=registry, timeout=timeout) as client:
        if not versions_wanted:
            models = list(client.models())
            if as_json:
                tables.print_json([documents.model(model) for model in models])
            else:
                tables.print_models(models)
        else:
            versions = list(
                client.versions(
                    name,
                    labels=dict(labels),
                    platform=platform,
                    created_from=since,
                    created_before=before,
                    expiring_before=expiring,
                    deleted=deleted,
                )
            )
            if as_json:
                tables.print_json([documents.version(version) for version in versions])
            else:
                tables.print_versions(versions, with_model=name is None)


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option("--hlo", is_flag=True, help="Show the StableHLO of a program instead.")
@click.option(
    "--signature", default=DEFAULT_SIGNATURE, show_default=True, help="Which program's StableHLO."
)
@click.option(
    "--max-lines",
    metavar="LINES",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="How much of the StableHLO is printed.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all of the StableHLO to this file instead of printing it.",
)
@registry_option
@output_options
def show(
    reference: ModelReference,
    hlo: bool,
    signature: str,
    max_lines: int,
    output: Path | None,
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Show the version REFERENCE: its signatures, inputs, outputs and weights.

    With --hlo, show one of its programs as StableHLO, which takes JAX on this machine; constants of
    more than 16 elements are elided.
    """
    if output and not hlo:
        raise click.UsageError("--output is for --hlo")
    with Client(registry=registry, timeout=timeout) as client:
        version = client.version(reference)
        if hlo:
            found = inputs.named(version.signatures, signature, of=str(reference))
            text = stablehlo_text(client.read_blob(found.program), limit=None)
            _give_hlo(version, signature, text, max_lines, output, as_json=as_json)
            return
    if as_json:
        tables.print_json(documents.version(version))
    else:
        details.print_version(version)


def _give_hlo(
    version: Version,
    signature: str,
    text: str,
    max_lines: int,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    lines = text.splitlines()
    if output:
        output.write_text(text, encoding="utf-8")
    if as_json:
        tables.print_json(
            {
                "model": version.model,
                "version": version.number,
                "signature": signature,
                "lines": len(lines),
                "stablehlo": None if output else "\n".join(lines[:max_lines]),
                "file": str(output) if output else None,
            }
        )
    elif output:
        click.echo(f"{version.model}:{version.number} is in {output}, {len(lines)} lines")
    else:
        tables.print_lines(lines[:max_lines])
        if len(lines) > max_lines:
            click.echo(
                f"{len(lines) - max_lines} more lines; --max-lines shows more, -o FILE keeps all",
                err=True,
            )


@click.command()
@click.argument("reference", type=REFERENCE, required=False)
@click.option(
    "--since",
    metavar="REVISION",
    type=click.IntRange(min=0),
    default=0,
    help="Only what changed after this revision.",
)
@registry_option
@output_options
def log(
    reference: ModelReference | None, since: int, registry: str, as_json: bool, timeout: float
) -> None:
    """Tell who changed what: everywhere, of the model NAME, or where NAME@ALIAS pointed when."""
    name, number, alias = (
        (reference.name, reference.version, reference.alias) if reference else (None, None, None)
    )
    with Client(registry=registry, timeout=timeout) as client:
        changes = [
            change
            for change in client.changes(name, alias, since=since)
            if number in (None, change.version, change.previous_version)
        ]
    if as_json:
        tables.print_json([documents.change(change) for change in changes])
    else:
        tables.print_changes(changes)


COMMANDS = (ls, show, log)
