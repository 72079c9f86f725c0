"""The registry withstands damaged artifacts; `mutated_blobs.py` makes many more of them."""

import subprocess
import sys
from pathlib import Path


def test_damaged_artifacts_are_refused_or_kept_as_they_are():
    """A mutant is an invalid argument or comes back byte by byte, and the registry stays up."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.mutated_blobs", "--blobs", "40"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
