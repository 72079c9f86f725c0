"""The sizes to warm up."""

import pytest

from servax_worker.warmup import choose_batches, choose_rows, choose_sizes


@pytest.mark.parametrize(
    ("symbols", "wanted", "allowed", "chosen"),
    [
        ((), {}, lambda s: True, [{}]),
        (("b",), {}, lambda s: True, [{"b": 1}, {"b": 2}, {"b": 4}, {"b": 8}]),
        (("b",), {}, lambda s: s["b"] % 8 == 0, [{"b": 8}, {"b": 16}, {"b": 32}, {"b": 64}]),
        (("b",), {}, lambda s: s["b"] == 96, [{"b": 96}]),
        (("b", "t"), {}, lambda s: True, [{"b": 1, "t": 1}]),
        (("b", "t"), {}, lambda s: s["t"] >= 3, [{"b": 3, "t": 3}]),
        (("b",), {"b": (1, 8), "t": (5,)}, lambda s: True, [{"b": 1}, {"b": 8}]),
        (("b", "t"), {"t": (5, 6)}, lambda s: True, [{"b": 1, "t": 5}, {"b": 1, "t": 6}]),
        (("b", "t"), {}, lambda s: s["t"] >= 2 * s["b"], [{"b": 1, "t": 2}]),
        (("b", "c"), {}, lambda s: s["c"] == 2 * s["b"], [{"b": 1, "c": 2}]),
        (("a", "b", "c"), {}, lambda s: s["a"] > s["b"] > s["c"], [{"a": 3, "b": 2, "c": 1}]),
        (("b",), {}, lambda s: False, []),
        ((), {}, lambda s: False, []),
    ],
)
def test_choice(symbols, wanted, allowed, chosen):
    """Wanted sizes are combined, defaults fill in, and only what is allowed is chosen."""
    assert choose_sizes(symbols, wanted, allowed) == chosen


@pytest.mark.parametrize(
    ("limit", "rows"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_rows_to_try(limit, rows):
    """Powers of two up to the limit, which is tried too."""
    assert choose_rows(limit) == rows


@pytest.mark.parametrize(
    ("wanted", "allowed", "chosen"),
    [
        ({}, lambda s: True, [({"t": 1}, [1, 2, 4])]),
        ({"t": (5, 6)}, lambda s: True, [({"t": 5}, [1, 2, 4]), ({"t": 6}, [1, 2, 4])]),
        ({}, lambda s: s["b"] <= 2 and s["t"] >= 3, [({"t": 3}, [1, 2])]),
        ({}, lambda s: s["b"] % 96 == 0, [({"t": 96}, [96])]),
    ],
)
def test_batches_to_try(wanted, allowed, chosen):
    """For every choice of the other sizes, the rows that are allowed with it."""
    assert choose_batches(("b", "t"), "b", wanted, (1, 2, 4), allowed) == chosen
