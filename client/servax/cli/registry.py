"""The commands that speak to the registry."""

import sys
from itertools import chain

import click

from servax.cli import documents, tables
from servax.cli.parameters import FILE, PAIR, REFERENCE, output_options, registry_option
from servax.client import Client
from servax.reference import ModelReference
from servax.types import DEFAULT_SIGNATURE


@click.command()
@click.argument("name")
@click.argument("file", type=FILE)
@click.option("--signature", default=DEFAULT_SIGNATURE, show_default=True, help="FILE's name.")
@click.option(
    "--program",
    "programs",
    metavar="SIGNATURE=FILE",
    type=PAIR,
    multiple=True,
    help="Another program of the same version; may be repeated.",
)
@click.option(
    "--weights",
    metavar="FILE",
    type=FILE,
    multiple=True,
    help="A safetensors file with weights; may be repeated.",
)
@click.option(
    "--alias",
    "aliases",
    metavar="ALIAS",
    multiple=True,
    help="An alias that is to point to the new version; may be repeated.",
)
@click.option("--description", default="", help="Free text.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    type=PAIR,
    multiple=True,
    help="A label; may be repeated.",
)
@registry_option
@output_options
def push(
    name: str,
    file: str,
    signature: str,
    programs: tuple[tuple[str, str], ...],
    weights: tuple[str, ...],
    aliases: tuple[str, ...],
    description: str,
    labels: tuple[tuple[str, str], ...],
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Publish FILE, which jax.export serialized, as a new version of the model NAME.

    What the registry has already is not sent again; a broken upload is continued.
    """
    files: dict[str, str] = {}
    for key, path in chain([(signature, file)], programs):
        if key in files:
            raise click.UsageError(f"signature {key!r} is given twice")
        files[key] = path
    with Client(registry=registry, timeout=timeout) as client, tables.progress_bars() as report:
        version = client.push(
            name,
            files,
            weights=weights,
            aliases=aliases,
            description=description,
            labels=dict(labels),
            progress=report,
        )
    if as_json:
        tables.print_json(documents.version(version))
    else:
        tables.print_version(version)


@click.command()
@click.argument("name", required=False)
@registry_option
@output_options
def ls(name: str | None, registry: str, as_json: bool, timeout: float) -> None:
    """List the models, or the versions of the model NAME, newest first."""
    with Client(registry=registry, timeout=timeout) as client:
        if name is None:
            models = list(client.models())
            if as_json:
                tables.print_json([documents.model(model) for model in models])
            else:
                tables.print_models(models)
        else:
            versions = list(client.versions(name))
            if as_json:
                tables.print_json([documents.version(version) for version in versions])
            else:
                tables.print_versions(versions)


@click.command()
@click.argument("reference", type=REFERENCE)
@registry_option
@output_options
def show(reference: ModelReference, registry: str, as_json: bool, timeout: float) -> None:
    """Show the version REFERENCE: its signatures, inputs, outputs and weights."""
    with Client(registry=registry, timeout=timeout) as client:
        version = client.version(reference)
    if as_json:
        tables.print_json(documents.version(version))
    else:
        tables.print_version(version)


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    required=True,
    help="Where the program goes.",
)
@click.option(
    "--signature", default=DEFAULT_SIGNATURE, show_default=True, help="Which program to fetch."
)
@click.option(
    "--weights",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False),
    help="Fetch the weights too, into this directory.",
)
@registry_option
@output_options
def pull(
    reference: ModelReference,
    output: str,
    signature: str,
    weights: str | None,
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Fetch the program of the version REFERENCE; every byte is verified.

    A broken download is continued when the command is repeated.
    """
    with Client(registry=registry, timeout=timeout) as client, tables.progress_bars() as report:
        version = client.pull(
            reference, output, signature=signature, weights=weights, progress=report
        )
    if as_json:
        tables.print_json(documents.version(version))
    else:
        click.echo(f"{version.model}:{version.number} is in {output}")


@click.command()
@click.argument("name")
@click.argument("alias")
@click.argument("version", type=click.IntRange(min=1))
@click.option(
    "--expect",
    metavar="VERSION",
    type=click.IntRange(min=0),
    help="Only if ALIAS points there now; 0: only if it does not exist.",
)
@registry_option
@output_options
def alias(
    name: str,
    alias: str,
    version: int,
    expect: int | None,
    registry: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Point ALIAS of the model NAME to VERSION, wherever it pointed before."""
    with Client(registry=registry, timeout=timeout) as client:
        model = client.set_alias(name, alias, version, expected_version=expect)
    if as_json:
        tables.print_json(documents.model(model))
    else:
        click.echo(f"{name}@{alias} is {name}:{version}")


@click.command()
@click.argument("name")
@click.argument("alias")
@registry_option
@output_options
def unalias(name: str, alias: str, registry: str, as_json: bool, timeout: float) -> None:
    """Remove ALIAS of the model NAME; the version stays."""
    with Client(registry=registry, timeout=timeout) as client:
        model = client.delete_alias(name, alias)
    if as_json:
        tables.print_json(documents.model(model))
    else:
        click.echo(f"{name}@{alias} is gone")


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, as nobody is asked in a script.")
@registry_option
@output_options
def rm(reference: ModelReference, yes: bool, registry: str, as_json: bool, timeout: float) -> None:
    """Delete the version REFERENCE, which has to be NAME:VERSION."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {reference} for good?", abort=True, err=True)
    with Client(registry=registry, timeout=timeout) as client:
        client.delete_version(reference)
    if as_json:
        tables.print_json({"model": reference.name, "version": reference.version})
    else:
        click.echo(f"{reference} is gone")


COMMANDS = (push, ls, show, pull, alias, unalias, rm)
