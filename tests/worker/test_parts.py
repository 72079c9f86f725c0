"""Parts are joined without loss, within bounds, and one bad id hurts no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servax.parts import cut
from servax_worker.errors import InvalidInput, TooLarge
from servax_worker.parts import Joiner

DATA = st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=40), max_size=4)


@given(st.lists(DATA, min_size=1, max_size=5), st.integers(1, 10), st.randoms())
def test_interleaved_requests_are_joined(requests, limit, random):
    """However the parts of several requests are interleaved, each comes out whole, once."""
    joiner = Joiner(10_000, 10)
    queues = {}
    for id, data in enumerate(requests):
        views = {name: memoryview(value) for name, value in data.items()}
        parts = [
            {name: bytes(piece) for name, piece in part.items()} for part, _ in cut(views, limit)
        ]
        parts[0] = dict.fromkeys(data, b"") | parts[0]
        queues[id] = parts
    done = {}
    while queues:
        id = random.choice(sorted(queues))
        part = queues[id].pop(0)
        more = bool(queues[id])
        result = joiner.add(id, f"head {id}", part, more)
        assert (result is None) == more
        if result is not None:
            del queues[id]
            head, data = result
            assert head == f"head {id}"
            done[id] = {name: bytes(value) for name, value in data.items()}

    assert done == dict(enumerate(requests))


def test_the_bytes_that_are_held_are_bounded():
    """A request that would exceed the limit is refused, its later parts are swallowed, and what
    it held is free again.
    """
    joiner = Joiner(10, 10)
    joiner.add(1, "one", {"x": b"12345"}, True)
    joiner.add(2, "two", {"x": b"1234"}, True)
    with pytest.raises(TooLarge, match="more than 10 bytes"):
        joiner.add(1, "", {"x": b"678"}, True)

    assert joiner.add(1, "", {"x": b"9"}, True) is None
    assert joiner.add(1, "", {"x": b"9"}, False) is None
    assert joiner.add(2, "", {"x": b"56789"}, False) == ("two", {"x": b"123456789"})
    assert joiner.add(1, "again", {"x": b"1"}, False) == ("again", {"x": b"1"})


def test_the_number_of_unfinished_requests_is_bounded():
    """Beyond the limit a new request is refused; those that are open go on."""
    joiner = Joiner(100, 2)
    joiner.add(1, "one", {"x": b"1"}, True)
    joiner.add(2, "two", {"x": b"1"}, True)
    with pytest.raises(TooLarge, match="2 requests of this stream are unfinished"):
        joiner.add(3, "three", {"x": b"1"}, True)

    assert joiner.add(4, "whole", {"x": b"1"}, False) == ("whole", {"x": b"1"})
    assert joiner.add(1, "", {"x": b"2"}, False) == ("one", {"x": b"12"})


def test_refused_ids_do_not_pile_up():
    """Memory stays bounded when a caller sends nothing but requests that are refused."""
    joiner = Joiner(1, 3)
    for id in range(1000):
        with pytest.raises(TooLarge):
            joiner.add(id, "", {"x": b"12"}, True)

    assert len(joiner._refused) == 3


def test_later_parts_bring_no_new_tensors():
    """Data for a tensor that the first part did not name ends that request with an error."""
    joiner = Joiner(100, 2)
    joiner.add(1, "one", {"x": b"1"}, True)
    with pytest.raises(InvalidInput, match="'y', which its first part does not name"):
        joiner.add(1, "", {"y": b"1"}, False)

    assert joiner.add(1, "anew", {"y": b"1"}, False) == ("anew", {"y": b"1"})


def test_a_refused_request_is_swallowed_whole():
    """All parts of a request that is refused for its id are swallowed, and the first is told."""
    joiner = Joiner(100, 2)

    assert joiner.refuse(1, True)
    assert joiner.add(1, "", {"x": b"1"}, True) is None
    assert not joiner.refuse(1, True)
    assert joiner.add(1, "", {"x": b"1"}, False) is None
    assert joiner.add(1, "anew", {"x": b"1"}, False) == ("anew", {"x": b"1"})
    assert joiner.refuse(2, False)
    assert joiner.refuse(2, False)


def test_heads_count_too():
    """Large heads of unfinished requests are bounded as their data is."""
    joiner = Joiner(10, 10)
    joiner.add(1, "one", {"x": b"12345"}, True, 3)
    joiner.add(1, "", {"x": b"1"}, True, 3)
    with pytest.raises(TooLarge, match="more than 10 bytes"):
        joiner.add(2, "two", {"x": b""}, True, 2)

    assert joiner.add(1, "", {"x": b"7"}, False, 3) == ("one", {"x": b"1234517"})
