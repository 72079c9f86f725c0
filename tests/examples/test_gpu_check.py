"""Tests for examples.gpu_check, where there need not be a GPU."""

import pytest
from click.testing import CliRunner

from examples.gpu_check import device_missing, main


@pytest.mark.timeout(300)
def test_the_way_holds_on_a_cpu():
    """Every step passes where the worker runs on the CPU."""
    result = CliRunner().invoke(main, ["--platform", "cpu"], catch_exceptions=False)

    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith("all steps passed on cpu")


def test_it_skips_without_a_device():
    """Where JAX has no CUDA device, the check says so and succeeds."""
    if not device_missing():
        pytest.skip("there is one")

    result = CliRunner().invoke(main, catch_exceptions=False)

    assert result.exit_code == 0
    assert result.output.startswith("skipped: no CUDA device here")
