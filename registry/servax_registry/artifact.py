"""What the registry stores, in the words of the design: plain values, no I/O."""

import enum
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple, Self


@dataclass(frozen=True)
class Blob:
    """A stored byte string: `digest` is "sha256:" and 64 hexadecimal digits, `size` in bytes."""

    digest: str
    size: int


@dataclass(frozen=True)
class Argument:
    """One flat argument of a program, as it stands in the export.

    `root` is the name of the function's parameter that it belongs to; `path` leads to it inside
    that parameter (dict keys and sequence indices) and is empty when the parameter is the array
    itself. `shape` holds one expression per dimension. `keyed` says that every step of `path` is
    a dict key.
    """

    root: str
    path: tuple[str, ...]
    keyed: bool
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """One flat result of a program; `path` leads to it inside the returned tree."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[str, ...]


class WrittenIn(NamedTuple):
    """What decides which releases of JAX load a program; `jax_version` is "" where it is not told.

    As a text, its parts have slashes between them.
    """

    stablehlo_version: str
    serialization_version: int
    calling_convention_version: int
    jax_version: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it back out of the text."""
        stablehlo, serialization, calling_convention, jax = text.split("/", 3)
        return cls(stablehlo, int(serialization), int(calling_convention), jax)


@dataclass(frozen=True)
class Program:
    """Everything that was read out of a serialized jax.export.Exported.

    `effects` are JAX's, and the operations that exchange data with the host. `custom_calls` are
    the targets of all custom calls in the module, sorted.
    """

    function_name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    platforms: tuple[str, ...]
    device_count: int
    calling_convention_version: int
    serialization_version: int
    stablehlo_version: str
    jax_version: str
    disabled_checks: tuple[str, ...]
    effects: tuple[str, ...]
    custom_nodes: tuple[str, ...]
    custom_calls: tuple[str, ...] = ()

    @property
    def written_in(self) -> WrittenIn:
        """The versions that it was written in."""
        return WrittenIn(
            self.stablehlo_version,
            self.serialization_version,
            self.calling_convention_version,
            self.jax_version,
        )


@dataclass(frozen=True)
class Trial:
    """What came of compiling a program on the registry's machine, and of running it there once.

    `outcome` is "passed", "failed", or "impossible" where nothing was learned of the program;
    `reason` tells why it is not "passed". The rest is the compiler's account of a passed one, for
    `size` in every symbolic dimension (0: it has none): floating-point operations, and bytes that
    it accesses and that its arguments, results, temporaries and code take; 0 where unknown.
    `ran` tells whether it was also run, which large arguments forbid.
    """

    outcome: str
    reason: str = ""
    jax_version: str = ""
    size: int = 0
    ran: bool = False
    flops: int = 0
    accessed_bytes: int = 0
    argument_bytes: int = 0
    result_bytes: int = 0
    temporary_bytes: int = 0
    code_bytes: int = 0


@dataclass(frozen=True)
class TensorSpec:
    """A named array of a signature; `position` is its index among flat arguments or results."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    position: int


@dataclass(frozen=True)
class Batching:
    """That rows do not influence each other: dimension 0 of every input and output counts them.

    `symbol` is the symbolic dimension that counts rows, "" where their number is fixed. `max_rows`
    is the most that one call takes, 0 for no limit.
    """

    symbol: str
    max_rows: int


@dataclass(frozen=True)
class StoredTensor:
    """One array inside a safetensors blob, `size` bytes from byte `offset` of the blob on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class GoldenExample:
    """Inputs and the outputs that they must give, in a safetensors blob.

    The arrays are "inputs/NAME" and "outputs/NAME", one for every input and output. An output
    matches where abs(actual - expected) <= atol + rtol * abs(expected).
    """

    blob: Blob
    rtol: float
    atol: float
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class Encoding:
    """The program of a signature once more, in the blob `program`, for other releases of JAX.

    `inspected` is everything that was read out of it; `trial` is None until it was tried.
    """

    program: Blob
    inspected: Program
    create_time: datetime
    trial: Trial | None = None


@dataclass(frozen=True)
class Signature:
    """A program with its arguments told apart: what callers supply and what weights supply.

    `inspected` is everything that was read out of the blob `program`. `encodings`, in the order in
    which they were added, and `trial`, None until the program was tried, change over time.
    """

    name: str
    program: Blob
    inspected: Program
    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: Batching | None = None
    golden: GoldenExample | None = None
    encodings: tuple[Encoding, ...] = ()
    trial: Trial | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """The digests of its program and of all encodings of that."""
        return (self.program.digest, *(each.program.digest for each in self.encodings))


@dataclass(frozen=True)
class WeightsShard:
    """One safetensors blob and what it holds, by ascending offset."""

    blob: Blob
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class VersionName:
    """Names a version."""

    model: str
    number: int


@dataclass(frozen=True)
class Version:
    """One immutable version of a model; only `aliases` and `delete_time` change over time.

    `creator` is who published it, `source_revision` what it was made from, and `copied_from` the
    version that it is a copy of.
    """

    model: str
    number: int
    signatures: tuple[Signature, ...]
    weights: tuple[WeightsShard, ...]
    description: str
    labels: dict[str, str]
    create_time: datetime
    aliases: tuple[str, ...] = ()
    creator: str = ""
    source_revision: str = ""
    copied_from: VersionName | None = None
    delete_time: datetime | None = None


@dataclass(frozen=True)
class Selection:
    """Which versions a listing is of: those that meet every condition that is given.

    A version has all `labels`, and each of its signatures was lowered for `platform`. It was
    published at `created_from` or later, and before `created_before`. It has a signature of which
    every encoding expires before the day `expiring_before`.
    """

    model: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    platform: str = ""
    created_from: datetime | None = None
    created_before: datetime | None = None
    expiring_before: date | None = None
    show_deleted: bool = False


@dataclass(frozen=True)
class Model:
    """A named line of versions; those that were deleted do not count.

    `latest_version` is 0 when all were.
    """

    name: str
    create_time: datetime
    latest_version: int
    version_count: int
    aliases: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MissingBlob:
    """A blob that is not stored; `committed_size` bytes of an interrupted upload are kept."""

    digest: str
    committed_size: int


@dataclass(frozen=True)
class GoldenSource:
    """A golden example to publish: the digest of its blob; see GoldenExample."""

    digest: str
    rtol: float
    atol: float


@dataclass(frozen=True)
class ProgramSource:
    """A program to publish: the blob's digest, and the name of the signature it becomes."""

    signature: str
    digest: str
    batching: Batching | None = None
    golden: GoldenSource | None = None


@dataclass(frozen=True)
class Publication:
    """What a publisher wants to become a version; `weights` are digests of safetensors blobs.

    `request_id` tells a repeated request from a new one; None where the caller gave none.
    """

    model: str
    programs: tuple[ProgramSource, ...]
    weights: tuple[str, ...] = ()
    description: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    request_id: str | None = None
    source_revision: str = ""

    @property
    def digests(self) -> tuple[str, ...]:
        """All blobs that it names."""
        programs = [source.digest for source in self.programs]
        golden = [source.golden.digest for source in self.programs if source.golden]
        return (*programs, *self.weights, *golden)


class Action(enum.Enum):
    """What can be done to a model."""

    PUBLISH = "publish"
    COPY = "copy"
    DELETE = "delete"
    UNDELETE = "undelete"
    COLLECT = "collect"
    SET_ALIAS = "set alias"
    DELETE_ALIAS = "delete alias"
    ADD_ENCODING = "add encoding"


@dataclass(frozen=True)
class Change:
    """One thing that changed, when, and who did it.

    `version` is the one that it was done to; of an alias the one that it points to from then on, 0
    where it was removed; `previous_version` is where it pointed before, 0 where it did not exist.
    `detail` is what else is to be known: the source of a copy, the signature of an encoding.
    """

    revision: int
    time: datetime
    actor: str
    action: Action
    model: str
    version: int
    alias: str = ""
    previous_version: int = 0
    detail: str = ""
