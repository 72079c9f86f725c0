"""The memory budget: what is given, refused and given back."""

import pytest

from servax_worker.errors import CannotServe
from servax_worker.memory import MemoryBudget

GB = 10**9


def test_what_is_left_is_given():
    """Reservations grow up to the limit, and not beyond."""
    budget = MemoryBudget(10 * GB)
    first, second = budget.reserve("lm:1"), budget.reserve("lm:2")

    first.grow(4 * GB, "the weights")
    first.grow(1 * GB, "calls")
    second.grow(5 * GB, "the weights")

    assert budget.reserved == {"lm:1": 5 * GB, "lm:2": 5 * GB}
    with pytest.raises(CannotServe):
        second.grow(1, "calls")


def test_a_refusal_tells_who_has_the_memory():
    """The message names what is asked for, what is left, and what takes the rest."""
    budget = MemoryBudget(10 * GB)
    budget.reserve("mnist:3").grow(8 * GB, "the weights")
    refused = budget.reserve("lm:2")

    with pytest.raises(CannotServe) as caught:
        refused.grow(5_500_000_000, "the weights")

    assert str(caught.value) == (
        "the weights of lm:2 take 5.5 GB, but of the 10.0 GB that the device has for models 2.0 GB "
        "are left; mnist:3 takes 8.0 GB; unload some, or raise --memory-limit"
    )
    assert budget.reserved["lm:2"] == 0


def test_what_is_released_can_be_given_again():
    """Releasing gives everything back, once."""
    budget = MemoryBudget(10)
    first = budget.reserve("a")
    first.grow(10, "the weights")

    first.release()
    first.release()

    assert budget.reserved == {}
    budget.reserve("b").grow(10, "the weights")


def test_without_a_limit_everything_is_given():
    """Where the device does not tell its size and nobody set one, nothing is refused."""
    budget = MemoryBudget(None)

    budget.reserve("a").grow(10**15, "the weights")

    assert budget.reserved == {"a": 10**15}
