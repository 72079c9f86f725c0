"""The pages of the documentation keep up with the code."""

import inspect
import re
from pathlib import Path

import click
import pytest

import servax
from servax import Client
from servax.cli import main

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {
    section.split("`")[0].split()[0]: section
    for section in re.split(r"^## `servax ", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)[1:]
}
EVERYWHERE = ("--registry", "--worker", "--actor", "--json", "--timeout")


def test_every_command_has_a_section():
    """The page about the command line has a section for each command, and for no other."""
    assert sorted(main.commands) == sorted(SECTIONS)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_option_is_described(name):
    """A command's section names all of its options, and no others."""
    options = {
        spelling: parameter.help
        for parameter in main.commands[name].params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
        if spelling not in EVERYWHERE
    }
    described = re.findall(r"`(-[-a-z]+)", SECTIONS[name].split("## JSON")[0])

    assert set(options) == set(described) - set(EVERYWHERE)
    assert all(options.values())


def test_shared_options_and_exit_codes_are_described():
    """What all commands share is described once."""
    page = (DOCS / "cli.md").read_text().split("## `servax")[0]

    for text in (*EVERYWHERE, "SERVAX_REGISTRY", "SERVAX_WORKER", "--version", "--help"):
        assert text in page
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == ["0", "1", "2", "3", "4", "130"]


def test_every_method_is_described():
    """The page about the library names every method of a client, with arguments that exist."""
    page = (DOCS / "python.md").read_text()
    described = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", page, re.MULTILINE))
    methods = {
        name: member
        for name, member in vars(Client).items()
        if inspect.isfunction(member) and not name.startswith("_") and name != "close"
    }

    assert sorted(methods) == sorted(described)
    for name, arguments in described.items():
        named = [part.split("=")[0] for part in arguments.split(", ") if part and part != "*"]
        parameters = [p for p in inspect.signature(methods[name]).parameters if p != "self"]
        assert [*named, "timeout"] == parameters


def test_every_exception_is_described():
    """The page about the library names every exception."""
    page = (DOCS / "python.md").read_text()

    for name in servax.__all__:
        value = getattr(servax, name)
        if isinstance(value, type) and issubclass(value, servax.ServaxError):
            assert f"`{name}`" in page
