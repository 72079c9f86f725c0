"""Symbolic dimensions mean what JAX means by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export

from servax_worker.dimensions import (
    MAX_SIZE,
    Dimension,
    DimensionError,
    Equation,
    Unsolvable,
    solve,
)

NAMES = ("b", "t", "h")
SIZES = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})


def expressions():
    """Expressions as (Servax's text, Python's text)."""
    leaves = st.one_of(
        st.integers(0, 99).map(lambda n: (str(n), str(n))),
        st.sampled_from(NAMES).map(lambda name: (name, name)),
    )

    def extend(inner):
        pair = st.tuples(inner, inner)
        call = st.sampled_from(
            [("floordiv", "({0}) // ({1})"), ("mod", "({0}) % ({1})")]
            + [(name, name + "({0}, {1})") for name in ("max", "min")]
        )
        return st.one_of(
            pair.map(lambda p: (f"{p[0][0]} + {p[1][0]}", f"({p[0][1]}) + ({p[1][1]})")),
            st.tuples(call, pair).map(
                lambda c: (
                    f"{c[0][0]}({c[1][0][0]}, {c[1][1][0]})",
                    c[0][1].format(c[1][0][1], c[1][1][1]),
                )
            ),
            st.tuples(st.integers(1, 9), st.sampled_from(NAMES), inner).map(
                lambda t: (f"- {t[0]}*{t[1]}^2 + {t[2][0]}", f"-{t[0]}*{t[1]}**2 + ({t[2][1]})")
            ),
        )

    return st.recursive(leaves, extend, max_leaves=8)


@given(expressions(), SIZES)
def test_values_are_those_of_python(expression, sizes):
    """An expression has the value of its Python counterpart, or none where Python has none."""
    text, python = expression
    try:
        expected = eval(python, {}, sizes)
    except ZeroDivisionError:
        with pytest.raises(DimensionError, match="division by zero"):
            Dimension.parse(text).evaluate(sizes)
    else:
        assert Dimension.parse(text).evaluate(sizes) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2*b + 1", "b*t", "floordiv(t, 2)", "- floordiv(- h, 2)", "mod(b, 8)", "max(b, t)",
        "min(256, t)", "b^2 - b", "floordiv(h - 2, 2) + 1", "-1*b + 2*t", "mod(- t, 3)",
    ],
)  # fmt: skip
@given(sizes=SIZES)
def test_values_are_those_of_jax(text, sizes):
    """What JAX parses and prints is parsed to the value that JAX itself gives it."""
    (dimension,) = export.symbolic_shape(text)

    assert Dimension.parse(str(dimension)).evaluate(sizes) == dimension._evaluate(sizes)


@pytest.mark.parametrize(
    "text",
    ["", " ", "b +", "+ + b", "(b)", "2b", "b t", "floordiv(b)", "floordiv(b, 2", "b^t", "b^17",
     "b & t", "mod", "1.5", "b*", "é+", "٣", "b**2", "max(b, t, h)", "9" * 20],
)  # fmt: skip
def test_what_is_no_dimension_is_refused(text):
    """Text outside of the grammar gives an error that quotes it."""
    with pytest.raises(DimensionError):
        Dimension.parse(text)


def test_limits_hold():
    """Neither length, depth nor value of an expression from an artifact can exhaust the worker."""
    with pytest.raises(DimensionError, match="characters"):
        Dimension.parse("b" * 5000)
    with pytest.raises(DimensionError, match="nests deeper"):
        Dimension.parse("max(b, " * 100 + "b" + ")" * 100)
    with pytest.raises(DimensionError, match="out of range"):
        Dimension.parse("b^16").evaluate({"b": 2**20})

    assert Dimension.parse("+".join("b" * 1000)).evaluate({"b": 2}) == 2000


@given(SIZES, st.integers(1, 9), st.integers(-9, 9))
def test_solving_finds_the_sizes(sizes, factor, constant):
    """Sizes computed from symbols give the symbols back, in whatever order they are stated."""
    texts = [f"{factor}*b + {constant}", "b*t", "t + h - b", "floordiv(h, 2)"]
    equations = [
        Equation(dimension, dimension.evaluate(sizes), text)
        for text in texts
        for dimension in [Dimension.parse(text)]
    ]

    assert solve(equations) == solve(reversed(equations)) == sizes


def equations(*sides):
    """Equations at places a, b, c…"""
    return [
        Equation(Dimension.parse(text), size, f"place {chr(97 + index)}")
        for index, (text, size) in enumerate(sides)
    ]


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ([("b", 0)], "place a is 0, which no size b >= 1 makes of 'b'"),
        ([("8*k", 9)], "place a is 9, which no size k >= 1 makes of '8\\*k'"),
        ([("b + 4", 4)], "no size b >= 1"),
        ([("b", MAX_SIZE + 1)], "no size b >= 1"),
        ([("b", 2), ("b", 3)], r"place b is 3 where 'b' is 2 \(b is 2 by place a\)"),
        ([("b*b", 4)], "do not determine the symbols of 'b\\*b'"),
        ([("b + t", 4)], "do not determine"),
    ],
)
def test_what_has_no_solution_is_told(sides, message):
    """A contradiction names the places and both sizes."""
    with pytest.raises(Unsolvable, match=message):
        solve(equations(*sides))


def test_every_contradiction_is_told():
    """Several places that contradict the same symbol are all listed."""
    with pytest.raises(Unsolvable) as caught:
        solve(equations(("b", 2), ("b", 3), ("2*b", 5)))

    assert len(caught.value.problems) == 2
