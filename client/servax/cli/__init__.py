"""The `servax` command; nothing else in this package prints, or reads the environment."""

from typing import Any

import click

from servax.cli import layouts, queries, registry, worker
from servax.errors import DeadlineExceeded, InvalidReference, NotFound, ServaxError, Unreachable

INTERRUPTED = 130
_EXIT_CODES: dict[type[Exception], int] = {
    InvalidReference: 2,
    NotFound: 3,
    Unreachable: 4,
    DeadlineExceeded: 4,
}


class _Group(click.Group):
    """Turns the library's errors into failures that click reports."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ServaxError, OSError) as error:
            click.ClickException(str(error)).show()
            ctx.exit(_EXIT_CODES.get(type(error), 1))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="servax")
def main() -> None:
    """Publish exported JAX models, look at them, and call them.

    A model's version is written NAME (the newest), NAME:3 or NAME@ALIAS.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 the service does not
    answer, or not in time, 130 interrupted.
    """


for command in (*registry.COMMANDS, *queries.COMMANDS, *layouts.COMMANDS, *worker.COMMANDS):
    main.add_command(command)
