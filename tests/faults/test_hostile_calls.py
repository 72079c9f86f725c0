"""The registry minds no message; `hostile_calls.py` sends many more of them."""

import subprocess
import sys
from pathlib import Path


def test_hostile_calls_are_refused_in_order():
    """Whatever is asked, the registry refuses or answers it, logs no error and stays whole."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.hostile_calls", "--calls", "600", "--seed", "1"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
