"""Checks any server against a protocol, and prints a table.

    python -m tests.conformance oip HOST:PORT --model NAME [--http HOST:PORT]
    python -m tests.conformance tfserving HOST:PORT --model NAME [--http HOST:PORT]

A command for each protocol. The exit code is 0 where every check passed.
"""

import sys

import click

from tests.conformance.report import run


@click.group()
def main() -> None:
    """Check a server against a protocol."""


@main.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--http", metavar="HOST:PORT", help="Where its REST API is; unchecked without it.")
@click.option("--model", required=True, help="A model that it serves, of numbers alone.")
def oip(address: str, http: str | None, model: str) -> None:
    """The Open Inference Protocol (KServe V2, Triton), by tritonclient."""
    from tests.conformance.oip import OpenInference

    with OpenInference(address, http, model) as checks:
        sys.exit(0 if run(f"Open Inference Protocol at {address}", checks) else 1)


@main.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--http", metavar="HOST:PORT", help="Where its REST API is; unchecked without it.")
@click.option("--model", required=True, help="A model that it serves, of numbers alone.")
def tfserving(address: str, http: str | None, model: str) -> None:
    """TensorFlow Serving, by the stubs of tensorflow-serving-api.

    Where that is not installed, PYTHONPATH may name what `python -m tests.conformance.stubs` made.
    """
    from tests.conformance.tfserving import TensorFlowServing

    with TensorFlowServing(address, http, model) as checks:
        sys.exit(0 if run(f"TensorFlow Serving at {address}", checks) else 1)


if __name__ == "__main__":
    main(prog_name="python -m tests.conformance")
