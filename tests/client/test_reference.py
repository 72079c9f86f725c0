"""References: how people name a version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servax import InvalidReference, ModelReference

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,127}", fullmatch=True)
ALIASES = st.from_regex(r"[a-z][a-z0-9._-]{0,127}", fullmatch=True)
NUMBERS = st.integers(1, 2**63 - 1)


@given(
    st.builds(ModelReference, NAMES)
    | st.builds(ModelReference, NAMES, version=NUMBERS)
    | st.builds(ModelReference, NAMES, alias=ALIASES)
)
def test_a_reference_survives_being_written_down(reference):
    """Reading what a reference prints gives the same reference."""
    assert reference == ModelReference.parse(str(reference))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a model's name"),
        ("Mnist", "not a model's name"),
        (".hidden", "not a model's name"),
        ("a/b", "not a model's name"),
        ("a" * 129, "not a model's name"),
        ("mnist\n", "not a model's name"),
        ("mnist:", "not a version's number"),
        ("mnist:0", "not a version's number"),
        ("mnist:03", "not a version's number"),
        ("mnist:-1", "not a version's number"),
        ("mnist:production", "not a version's number"),
        ("mnist:9223372036854775808", "not a version"),
        ("mnist:٣", "not a version's number"),
        ("mnist@", "not an alias"),
        ("mnist@3", "not an alias"),
        ("mnist@a@b", "not an alias"),
        ("mnist:3@production", "not a model's name"),
    ],
)
def test_what_is_no_reference_is_refused(text, said):
    """A text that names no version is refused, and the error says which part of it is wrong."""
    with pytest.raises(InvalidReference, match=said):
        ModelReference.parse(text)


def test_a_reference_has_a_number_or_an_alias():
    """A number and an alias at once are refused."""
    with pytest.raises(InvalidReference, match="not both"):
        ModelReference("mnist", version=3, alias="production")


def test_a_reference_is_taken_where_a_text_is():
    """Parsing a reference gives the reference."""
    reference = ModelReference("mnist", version=3)

    assert reference is ModelReference.parse(reference)


def test_other_types_are_refused():
    """What is neither a text nor a reference is refused by its type."""
    with pytest.raises(InvalidReference, match="got int"):
        ModelReference.parse(3)
