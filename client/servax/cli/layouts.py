"""The commands that carry versions from registry to registry."""

import click

from servax.cli import documents, tables
from servax.cli.parameters import REFERENCE, actor_option, output_options, registry_option
from servax.client import Client
from servax.reference import ModelReference


@click.command()
@click.argument("references", type=REFERENCE, nargs=-1, required=True, metavar="REFERENCE...")
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False),
    required=True,
    help="Where the versions go; those that are there stay.",
)
@registry_option
@output_options
def export(
    references: tuple[ModelReference, ...],
    output: str,
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Write the versions REFERENCE... into a directory, an OCI image layout.

    `servax import` publishes them in another registry. A broken export is continued when the
    command is repeated.
    """
    with Client(registry=registry, timeout=timeout) as client, tables.progress_bars() as report:
        versions = client.export_versions(references, output, progress=report)
    if as_json:
        tables.print_json([documents.version(version) for version in versions])
    else:
        for version in versions:
            click.echo(f"{version.model}:{version.number} is in {output}")


@click.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--aliases", is_flag=True, help="Let the aliases that they had point to them.")
@registry_option
@actor_option
@output_options
def import_(
    directory: str,
    aliases: bool,
    registry: str,
    actor: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Publish the versions that `servax export` wrote into DIRECTORY.

    Each gets the next number of its model. Importing once more publishes nothing twice.
    """
    with (
        Client(registry=registry, timeout=timeout, actor=actor) as client,
        tables.progress_bars() as report,
    ):
        versions = client.import_versions(directory, aliases=aliases, progress=report)
    if as_json:
        tables.print_json({name: documents.version(each) for name, each in versions.items()})
    else:
        for name, version in versions.items():
            click.echo(f"{name} is {version.model}:{version.number}")


COMMANDS = (export, import_)
