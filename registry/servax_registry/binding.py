"""Tells a program's weights from its inputs, by the names of the stored tensors."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from servax_registry.artifact import (
    Argument,
    Blob,
    Program,
    Signature,
    StoredTensor,
    TensorSpec,
    WeightsShard,
)
from servax_registry.errors import InvalidWeights, Mismatch, listed
from servax_registry.naming import name_inputs, name_outputs


def bind(
    programs: Sequence[tuple[str, Blob, Program]], shards: Sequence[WeightsShard]
) -> tuple[Signature, ...]:
    """Make signatures out of (name, blob, program), with weights where shards are given.

    A parameter of the function takes weights when the dotted key paths of all its leaves are
    names of stored tensors; dtypes and shapes must then be equal. Raises Mismatch when no
    parameter does, when one fits only partly, or when a stored tensor remains unused; and
    InvalidWeights when two tensors have one name.
    """
    stored = _by_name(shards)
    signatures = tuple(_signature(name, blob, program, stored) for name, blob, program in programs)
    used = {spec.name for signature in signatures for spec in signature.weights}
    if stored and not used:
        raise Mismatch(
            f"weights were given ({listed(list(stored))}), but no parameter of "
            f"{listed([name for name, _, _ in programs])} takes any of them; "
            f"{_parameters(programs[0][2])}. Export the function with its weights as an argument: "
            "a dict whose key paths, joined with dots, are the names of the stored tensors"
        )
    unused = [name for name in stored if name not in used]
    if unused:
        raise Mismatch(
            f"{len(unused)} of the {len(stored)} stored tensors are used by no signature: "
            f"{listed(unused)}; store only what the programs take"
        )
    return signatures


def _by_name(shards: Sequence[WeightsShard]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in stored:
                raise InvalidWeights(f"two shards hold a tensor {tensor.name!r}; store it once")
            stored[tensor.name] = tensor
    return stored


def _signature(
    name: str, blob: Blob, program: Program, stored: Mapping[str, StoredTensor]
) -> Signature:
    weights = _weights_parameters(name, program, stored)
    inputs = [
        (position, argument)
        for position, argument in enumerate(program.arguments)
        if argument.root not in weights
    ]
    input_names = name_inputs([argument for _, argument in inputs])
    output_names = name_outputs(program.results)
    return Signature(
        name=name,
        program=blob,
        inspected=program,
        inputs=tuple(
            TensorSpec(input_name, argument.dtype, argument.shape, position)
            for input_name, (position, argument) in zip(input_names, inputs, strict=True)
        ),
        weights=tuple(
            TensorSpec(_key_path(argument), argument.dtype, argument.shape, position)
            for position, argument in enumerate(program.arguments)
            if argument.root in weights
        ),
        outputs=tuple(
            TensorSpec(output_name, result.dtype, result.shape, position)
            for position, (output_name, result) in enumerate(
                zip(output_names, program.results, strict=True)
            )
        ),
    )


def _weights_parameters(
    signature: str, program: Program, stored: Mapping[str, StoredTensor]
) -> Collection[str]:
    """Find the parameters that take weights; none when the signature takes no weights at all."""
    parameters: dict[str, list[Argument]] = defaultdict(list)
    for argument in program.arguments:
        parameters[argument.root].append(argument)
    missing = {
        root: [_key_path(leaf) for leaf in leaves if not leaf.path or _key_path(leaf) not in stored]
        for root, leaves in parameters.items()
    }
    named = [root for root, names in missing.items() if not names]
    # A dict of inputs may have keys in common with the weights; dtypes and shapes then decide.
    contested = set(_overlap(named, parameters))
    chosen = [
        root
        for root in named
        if not contested.intersection(map(_key_path, parameters[root]))
        or not _differences(parameters[root], stored)
    ] or named
    overlap = _overlap(chosen, parameters)
    if overlap:
        raise Mismatch(
            f"signature {signature!r}: the parameters {listed(chosen)} would take the same "
            f"weights, {listed(overlap)}; give the dict keys of one of them other names"
        )
    differences = [text for root in chosen for text in _differences(parameters[root], stored)]
    if differences:
        raise Mismatch(
            f"signature {signature!r}: {len(differences)} of its weights differ from what is "
            f"stored: {listed(differences, '; ')}"
        )
    if not chosen:
        _refuse_partial(signature, parameters, missing)
    return chosen


def _refuse_partial(
    signature: str, parameters: Mapping[str, list[Argument]], missing: Mapping[str, list[str]]
) -> None:
    """Raise Mismatch when some but not all leaves of a parameter are stored."""
    found = {root: len(leaves) - len(missing[root]) for root, leaves in parameters.items()}
    root = max(found, key=found.__getitem__, default="")
    if found.get(root):
        raise Mismatch(
            f"signature {signature!r}: of the {len(parameters[root])} arrays in its parameter "
            f"{root!r}, {len(missing[root])} are not among the stored tensors: "
            f"{listed(missing[root])}"
        )


def _differences(leaves: Sequence[Argument], stored: Mapping[str, StoredTensor]) -> list[str]:
    return [
        f"{_key_path(leaf)!r} is {tensor.dtype}[{','.join(map(str, tensor.shape))}], the program "
        f"takes {leaf.dtype}[{','.join(leaf.shape)}]"
        for leaf in leaves
        for tensor in [stored[_key_path(leaf)]]
        if leaf.dtype != tensor.dtype or leaf.shape != tuple(map(str, tensor.shape))
    ]


def _overlap(roots: Sequence[str], parameters: Mapping[str, list[Argument]]) -> list[str]:
    """Give the key paths that more than one of the parameters has."""
    names: set[str] = set()
    twice: list[str] = []
    for root in roots:
        for leaf in parameters[root]:
            (twice.append if _key_path(leaf) in names else names.add)(_key_path(leaf))
    return twice


def _key_path(argument: Argument) -> str:
    return ".".join(argument.path)


def _parameters(program: Program) -> str:
    roots = list(dict.fromkeys(argument.root for argument in program.arguments))
    return f"its parameters are {listed(roots)}" if roots else "it has no parameters"
