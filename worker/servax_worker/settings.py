"""The worker's settings: built once from the command line, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servax.reference import ModelReference


@dataclass(frozen=True)
class Settings:
    """Everything that can be chosen about a worker."""

    registry: str
    """Where the registry answers, as HOST:PORT."""

    models: tuple[ModelReference, ...]
    """What to serve."""

    cache_directory: Path
    """Holds blobs and compiled executables between runs; private to the user."""

    listen: str = "127.0.0.1:8500"
    """Where gRPC is served; port 0 takes any that is free."""

    http: str = "127.0.0.1:8501"
    """Where health and metrics are served over HTTP; port 0 takes any that is free."""

    poll: float = 5.0
    """Seconds between questions to where an alias or a name alone points; 0 for none."""

    warm_up: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes of symbolic dimensions to compile for before READY, by symbol."""

    max_executables: int = 32
    """How many sizes of one signature are kept compiled."""

    compile_on_demand: bool = True
    """Whether a new size is compiled on its first request."""

    batching: bool = True
    """Whether requests of different callers are joined, where a version declares that they may."""

    max_batch_rows: int = 0
    """The rows up to which requests are joined; 0 for what warm-up finds to be the best."""

    queue_delay: float = 0.0
    """Seconds that a request waits for others although the device is idle."""

    max_queue: int = 1000
    """How many requests of one signature wait for the device; more are refused."""

    max_message_bytes: int = 64 << 20
    """The largest request that Predict takes, and the largest answer that it gives."""

    max_request_bytes: int = 2 << 30
    """The largest request that PredictStream takes, and the most that the unfinished requests of
    one stream may hold together."""

    max_in_flight: int = 256
    """How many requests of one stream run at once; more wait in the network."""

    allow_shared_memory: bool = False
    """Whether callers that speak the Open Inference Protocol may pass arrays through shared memory:
    whoever can call then reads and writes every segment of this machine that the worker can."""

    tensor_content: bool = False
    """Whether answers over TensorFlow Serving's protocol have their elements as bytes, in
    `tensor_content`; its own server calls it --enable_serialization_as_tensor_content."""

    allowed_custom_calls: frozenset[str] = frozenset()
    """Targets of custom calls that programs may make although JAX does not keep them stable."""

    allow_management: bool = False
    """Whether callers may load and unload models."""

    load_apart: bool = False
    """Whether a version is loaded in a process of its own first."""

    load_timeout: float = 1800.0
    """Seconds that the loader process may take."""

    load_memory: int = 0
    """Bytes that the loader process may have to itself; 0 for no limit."""

    call_timeout: float = 300.0
    """Seconds that one call on the device may take before the serving process is ended."""

    memory_limit: int = 0
    """Bytes of the device's memory that versions may take; 0 for what the device tells."""

    processes: int = 1
    """How many serving processes the worker has."""

    process: int = 0
    """The number of this one, from 0 on."""

    siblings: Path | None = None
    """A folder where several processes reach each other."""

    log_requests: bool = False
    """Whether every request is logged when it has ended."""

    grace: float = 30.0
    """Seconds that a worker told to stop gives the requests in flight."""
