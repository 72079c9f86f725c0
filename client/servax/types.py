"""The values that people see: what the registry stores and what a worker serves.

Plain immutable values that mirror the API's messages; `servax.convert` makes them.
"""

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Literal, TypeAlias

from servax.reference import ModelReference

DEFAULT_SIGNATURE = "serving_default"
"""The name of a program that was given none."""

FilePath: TypeAlias = str | os.PathLike[str]
"""Where a local file is, or is to be."""

Content: TypeAlias = FilePath | bytes | bytearray
"""A file, or what it would hold: jax.export's serialize() gives a bytearray."""


@dataclass(frozen=True)
class Blob:
    """A stored byte string: `digest` is "sha256:" and 64 hexadecimal digits, `size` in bytes."""

    digest: str
    size: int


@dataclass(frozen=True)
class TensorSpec:
    """What an array must look like.

    `dtype` is JAX's name of the element type. `shape` holds one expression per dimension: a number
    ("256"), a symbolic dimension ("b") or arithmetic over them ("2*b + 1"). `position` is the
    array's index among the program's flat arguments or results.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    position: int

    def __str__(self) -> str:
        """As in "tokens: int32[b,256]"."""
        return f"{self.name}: {self.dtype}[{','.join(self.shape)}]"


@dataclass(frozen=True)
class Compatibility:
    """Which releases of JAX load a program, from when until when.

    `oldest_jax` is the oldest release that is known to, "" where none is, and `oldest_jax_date` the
    day of that release. `expires` is the last day on which a release can be built that is bound to
    load it; where it is `estimated`, it may be too early, and is never too late.
    """

    oldest_jax: str
    oldest_jax_date: date | None
    expires: date
    estimated: bool


class TrialOutcome(enum.Enum):
    """How the registry's trial of a program ended; IMPOSSIBLE where nothing was learned of it."""

    UNSPECIFIED = 0
    PASSED = 1
    FAILED = 2
    IMPOSSIBLE = 3


@dataclass(frozen=True)
class Trial:
    """What came of compiling a program on the registry's machine, and of running it there once.

    `reason` tells why it did not pass. The rest is the compiler's account of a passed one, for
    `size` in every symbolic dimension (0: it has none): floating-point operations, and bytes; 0
    where unknown. `ran` tells whether it was also run.
    """

    outcome: TrialOutcome
    reason: str
    jax_version: str
    size: int
    ran: bool
    flops: int
    accessed_bytes: int
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    code_bytes: int


@dataclass(frozen=True)
class Encoding:
    """A signature's program once more, written for older or newer releases of JAX."""

    program: Blob
    calling_convention_version: int
    serialization_version: int
    stablehlo_version: str
    jax_version: str
    compatibility: Compatibility
    create_time: datetime
    trial: Trial | None = None


@dataclass(frozen=True)
class Batching:
    """That rows do not influence each other: dimension 0 of every input and output counts them.

    `symbol` is the symbolic dimension that counts rows, "" where their number is fixed. `max_rows`
    is the most that one call takes, 0 for no limit.
    """

    symbol: str
    max_rows: int = 0


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

    The arrays are "inputs/NAME" and "outputs/NAME". An output matches where
    abs(actual - expected) <= atol + rtol * abs(expected).
    """

    blob: Blob
    rtol: float
    atol: float
    tensors: tuple[StoredTensor, ...] = ()


@dataclass(frozen=True)
class Golden:
    """A golden example to publish: a safetensors file, or its bytes; see GoldenExample."""

    content: Content
    rtol: float = 1e-5
    atol: float = 1e-6


@dataclass(frozen=True)
class Signature:
    """One callable program of a version; nearly everything was read out of the program.

    `inputs` is what callers supply, `weights` what the worker supplies from the version's weights.
    `name`, `batching` and `golden` are the publisher's words; `encodings`, and `trial`, which is
    None until the program was tried, change over time.
    """

    name: str
    program: Blob
    function_name: str
    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platforms: tuple[str, ...]
    device_count: int
    calling_convention_version: int
    serialization_version: int
    stablehlo_version: str
    jax_version: str
    disabled_checks: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    custom_nodes: tuple[str, ...] = ()
    custom_calls: tuple[str, ...] = ()
    compatibility: Compatibility | None = None
    trial: Trial | None = None
    encodings: tuple[Encoding, ...] = ()
    batching: Batching | None = None
    golden: GoldenExample | None = None

    @property
    def expires(self) -> date | None:
        """The day until which its most lasting encoding can be loaded; None where untold."""
        windows = [encoding.compatibility for encoding in self.encodings]
        windows += [self.compatibility] if self.compatibility else []
        return max((window.expires for window in windows), default=None)


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

    def __str__(self) -> str:
        """As in "mnist:3"."""
        return f"{self.model}:{self.number}"


@dataclass(frozen=True)
class Version:
    """One immutable version of a model; only `aliases` and `delete_time` change over time.

    `creator` is who published it, as they call themselves, `source_revision` what it was made from,
    and `copied_from` the version that it is a copy of.
    """

    model: str
    number: int
    signatures: tuple[Signature, ...]
    weights: tuple[WeightsShard, ...]
    description: str
    labels: Mapping[str, str]
    create_time: datetime
    aliases: tuple[str, ...] = ()
    creator: str = ""
    source_revision: str = ""
    copied_from: VersionName | None = None
    delete_time: datetime | None = None

    @property
    def expires(self) -> date | None:
        """The day until which all of its signatures can be loaded; None where untold."""
        days = [day for signature in self.signatures if (day := signature.expires)]
        return min(days, default=None)

    @property
    def size(self) -> int:
        """How many bytes its programs and weights take, shared blobs counted once."""
        blobs = {signature.program for signature in self.signatures}
        blobs.update(shard.blob for shard in self.weights)
        return sum(blob.size for blob in blobs)


@dataclass(frozen=True)
class Model:
    """A named line of versions, deleted ones left out; `latest_version` is 0 without any."""

    name: str
    create_time: datetime
    latest_version: int
    version_count: int
    aliases: Mapping[str, int] = field(default_factory=dict)


class Action(enum.Enum):
    """What was done to a model."""

    UNSPECIFIED = 0
    PUBLISH = 1
    COPY = 2
    DELETE = 3
    UNDELETE = 4
    COLLECT = 5
    SET_ALIAS = 6
    DELETE_ALIAS = 7
    ADD_ENCODING = 8


@dataclass(frozen=True)
class Change:
    """One thing that changed in the registry, and who changed it; revisions rise.

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
    alias: str
    previous_version: int
    detail: str


class ServedState(enum.Enum):
    """Where a worker stands with a version that it serves."""

    UNSPECIFIED = 0
    RESOLVING = 1
    DOWNLOADING = 2
    COMPILING = 3
    VERIFYING = 4
    READY = 5
    DRAINING = 6
    FAILED = 7


@dataclass(frozen=True)
class ServedVersion:
    """One version on a worker.

    `version` is 0 while RESOLVING. `alias` is the one by which the worker was told to serve it,
    empty when by number or as the latest. `detail` is progress or a reason, for people.
    """

    model: str
    version: int
    alias: str
    state: ServedState
    detail: str
    signatures: tuple[Signature, ...]


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker serves, the platform that it runs on and its version of JAX."""

    versions: tuple[ServedVersion, ...]
    platform: str
    jax_version: str

    def matching(self, reference: ModelReference) -> tuple[ServedVersion, ...]:
        """Give those that a reference may name: what is still RESOLVING may have any number."""
        return tuple(
            served
            for served in self.versions
            if served.model == reference.name
            and (reference.version is None or served.version in (reference.version, 0))
            and (reference.alias is None or served.alias == reference.alias)
        )


@dataclass(frozen=True)
class Spent:
    """How often something happened, and how many seconds that took altogether."""

    count: int = 0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds that it took each time; 0 where it never happened."""
        return self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True)
class BatchStatistics:
    """Batches of so many rows, without padding: joining the inputs, computing, cutting outputs."""

    rows: int
    input: Spent
    compute: Spent
    output: Spent


@dataclass(frozen=True)
class VersionStatistics:
    """How often a version was called on a worker, and how long that took, by ascending rows.

    `succeeded` and `failed` are requests, from their arrival on; `waited` is how long those that
    succeeded waited for the device.
    """

    model: str
    version: int
    succeeded: Spent
    failed: Spent
    waited: Spent
    batches: tuple[BatchStatistics, ...]


@dataclass(frozen=True)
class Progress:
    """How far a long step has come: `done` of `total` bytes of what is called `name`."""

    action: Literal["hash", "upload", "download"]
    name: str
    done: int
    total: int


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""Is told how far a transfer has come; an exception that it raises ends the transfer."""


class Default(enum.Enum):
    """The type of `DEFAULT`."""

    TIMEOUT = "the client's timeout"


DEFAULT = Default.TIMEOUT
"""Stands for the timeout that the client was made with."""

Timeout: TypeAlias = float | Default | None
"""Seconds; None for no limit."""
