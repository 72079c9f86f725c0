"""The worker keeps its promises through kills; `worker_kills.py` does many more of them."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
@pytest.mark.timeout(300)
def test_kills_give_no_wrong_answers():
    """Kills of the serving process, of a loader and of the registry cost a restart at most."""
    script = Path(__file__).with_name("worker_kills.py")

    result = subprocess.run(
        [sys.executable, str(script), "--kills", "4", "--seed", "3"],
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
