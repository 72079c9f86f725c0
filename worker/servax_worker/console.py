"""The servax-worker script, which is installed even where what it needs is not."""

import sys


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        from servax_worker.__main__ import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"servax-worker needs {error.name}: pip install 'servax[worker]'")
    run()
