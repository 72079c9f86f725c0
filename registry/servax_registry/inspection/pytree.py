"""Where the leaves of a serialized pytree lie, and to which parameter each belongs."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from servax_registry.errors import InvalidProgram
from servax_registry.inspection.flatbuffer import Table, int8

_DEPTH_LIMIT = 100
# JAX itself cannot serialize more arguments: it numbers them with 16 bits.
_LEAF_LIMIT = 1 << 16

# The one class among the custom nodes that every JAX knows: as good as a dict.
_ORDERED_DICT = "collections.OrderedDict"

_PARAMETER = re.compile(r"[^\W\d]\w*")
_INDEX = re.compile(r"\[(\d+)\]")


class _Field(IntEnum):
    """The fields of table PyTreeDef."""

    KIND = 0
    CHILDREN = 1
    CHILDREN_NAMES = 2
    CUSTOM_NAME = 3
    CUSTOM_AUXDATA = 4


class _Kind(IntEnum):
    """The kinds of pytree nodes: enum PyTreeDefKind."""

    LEAF = 0
    NONE = 1
    TUPLE = 2
    LIST = 3
    DICT = 4
    CUSTOM = 5


@dataclass(frozen=True)
class Step:
    """One step into a pytree.

    `key` is a dict's key (`keyed`) or an index. `printed` is the step as JAX prints it in the name
    of an argument; "" inside a custom node, whose class would have to be asked.
    """

    key: str
    keyed: bool
    printed: str


@dataclass(frozen=True)
class Place:
    """Where a flat argument lies: `root`, `path` and `keyed` as in artifact.Argument."""

    root: str
    path: tuple[str, ...]
    keyed: bool


def read_leaves(tree: Table, custom_nodes: set[str]) -> tuple[tuple[Step, ...], ...]:
    """The paths of a tree's leaves in the order of flattening; None is structure and no leaf.

    Adds the serialized names of the custom nodes to `custom_nodes`. Raises InvalidProgram.
    """
    leaves = tuple(itertools.islice(_walk(tree, (), custom_nodes), _LEAF_LIMIT + 1))
    if len(leaves) > _LEAF_LIMIT:
        raise InvalidProgram(f"too large: more than {_LEAF_LIMIT} arguments or results")
    return leaves


def read_arguments(tree: Table, custom_nodes: set[str]) -> tuple[tuple[Step, ...], ...]:
    """The leaves of an input tree, which must be ((args...), {kwargs}).

    The first step of each is "0" or "1", the second a position or a keyword.
    """
    halves = tree.tables(_Field.CHILDREN)
    if [_kind(node) for node in (tree, *halves)] != [_Kind.TUPLE, _Kind.TUPLE, _Kind.DICT]:
        raise InvalidProgram("damaged: the input tree is not ((positional arguments), {keywords})")
    return read_leaves(tree, custom_nodes)


def place_arguments(
    leaves: Sequence[tuple[Step, ...]], locations: Mapping[int, str]
) -> tuple[Place, ...]:
    """Names the parameter of every leaf of an input tree.

    A keyword argument's is in the tree. A positional one's is the beginning of its location in the
    module (`locations`, by index of the leaf), such as "params['w']"; where that is missing or
    taken it is "arg" and its position. An argument of `*xs` has the path ("0", ...) inside `xs`.
    """
    keywords = {leaf[1].key for leaf in leaves if leaf[0].key == "1"}
    found: dict[int, tuple[str, tuple[str, ...]]] = {}
    for index, (half, first, *steps) in enumerate(leaves):
        if half.key == "0" and index in locations:
            parameter = _parameter(locations[index], steps)
            if parameter:
                found.setdefault(int(first.key), parameter)
    claims = Counter(found.values())
    taken = keywords | {name for name, _ in found.values()}
    places = []
    for half, first, *steps in leaves:
        prefix: tuple[str, ...] = ()
        if half.key == "1":
            root = first.key
        else:
            root, prefix = found.get(int(first.key), ("", ()))
            if claims[root, prefix] != 1 or root in keywords:
                root, prefix = _free(f"arg{first.key}", taken), ()
        keyed = not prefix and all(step.keyed for step in steps)
        places.append(Place(root, (*prefix, *(step.key for step in steps)), keyed))
    return tuple(places)


def _walk(
    node: Table, path: tuple[Step, ...], custom_nodes: set[str]
) -> Iterator[tuple[Step, ...]]:
    if len(path) > _DEPTH_LIMIT:
        raise InvalidProgram(f"nested deeper than {_DEPTH_LIMIT}: a pytree of arguments or results")
    kind = _kind(node)
    children = node.tables(_Field.CHILDREN)
    if kind in (_Kind.LEAF, _Kind.NONE):
        if children:
            raise InvalidProgram("damaged: a leaf of a pytree has children")
        if kind is _Kind.LEAF:
            yield path
        return
    for step, child in zip(_steps(node, kind, len(children), custom_nodes), children, strict=True):
        yield from _walk(child, (*path, step), custom_nodes)


def _steps(node: Table, kind: _Kind, count: int, custom_nodes: set[str]) -> list[Step]:
    if kind is _Kind.DICT:
        return _dict_steps(node.texts(_Field.CHILDREN_NAMES), count)
    if kind is _Kind.CUSTOM:
        name = node.text(_Field.CUSTOM_NAME)
        if not name:
            raise InvalidProgram("damaged: a custom node of a pytree has no name")
        if name == _ORDERED_DICT:
            return _dict_steps(_ordered_dict_keys(node.text(_Field.CUSTOM_AUXDATA)), count)
        custom_nodes.add(name)
        return [Step(str(index), keyed=False, printed="") for index in range(count)]
    return [Step(str(index), keyed=False, printed=f"[{index}]") for index in range(count)]


def _dict_steps(keys: Sequence[str], count: int) -> list[Step]:
    if len(set(keys)) != count or len(keys) != count:
        raise InvalidProgram(
            f"damaged: a dict has {count} items and {len(keys)} keys, {len(set(keys))} different"
        )
    return [Step(key, keyed=True, printed=f"[{key!r}]") for key in keys]


def _ordered_dict_keys(auxdata: str) -> list[str]:
    """The keys of a collections.OrderedDict, which JAX keeps as a JSON array."""
    try:
        keys = json.loads(auxdata)
    except (ValueError, RecursionError):
        keys = None
    if type(keys) is not list or not all(type(key) is str and _is_text(key) for key in keys):
        raise InvalidProgram(f"damaged: {auxdata[:80]!r} are no keys of an OrderedDict")
    return keys


def _is_text(key: str) -> bool:
    """Whether UTF-8 can hold it: JSON can spell lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in key)


def _kind(node: Table) -> _Kind:
    value = node.number(_Field.KIND, int8)
    try:
        return _Kind(value)
    except ValueError:
        raise InvalidProgram(
            f"written by a newer JAX, or damaged: kind {value} of pytree node is unknown"
        ) from None


def _parameter(location: str, steps: Sequence[Step]) -> tuple[str, tuple[str, ...]] | None:
    """The parameter's name, and the index when it is a `*parameter`: what precedes the steps."""
    name = _PARAMETER.match(location)
    if name is None:
        return None
    printed = [step.printed for step in steps]
    known = "".join(itertools.takewhile(bool, printed))

    def leads_here(rest: str) -> bool:
        return rest.startswith(known) if "" in printed else rest == known

    rest = location[name.end() :]
    index = _INDEX.match(rest)
    if index and not leads_here(rest) and leads_here(rest[index.end() :]):
        return name[0], (index[1],)
    return name[0], ()


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
