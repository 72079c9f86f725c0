"""The `servax` command; nothing else in this package prints, or reads the environment."""

from typing import Any

import click

from servax.cli import registry, worker
from servax.errors import InvalidReference, NotFound, ServaxError, Unreachable

INTERRUPTED = 130


class _Failed(click.ClickException):
    exit_code = 1


class _Misspelt(_Failed):
    exit_code = 2


class _NotFound(_Failed):
    exit_code = 3


class _Unreachable(_Failed):
    exit_code = 4


class _Group(click.Group):
    """Turns the library's errors into failures that click reports."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidReference as error:
            raise _Misspelt(str(error)) from error
        except NotFound as error:
            raise _NotFound(str(error)) from error
        except Unreachable as error:
            raise _Unreachable(str(error)) from error
        except (ServaxError, OSError) as error:
            raise _Failed(str(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="servax")
def main() -> None:
    """Publish exported JAX models, look at them, and call them.

    A model's version is written NAME (the newest), NAME:3 or NAME@ALIAS.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 the service does not
    answer, 130 interrupted.
    """


for command in (*registry.COMMANDS, *worker.COMMANDS):
    main.add_command(command)
