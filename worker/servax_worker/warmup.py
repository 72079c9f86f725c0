"""Chooses the sizes that a symbolic program is compiled for before it is READY."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

Sizes = dict[str, int]

_POWERS_OF_TWO = tuple(2**exponent for exponent in range(11))
_DEFAULT_COUNT = 4
_SEARCH_LIMIT = 4096


def choose_sizes(
    symbols: Sequence[str],
    wanted: Mapping[str, Sequence[int]],
    allowed: Callable[[Sizes], bool],
) -> list[Sizes]:
    """The combinations of sizes to compile for.

    Every combination of the `wanted` sizes of the `symbols`; a symbol without any is 1. Where
    nothing is wanted: the first four powers of two (1, 2, 4, 8 as a rule) of a lone symbol, which
    nearly always is a batch, and 1 for each of several. Only what is `allowed` (the program's
    constraints) is given; where that leaves nothing, the smallest size that is allowed for all
    symbols, or else the smallest sizes.
    """
    named = [symbol for symbol in symbols if symbol in wanted]
    if named:
        choices: Iterable[Sequence[int]] = [wanted.get(symbol, (1,)) for symbol in symbols]
        limit = None
    elif len(symbols) == 1:
        choices, limit = [_POWERS_OF_TWO], _DEFAULT_COUNT
    else:
        choices, limit = [(1,)] * len(symbols), None
    combinations = (dict(zip(symbols, sizes, strict=True)) for sizes in itertools.product(*choices))
    chosen = list(itertools.islice(filter(allowed, combinations), limit))
    if not chosen:
        equal = (dict.fromkeys(symbols, size) for size in range(1, _SEARCH_LIMIT + 1))
        small = (dict(zip(symbols, sizes, strict=True)) for sizes in _small(len(symbols)))
        chosen = list(itertools.islice(filter(allowed, itertools.chain(equal, small)), 1))
    return chosen


def choose_rows(limit: int) -> list[int]:
    """Numbers of rows to try: the powers of two, and the limit."""
    powers = [2**exponent for exponent in range(limit.bit_length()) if 2**exponent < limit]
    return [*powers, limit]


def choose_batches(
    symbols: Sequence[str],
    row_symbol: str,
    wanted: Mapping[str, Sequence[int]],
    rows: Sequence[int],
    allowed: Callable[[Sizes], bool],
) -> list[tuple[Sizes, list[int]]]:
    """The sizes to compile for where one symbol counts rows: of the others, and rows for each.

    Of the others, every combination of the `wanted` sizes; 1 for a symbol without any. Only what is
    `allowed` is given; where no such combination is, the sizes are those of `choose_sizes`.
    """
    others = tuple(symbol for symbol in symbols if symbol != row_symbol)

    def fitting(sizes: Sizes) -> list[int]:
        return [count for count in rows if allowed({**sizes, row_symbol: count})]

    wanted_of_others = {symbol: wanted.get(symbol, (1,)) for symbol in others}
    chosen = choose_sizes(others, wanted_of_others, lambda sizes: bool(fitting(sizes)))
    if chosen:
        return [(sizes, fitting(sizes)) for sizes in chosen]
    found: dict[tuple[int, ...], list[int]] = {}
    for sizes in choose_sizes(symbols, wanted, allowed):
        found.setdefault(tuple(sizes[other] for other in others), []).append(sizes[row_symbol])
    return [(dict(zip(others, key, strict=True)), counts) for key, counts in found.items()]


def _small(count: int) -> list[tuple[int, ...]]:
    """Some of the smallest combinations of so many sizes, the smallest first."""
    largest = max(2, int(_SEARCH_LIMIT ** (1 / max(count, 1))))
    combinations = itertools.product(range(1, largest + 1), repeat=count)
    return sorted(itertools.islice(combinations, _SEARCH_LIMIT), key=_extent)


def _extent(sizes: tuple[int, ...]) -> tuple[int, int]:
    return max(sizes, default=0), sum(sizes)
