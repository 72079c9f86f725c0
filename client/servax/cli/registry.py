"""The commands that change the registry, or fetch what it stores."""

import sys
from itertools import chain

import click

from servax import hlo
from servax.cli import details, documents, inputs, tables
from servax.cli.parameters import (
    BATCHING,
    FILE,
    PAIR,
    REFERENCE,
    actor_option,
    output_options,
    registry_option,
)
from servax.client import Client
from servax.reference import ModelReference
from servax.types import DEFAULT_SIGNATURE, Batching, Content, Golden, Version


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
@click.option(
    "--source-revision",
    metavar="TEXT",
    default="",
    help="What it was made from: a commit, a tag, the address of a run.",
)
@click.option(
    "--batching",
    metavar="SYMBOL[:ROWS]",
    type=BATCHING,
    help="FILE's rows, counted by dimension 0, do not influence each other: requests may be "
    "joined, up to ROWS. A number for SYMBOL where it is fixed.",
)
@click.option(
    "--golden",
    metavar="FILE",
    type=FILE,
    help="A safetensors file with inputs/NAME and outputs/NAME, which workers must reproduce.",
)
@click.option("--rtol", default=Golden.rtol, show_default=True, help="Of --golden, relative.")
@click.option("--atol", default=Golden.atol, show_default=True, help="Of --golden, absolute.")
@registry_option
@actor_option
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
    source_revision: str,
    batching: Batching | None,
    golden: str | None,
    rtol: float,
    atol: float,
    registry: str,
    actor: str | None,
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
    with (
        Client(registry=registry, timeout=timeout, actor=actor) as client,
        tables.progress_bars() as report,
    ):
        version = client.push(
            name,
            files,
            weights=weights,
            aliases=aliases,
            description=description,
            labels=dict(labels),
            source_revision=source_revision,
            batching={signature: batching} if batching else None,
            golden={signature: Golden(golden, rtol, atol)} if golden else None,
            progress=report,
        )
    if as_json:
        tables.print_json(documents.version(version))
    else:
        details.print_version(version)


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
@actor_option
@output_options
def alias(
    name: str,
    alias: str,
    version: int,
    expect: int | None,
    registry: str,
    actor: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Point ALIAS of the model NAME to VERSION, wherever it pointed before."""
    with Client(registry=registry, timeout=timeout, actor=actor) as client:
        model = client.set_alias(name, alias, version, expected_version=expect)
    if as_json:
        tables.print_json(documents.model(model))
    else:
        click.echo(f"{name}@{alias} is {name}:{version}")


@click.command()
@click.argument("name")
@click.argument("alias")
@registry_option
@actor_option
@output_options
def unalias(
    name: str, alias: str, registry: str, actor: str | None, as_json: bool, timeout: float
) -> None:
    """Remove ALIAS of the model NAME; the version stays."""
    with Client(registry=registry, timeout=timeout, actor=actor) as client:
        model = client.delete_alias(name, alias)
    if as_json:
        tables.print_json(documents.model(model))
    else:
        click.echo(f"{name}@{alias} is gone")


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, as nobody is asked in a script.")
@registry_option
@actor_option
@output_options
def rm(
    reference: ModelReference,
    yes: bool,
    registry: str,
    actor: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Delete the version REFERENCE, which has to be NAME:VERSION.

    Until it is collected, undelete brings it back.
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {reference}?", abort=True, err=True)
    with Client(registry=registry, timeout=timeout, actor=actor) as client:
        version = client.delete_version(reference)
    if as_json:
        tables.print_json(documents.version(version))
    else:
        click.echo(f"{reference} is deleted; servax undelete {reference} brings it back")


@click.command()
@click.argument("reference", type=REFERENCE)
@registry_option
@actor_option
@output_options
def undelete(
    reference: ModelReference, registry: str, actor: str | None, as_json: bool, timeout: float
) -> None:
    """Bring the deleted version REFERENCE back, which has to be NAME:VERSION."""
    with Client(registry=registry, timeout=timeout, actor=actor) as client:
        version = client.undelete_version(reference)
    if as_json:
        tables.print_json(documents.version(version))
    else:
        click.echo(f"{reference} is back")


@click.command()
@click.argument("reference", type=REFERENCE)
@click.argument("name")
@click.option(
    "--alias",
    "aliases",
    metavar="ALIAS",
    multiple=True,
    help="An alias of NAME that is to point to the copy; may be repeated.",
)
@registry_option
@actor_option
@output_options
def cp(
    reference: ModelReference,
    name: str,
    aliases: tuple[str, ...],
    registry: str,
    actor: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Make a new version of the model NAME out of the version REFERENCE; no bytes are copied."""
    with Client(registry=registry, timeout=timeout, actor=actor) as client:
        version = client.copy_version(reference, name, aliases=aliases)
    if as_json:
        tables.print_json(documents.version(version))
    else:
        click.echo(f"{version.model}:{version.number} is a copy of {version.copied_from}")


@click.command()
@click.argument("reference", type=REFERENCE)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--retarget",
    metavar="VERSION",
    help="Instead of FILE: write the program anew in this version of StableHLO, such as 1.13.0.",
)
@click.option(
    "--signature", default=DEFAULT_SIGNATURE, show_default=True, help="Which program it encodes."
)
@registry_option
@actor_option
@output_options
def encode(
    reference: ModelReference,
    file: str | None,
    retarget: str | None,
    signature: str,
    registry: str,
    actor: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Add FILE to the version REFERENCE: its program, as other releases of JAX read it.

    With --retarget, which takes JAX on this machine, the program is written anew for older ones.
    """
    if (file is None) == (retarget is None):
        raise click.UsageError("give either FILE or --retarget")
    with (
        Client(registry=registry, timeout=timeout, actor=actor) as client,
        tables.progress_bars() as report,
    ):
        # Named by its number from here on: an alias may move meanwhile.
        found = client.version(reference)
        content: Content = file or _retargeted(client, found, signature, retarget or "")
        reference = ModelReference(found.model, found.number)
        version = client.add_encoding(reference, content, signature=signature, progress=report)
    if as_json:
        tables.print_json(documents.version(version))
    else:
        details.print_version(version)


def _retargeted(client: Client, version: Version, signature: str, target: str) -> bytes:
    of = f"{version.model}:{version.number}"
    program = inputs.named(version.signatures, signature, of=of).program
    return hlo.retarget(client.read_blob(program), target)


COMMANDS = (push, encode, pull, cp, alias, unalias, rm, undelete)
