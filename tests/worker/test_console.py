"""The script without what it needs."""

import subprocess
import sys


def test_a_missing_extra_is_one_clear_line():
    """Where the extra is not installed, the script says which one to install, and exits with 1."""
    script = (
        "import sys; sys.modules['structlog'] = None\n"  # as if it were not installed
        "from servax_worker.console import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert result.returncode == 1
    assert result.stderr == "servax-worker needs structlog: pip install 'servax[worker]'\n"
