"""The registry keeps its promises through kills; `registry_kills.py` does many more of them."""

import subprocess
import sys
from pathlib import Path


def test_kills_lose_nothing_that_was_acknowledged(database_url):
    """After each kill of a registry or a client, what was acknowledged is there, and no more."""
    command = [sys.executable, "-m", "tests.faults.registry_kills"]
    result = subprocess.run(
        [*command, "--kills", "8", "--seed", "2", "--db", database_url],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
