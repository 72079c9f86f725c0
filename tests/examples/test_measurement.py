"""When the demo says that something is wrong."""

import io

import pytest
from rich.console import Console

from examples.measurement import Measurement, table


def test_equal_answers_are_right():
    """Equal to the same program and nearly so to the source: nothing is wrong."""
    assert Measurement(source_difference=1e-6).failures() == []


@pytest.mark.parametrize(
    ("measurement", "expected"),
    [
        (Measurement(program_difference=1e-9), "same program"),
        (Measurement(source_difference=1e-4), "source"),
        (Measurement(source_difference=float("nan")), "source"),
        (Measurement(accuracy=0.5), "accuracy of 50.0%"),
    ],
)
def test_wrong_answers_are_told(measurement, expected):
    """Each way of being wrong is one failure that says which."""
    (failure,) = measurement.failures()

    assert expected in failure


def test_table_fits_eighty_columns():
    """Three models are shown side by side without a line being broken."""
    output = io.StringIO()
    names = ("transformer", "mnist-cnn", "mnist-mlp")

    Console(file=output, width=80).print(table({name: Measurement() for name in names}, 30))

    lines = output.getvalue().splitlines()
    assert any(all(name in line for name in names) for line in lines)
    assert any("accuracy in this process" in line for line in lines)
