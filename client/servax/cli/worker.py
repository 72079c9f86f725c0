"""The commands that speak to a worker."""

from pathlib import Path

import click

from servax.cli import documents, inputs, tables
from servax.cli.parameters import PAIR, REFERENCE, output_options, worker_option
from servax.client import Client
from servax.reference import ModelReference
from servax.types import DEFAULT_SIGNATURE, ServedVersion


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option(
    "--input",
    "given",
    metavar="NAME=VALUE",
    type=PAIR,
    multiple=True,
    help="An input: NAME=@FILE.npy, or NAME=JSON as in x=[[1,2]]; may be repeated.",
)
@click.option("--signature", default=DEFAULT_SIGNATURE, show_default=True, help="What to call.")
@click.option(
    "--output",
    "outputs",
    metavar="NAME",
    multiple=True,
    help="A result to return, all when none is named; may be repeated.",
)
@click.option(
    "--save",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this .npz file instead of printing them.",
)
@worker_option
@output_options
def predict(
    reference: ModelReference,
    given: tuple[tuple[str, str], ...],
    signature: str,
    outputs: tuple[str, ...],
    file: Path | None,
    worker: str,
    as_json: bool,
    timeout: float,
) -> None:
    """Call the model REFERENCE on a worker.

    The dtype of a JSON input is the one that the signature takes.
    """
    with Client(worker=worker, timeout=timeout) as client:
        found = None
        if any(inputs.needs_signature(text) for _, text in given):
            found = inputs.find_signature(client.status(reference.name), reference, signature)
        arrays = {name: inputs.read(name, text, found) for name, text in given}
        results = client.predict(reference, arrays, signature=signature, outputs=outputs)
    if file is not None:
        inputs.save(file, results)
    if as_json:
        shown = {} if file else {name: documents.array(it) for name, it in results.items()}
        tables.print_json({"outputs": shown, "file": str(file) if file else None})
    else:
        tables.print_arrays(results, values=file is None)


@click.command()
@click.argument("name", required=False)
@worker_option
@output_options
def status(name: str | None, worker: str, as_json: bool, timeout: float) -> None:
    """Show what a worker serves, or how the model NAME is doing there."""
    with Client(worker=worker, timeout=timeout) as client:
        answer = client.status(name)
    if as_json:
        tables.print_json(documents.status(answer))
    else:
        tables.print_status(answer)


@click.command()
@click.argument("name", required=False)
@worker_option
@output_options
def stats(name: str | None, worker: str, as_json: bool, timeout: float) -> None:
    """Show how often a worker's versions, or those of the model NAME, were called."""
    with Client(worker=worker, timeout=timeout) as client:
        found = client.statistics(name)
    if as_json:
        tables.print_json([documents.statistics(each) for each in found])
    else:
        tables.print_statistics(found)


@click.command()
@click.argument("reference", type=REFERENCE)
@click.option("--wait", is_flag=True, help="Return when it is READY, and fail when it cannot be.")
@worker_option
@output_options
def load(reference: ModelReference, wait: bool, worker: str, as_json: bool, timeout: float) -> None:
    """Have a worker serve the model REFERENCE from now on."""
    with Client(worker=worker, timeout=timeout) as client:
        served = client.load(reference)
        if wait:
            served = (client.wait_until_ready(reference),)
    _print_served(served, as_json)


@click.command()
@click.argument("reference", type=REFERENCE)
@worker_option
@output_options
def unload(reference: ModelReference, worker: str, as_json: bool, timeout: float) -> None:
    """Have a worker serve the model REFERENCE no more, and wait until that is done."""
    with Client(worker=worker, timeout=timeout) as client:
        served = client.unload(reference)
    _print_served(served, as_json)


def _print_served(served: tuple[ServedVersion, ...], as_json: bool) -> None:
    if as_json:
        tables.print_json([documents.served(each) for each in served])
    else:
        tables.print_served(served)


COMMANDS = (predict, status, stats, load, unload)
