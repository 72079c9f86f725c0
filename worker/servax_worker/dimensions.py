"""Symbolic dimensions: parse JAX's notation, evaluate, and solve shapes for the symbols.

The grammar is the one in which JAX prints and reads dimension expressions ("Shape polymorphism"
in JAX's documentation): sums of products of integers, names, powers with `^`, and the functions
floordiv, mod, max and min, which mean what Python means by `//`, `%`, `max` and `min`.

Expressions come from artifacts, so their length, depth and values are limited.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

MAX_LENGTH = 4096
MAX_DEPTH = 32
MAX_POWER = 16
MAX_SIZE = 2**31 - 1
"""The largest size of a dimension: JAX computes with sizes as int32."""

_MAX_VALUE = 2**63 - 1
_TOKEN = re.compile(r"\s*(?:([0-9]{1,19}(?![0-9]))|([A-Za-z_]\w*)|([-+*^(),]))")


class DimensionError(ValueError):
    """An expression is malformed or too large, or has no value."""


class Unsolvable(ValueError):
    """Sizes do not fit the expressions; `problems` tells each misfit."""

    def __init__(self, problems: list[str]):
        super().__init__("; ".join(problems))
        self.problems = problems


def _power(base: int, exponent: int) -> int:
    return int(base**exponent)


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "^": _power,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class _Operation:
    name: str
    left: "_Node"
    right: "_Node"


_Node = int | str | _Operation  # a number, a symbol, or an operation on two nodes


@dataclass(frozen=True)
class Dimension:
    """One dimension of a shape: a number or an expression over symbols that are all >= 1."""

    text: str
    symbols: frozenset[str]
    _root: _Node

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """Reads "256", "b", "2*b + 1", "- floordiv(- h, 2)"; raises DimensionError."""
        root = _Parser(text).parse()
        return cls(text, frozenset(_symbols(root)), root)

    def __str__(self) -> str:
        return self.text

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The value where each symbol has its size; raises DimensionError where there is none."""
        try:
            return _evaluate(self._root, sizes)
        except KeyError as error:
            raise DimensionError(f"'{self.text}': no size is known for {error}") from None


@dataclass(frozen=True)
class Equation:
    """States that `dimension` has the value `size` at `place`, which messages name."""

    dimension: Dimension
    size: int
    place: str


def solve(equations: Iterable[Equation]) -> dict[str, int]:
    """Finds the symbols' sizes from the sizes of dimensions.

    As in JAX, an equation gives a symbol when, with what is known already, it is linear in that
    symbol alone (`k*b + c`); every other equation is checked once its symbols are known.

    Raises:
        Unsolvable: a symbol would be below 1, above MAX_SIZE or no whole number, two places
            contradict each other, or the equations do not determine every symbol.
        DimensionError: an expression has no value at these sizes.
    """
    pending = list(equations)
    sizes: dict[str, int] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    while pending:
        unsettled = []
        for equation in pending:
            linear = _linear(equation.dimension._root, sizes)
            if linear is None or len(linear[0]) > 1:
                unsettled.append(equation)
                continue
            factors, constant = linear
            text, size, place = equation.dimension.text, equation.size, equation.place
            if not factors:
                if constant != size:
                    known = ", ".join(
                        f"{symbol} is {sizes[symbol]} by {places[symbol]}"
                        for symbol in sorted(equation.dimension.symbols)
                    )
                    problems.append(f"{place} is {size} where '{text}' is {constant} ({known})")
                continue
            ((symbol, factor),) = factors.items()
            value, remainder = divmod(size - constant, factor)
            if remainder or not 1 <= value <= MAX_SIZE:
                # Later equations would only repeat the complaint.
                raise Unsolvable(
                    [*problems, f"{place} is {size}, which no size {symbol} >= 1 makes of '{text}'"]
                )
            sizes[symbol] = value
            places[symbol] = place
        if len(unsettled) == len(pending):
            names = ", ".join(f"'{equation.dimension}'" for equation in unsettled)
            raise Unsolvable([*problems, f"the sizes do not determine the symbols of {names}"])
        pending = unsettled
    if problems:
        raise Unsolvable(problems)
    return sizes


def _symbols(node: _Node) -> Iterable[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, _Operation):
        yield from _symbols(node.left)
        yield from _symbols(node.right)


def _evaluate(node: _Node, sizes: Mapping[str, int]) -> int:
    if isinstance(node, int):
        return node
    if isinstance(node, str):
        return sizes[node]
    left, right = _evaluate(node.left, sizes), _evaluate(node.right, sizes)
    try:
        value = _OPERATIONS[node.name](left, right)
    except ZeroDivisionError:
        raise DimensionError(f"division by zero in a dimension at {dict(sizes)}") from None
    if abs(value) > _MAX_VALUE:
        raise DimensionError(f"a dimension is out of range at {dict(sizes)}")
    return value


def _linear(node: _Node, sizes: Mapping[str, int]) -> tuple[dict[str, int], int] | None:
    """The node as factors of unknown symbols and a constant; None where it is not linear."""
    if isinstance(node, int):
        return {}, node
    if isinstance(node, str):
        return ({}, sizes[node]) if node in sizes else ({node: 1}, 0)
    left, right = _linear(node.left, sizes), _linear(node.right, sizes)
    if left is None or right is None:
        return None
    if not left[0] and not right[0]:
        return {}, _evaluate(_Operation(node.name, left[1], right[1]), sizes)
    if node.name == "+":
        names = left[0].keys() | right[0].keys()
        factors = {name: left[0].get(name, 0) + right[0].get(name, 0) for name in names}
        return {name: factor for name, factor in factors.items() if factor}, left[1] + right[1]
    if node.name == "*" and not (left[0] and right[0]):
        (factors, constant), (_, scale) = (left, right) if left[0] else (right, left)
        if scale:
            return {name: factor * scale for name, factor in factors.items()}, constant * scale
        return {}, 0
    return None


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str):
        if len(text) > MAX_LENGTH:
            raise DimensionError(
                f"a dimension of {len(text)} characters; {MAX_LENGTH} is the limit"
            )
        self._text = text
        self._tokens: list[str] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise DimensionError(f"'{text}' is not a dimension: unexpected '{text[position:]}'")
            self._tokens.append(match.group().strip())
            position = match.end()
        self._next = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._sum()
        if self._peek():
            raise self._unexpected()
        return node

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _accept(self, token: str) -> bool:
        if self._peek() == token:
            self._next += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._unexpected()

    def _unexpected(self) -> DimensionError:
        found = f"unexpected '{self._peek()}'" if self._peek() else "it ends too early"
        return DimensionError(f"'{self._text}' is not a dimension: {found}")

    def _sum(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DimensionError(f"'{self._text}' nests deeper than {MAX_DEPTH}")
        terms: list[_Node] = []
        negative = self._accept("-")
        if not negative:
            self._accept("+")
        while True:
            term = self._product()
            terms.append(_Operation("*", -1, term) if negative else term)
            negative = self._accept("-")
            if not negative and not self._accept("+"):
                break
        self._depth -= 1
        return _balanced("+", terms)

    def _product(self) -> _Node:
        factors = [self._factor()]
        while self._accept("*"):
            factors.append(self._factor())
        return _balanced("*", factors)

    def _factor(self) -> _Node:
        sign = -1 if self._accept("-") else 1
        token = self._peek()
        node: _Node
        if token.isdecimal():
            self._next += 1
            node = sign * int(token)
        elif sign < 0 or not (token and (token[0].isalpha() or token[0] == "_")):
            raise self._unexpected()
        else:
            self._next += 1
            node = token
            if token in ("floordiv", "mod", "max", "min"):
                self._expect("(")
                left = self._sum()
                self._expect(",")
                node = _Operation(token, left, self._sum())
                self._expect(")")
        if self._accept("^"):
            power = self._peek()
            if not power.isdecimal() or int(power) > MAX_POWER:
                raise self._unexpected()
            self._next += 1
            node = _Operation("^", node, int(power))
        return node


def _balanced(name: str, nodes: list[_Node]) -> _Node:
    """Joins nodes by an associative operation into a tree of logarithmic depth."""
    while len(nodes) > 1:
        joined: list[_Node] = [
            _Operation(name, left, right)
            for left, right in zip(nodes[::2], nodes[1::2], strict=False)
        ]
        nodes = joined + nodes[2 * len(joined) :]
    return nodes[0]
