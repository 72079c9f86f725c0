"""The registry keeps its promises through kills; `registry_kills.py` does many more of them."""

import subprocess
import sys
from pathlib import Path


def test_kills_lose_nothing_that_was_acknowledged():
    """After each kill of a registry or a client, what was acknowledged is there, and no more."""
    script = Path(__file__).with_name("registry_kills.py")

    result = subprocess.run(
        [sys.executable, str(script), "--kills", "6", "--seed", "2"],
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
