"""What is too large for one message is cut without loss."""

from hypothesis import given
from hypothesis import strategies as st

from servax.parts import cut

DATA = st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=40), max_size=4)


@given(DATA, st.integers(1, 50))
def test_cutting_loses_nothing(data, limit):
    """The pieces joined by name are the data; all parts but the last are full and say so."""
    parts = list(cut({name: memoryview(value) for name, value in data.items()}, limit))

    whole = dict.fromkeys(data, b"")
    for part, _ in parts:
        for name, piece in part.items():
            whole[name] += piece
    sizes = [sum(map(len, part.values())) for part, _ in parts]
    assert whole == data
    assert sizes[:-1] == [limit] * (len(parts) - 1)
    assert sizes[-1] <= limit
    assert [more for _, more in parts] == [True] * (len(parts) - 1) + [False]
