"""How a signature is called fastest follows from measurements, which are kept between runs."""

import asyncio

import pytest

from servax_worker import tuning
from servax_worker.batch import Bucket
from servax_worker.errors import InvalidInput, OutOfMemory
from servax_worker.plans import Plans
from servax_worker.tuning import Plan, Trial, tune


@pytest.fixture
def tuned(monkeypatch):
    """Tunes by a table of seconds, by rows and calls at once; gives also what was prepared."""

    def tuned(table, rows=(1, 2, 4, 8, 16), cut=True, most_at_once=2, steady=False):
        prepared = []

        async def prepare(count):
            prepared.append(count)
            seconds = table[count, 1]
            if isinstance(seconds, Exception):
                raise seconds
            return Trial(count, steady)

        async def measure(dispatcher, trial, side_by_side):
            return table[trial.call, side_by_side]

        monkeypatch.setattr(tuning, "_measure", measure)
        side_by_side, buckets = asyncio.run(
            tune(rows, prepare, None, most_at_once=most_at_once, cut=cut)
        )
        return side_by_side, [bucket.rows for bucket in buckets], prepared

    return tuned


def seconds(*one, two=None):
    """A table of seconds for 1, 2, 4… rows, alone and two at once (twice as long if not told)."""
    rows = [2**index for index in range(len(one))]
    two = two or [2 * each for each in one]
    return dict(zip(((n, k) for k in (1, 2) for n in rows), (*one, *two), strict=True))


def test_rows_are_joined_as_far_as_they_get_faster(tuned):
    """Four rows at a time are a quarter faster than one, eight are slower: nobody tries sixteen."""
    assert tuned(seconds(4, 7, 12, 32, 64)) == (1, [1, 2, 4], [1, 2, 4, 8])


def test_a_small_gain_is_not_worth_the_wait(tuned):
    """Where more rows are as fast a row, calls run as they come, and two misses end the search."""
    assert tuned(seconds(1, 2, 3.98, 7.9, 15.7)) == (1, [1], [1, 2, 4])


def test_two_calls_at_once_change_what_is_best(tuned):
    """Where two single calls use the device better than any batch, that is how it is called."""
    table = seconds(1, 1.8, 3.4, 7.5, 15, two=[1.5, 3, 6, 12, 24])

    assert tuned(table)[:2] == (2, [1])
    assert tuned(table, most_at_once=1)[:2] == (1, [1, 2, 4])


def test_brief_calls_run_one_after_the_other(tuned):
    """Two calls at once are not tried where a call runs on the event loop itself."""
    fast = [0.0001, 0.00015, 0.0002, 0.0004, 0.0008]

    assert tuned(seconds(*fast, two=[1e-9] * 5), steady=True)[:2] == (1, [1, 2, 4])
    assert tuned(seconds(*fast, two=[1e-9] * 5))[0] == 2


@pytest.mark.parametrize(("steady", "counted"), [(True, "the call"), (False, "the way")])
def test_the_way_to_a_thread_counts_unless_the_call_is_brief(monkeypatch, steady, counted):
    """What runs on the event loop is measured by itself, all else with the way to its thread."""
    ways = []

    class Far:
        async def run(self, call, share=1.0):
            ways.append(share)
            return call()

    monkeypatch.setattr(tuning, "_SPAN", 0.001)
    seconds = asyncio.run(tuning._measure(Far(), Trial(lambda: None, steady), 1))

    assert seconds > 0
    assert (len(ways) == 1) is (counted == "the call")


def test_what_the_operator_names_is_kept(tuned):
    """Without cutting, every number of rows is prepared and is a bucket."""
    assert tuned(seconds(1, 3, 9, 27, 81), cut=False)[1:] == ([1, 2, 4, 8, 16],) * 2


def test_memory_ends_the_list_and_refusals_leave_gaps(tuned):
    """Rows that the program refuses are skipped; those that find no room are the end."""
    table = seconds(1, InvalidInput("no"), 1.2, OutOfMemory("full"), 1.4, two=[9] * 5)

    assert tuned(table) == (1, [1, 4], [1, 2, 4, 8])
    with pytest.raises(InvalidInput):
        tuned({(1, 1): InvalidInput("no")}, rows=(1,))


def test_plans_are_kept_by_their_circumstances(tmp_path):
    """A plan is found again as it was, only where all is the same, and not where it is damaged."""
    plans = Plans(tmp_path / "plans")
    plan = Plan(
        2, 0.25, {(("t", 8),): (Bucket(1, 0.5, brief=True), Bucket(2, 0.75)), (): (Bucket(4, 1.0),)}
    )

    plans.keep({"jax": "1"}, plan)

    assert plans.find({"jax": "1"}) == plan
    assert plans.find({"jax": "2"}) is None
    for path in (tmp_path / "plans").iterdir():
        path.write_text("{")
    assert plans.find({"jax": "1"}) is None
