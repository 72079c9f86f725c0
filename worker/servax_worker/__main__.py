"""The command line: servax-worker, or python -m servax_worker."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from servax.errors import InvalidReference
from servax.reference import ModelReference
from servax_worker import processes, serving_process
from servax_worker.errors import StartupError
from servax_worker.logs import configure_logging
from servax_worker.settings import Settings


class _Reference(click.ParamType[ModelReference]):
    name = "reference"

    def convert(
        self, value: str | ModelReference, param: click.Parameter | None, ctx: click.Context | None
    ) -> ModelReference:
        try:
            return ModelReference.parse(value)
        except InvalidReference as error:
            self.fail(str(error), param, ctx)


class _WarmUp(click.ParamType[tuple[str, tuple[int, ...]]]):
    name = "sizes"

    def convert(
        self,
        value: str | tuple[str, tuple[int, ...]],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, tuple[int, ...]]:
        if not isinstance(value, str):
            return value
        symbol, _, numbers = value.partition("=")
        sizes = numbers.split(",")
        if not symbol.isidentifier() or not all(size.isdecimal() and int(size) for size in sizes):
            self.fail(f"'{value}' is not SYMBOL=SIZE,SIZE… such as b=1,8", param, ctx)
        return symbol, tuple(map(int, sizes))


_http_option = click.option(
    "--http",
    envvar="SERVAX_WORKER_HTTP",
    show_envvar=True,
    default="127.0.0.1:8501",
    metavar="HOST:PORT",
    help="Where /healthz, /livez and /metrics are; port 0 serves them on any free port.",
)


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Serve published models over gRPC."""


@main.command()
@click.option(
    "--registry",
    envvar="SERVAX_REGISTRY",
    show_envvar=True,
    default="127.0.0.1:8400",
    metavar="HOST:PORT",
    help="Where the registry answers.",
)
@click.option(
    "--model",
    "models",
    type=_Reference(),
    multiple=True,
    envvar="SERVAX_WORKER_MODEL",
    show_envvar=True,
    metavar="NAME[@ALIAS|:VERSION]",
    help="What to serve: the latest version, the one that an alias points to, or one by number; "
    "the first two are followed. Repeat for more; separate by spaces in the environment.",
)
@click.option(
    "--listen",
    envvar="SERVAX_WORKER_LISTEN",
    show_envvar=True,
    default="127.0.0.1:8500",
    metavar="HOST:PORT",
    help="Where to serve gRPC; port 0 takes any free port.",
)
@_http_option
@click.option(
    "--cache-dir",
    "cache_directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SERVAX_WORKER_CACHE_DIR",
    show_envvar=True,
    default=Path("~/.cache/servax-worker"),
    help="Keeps blobs and compiled executables between runs; made private to the user.",
)
@click.option(
    "--poll",
    type=click.FloatRange(min=0),
    envvar="SERVAX_WORKER_POLL",
    show_envvar=True,
    default=Settings.poll,
    metavar="SECONDS",
    help="How often the registry is asked whether an alias, or the latest version, has moved; 0 "
    "for never.",
)
@click.option(
    "--warm-up",
    type=_WarmUp(),
    multiple=True,
    envvar="SERVAX_WORKER_WARM_UP",
    show_envvar=True,
    metavar="SYMBOL=SIZE,…",
    help="Sizes of a symbolic dimension to compile for before READY. Repeat for more symbols. "
    "[default: 1, 2, 4, 8 for a lone symbol, otherwise 1 for each]",
)
@click.option(
    "--max-executables",
    type=click.IntRange(min=1),
    envvar="SERVAX_WORKER_MAX_EXECUTABLES",
    show_envvar=True,
    default=Settings.max_executables,
    help="How many sizes of one signature are kept compiled.",
)
@click.option(
    "--compile-on-demand/--no-compile-on-demand",
    envvar="SERVAX_WORKER_COMPILE_ON_DEMAND",
    show_envvar=True,
    default=Settings.compile_on_demand,
    help="Whether a size that was not warmed up is compiled on its first request.",
)
@click.option(
    "--batching/--no-batching",
    envvar="SERVAX_WORKER_BATCHING",
    show_envvar=True,
    default=Settings.batching,
    help="Whether requests of different callers are joined where the version declares that they "
    "may.",
)
@click.option(
    "--max-batch-rows",
    type=click.IntRange(min=0),
    envvar="SERVAX_WORKER_MAX_BATCH_ROWS",
    show_envvar=True,
    default=Settings.max_batch_rows,
    help="The rows up to which requests are joined; 0 for what warm-up finds to be the best.",
)
@click.option(
    "--queue-delay",
    type=click.FloatRange(min=0),
    envvar="SERVAX_WORKER_QUEUE_DELAY",
    show_envvar=True,
    default=Settings.queue_delay * 1000,
    metavar="MILLISECONDS",
    help="How long a request waits for others although the device is idle.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    envvar="SERVAX_WORKER_MAX_QUEUE",
    show_envvar=True,
    default=Settings.max_queue,
    help="How many requests of one signature wait for the device; more are refused.",
)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1, 2**31 - 1),
    envvar="SERVAX_WORKER_MAX_MESSAGE_BYTES",
    show_envvar=True,
    default=Settings.max_message_bytes,
    help="The largest request or answer in one message; larger ones take PredictStream.",
)
@click.option(
    "--max-request-bytes",
    type=click.IntRange(min=1),
    envvar="SERVAX_WORKER_MAX_REQUEST_BYTES",
    show_envvar=True,
    default=Settings.max_request_bytes,
    help="The largest request in parts, and the most that one stream's unfinished requests hold.",
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    envvar="SERVAX_WORKER_MAX_IN_FLIGHT",
    show_envvar=True,
    default=Settings.max_in_flight,
    help="How many requests of one stream are worked on at once; more wait in the network.",
)
@click.option(
    "--allow-shared-memory/--no-allow-shared-memory",
    envvar="SERVAX_WORKER_ALLOW_SHARED_MEMORY",
    show_envvar=True,
    default=Settings.allow_shared_memory,
    help="Whether callers that speak the Open Inference Protocol may pass arrays through shared "
    "memory. Whoever can call then reads and writes every segment in /dev/shm that the worker can.",
)
@click.option(
    "--tensor-content/--no-tensor-content",
    envvar="SERVAX_WORKER_TENSOR_CONTENT",
    show_envvar=True,
    default=Settings.tensor_content,
    help="Whether callers that speak TensorFlow Serving's protocol get their answers as bytes in "
    "tensor_content (its --enable_serialization_as_tensor_content) instead of float_val etc.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    envvar="SERVAX_WORKER_GRACE",
    show_envvar=True,
    default=Settings.grace,
    metavar="SECONDS",
    help="How long requests in flight may take when the worker is told to stop.",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(min=0),
    envvar="SERVAX_WORKER_MEMORY_LIMIT",
    show_envvar=True,
    default=Settings.memory_limit,
    metavar="BYTES",
    help="How much of the device's memory versions may take, as the compiler counts it; 0 for what "
    "the device tells, which CPUs do not.",
)
@click.option(
    "--allow-custom-call",
    "allowed_custom_calls",
    multiple=True,
    envvar="SERVAX_WORKER_ALLOW_CUSTOM_CALL",
    show_envvar=True,
    metavar="TARGET",
    help="A custom call that programs may make although JAX does not keep it stable. Repeat for "
    "more; separate by spaces in the environment.",
)
@click.option(
    "--allow-management/--no-allow-management",
    envvar="SERVAX_WORKER_ALLOW_MANAGEMENT",
    show_envvar=True,
    default=Settings.allow_management,
    help="Whether anybody who reaches the worker may load and unload models.",
)
@click.option(
    "--load-apart/--no-load-apart",
    envvar="SERVAX_WORKER_LOAD_APART",
    show_envvar=True,
    default=True,
    help="Whether a version is compiled and tried in a process of its own first, so that one that "
    "crashes or hangs costs nothing but its own rollout.",
)
@click.option(
    "--load-timeout",
    type=click.FloatRange(min=0, min_open=True),
    envvar="SERVAX_WORKER_LOAD_TIMEOUT",
    show_envvar=True,
    default=Settings.load_timeout,
    metavar="SECONDS",
    help="How long that process may take.",
)
@click.option(
    "--load-memory",
    type=click.IntRange(min=0),
    envvar="SERVAX_WORKER_LOAD_MEMORY",
    show_envvar=True,
    default=Settings.load_memory,
    metavar="BYTES",
    help="How much memory that process may have to itself; 0 for no limit.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(min=0, min_open=True),
    envvar="SERVAX_WORKER_CALL_TIMEOUT",
    show_envvar=True,
    default=Settings.call_timeout,
    metavar="SECONDS",
    help="How long a call on the device may take before the serving process is ended and started "
    "again.",
)
@click.option(
    "--log-requests/--no-log-requests",
    envvar="SERVAX_WORKER_LOG_REQUESTS",
    show_envvar=True,
    default=Settings.log_requests,
    help="Whether to log every request: method, model, status, seconds, and the x-request-id that "
    "its caller gave it.",
)
@click.option(
    "--processes",
    "count",
    type=click.IntRange(min=1),
    envvar="SERVAX_WORKER_PROCESSES",
    show_envvar=True,
    default=Settings.processes,
    metavar="N",
    help="How many processes serve at the same ports, on a CPU; each takes its share of the "
    "processors and of --memory-limit.",
)
@click.option(
    "--supervise/--no-supervise",
    envvar="SERVAX_WORKER_SUPERVISE",
    show_envvar=True,
    default=True,
    help="Whether a parent process watches the serving process and starts it again.",
)
def serve(
    registry: str,
    models: tuple[ModelReference, ...],
    listen: str,
    http: str,
    cache_directory: Path,
    poll: float,
    warm_up: Iterable[tuple[str, tuple[int, ...]]],
    max_executables: int,
    compile_on_demand: bool,
    batching: bool,
    max_batch_rows: int,
    queue_delay: float,
    max_queue: int,
    max_message_bytes: int,
    max_request_bytes: int,
    max_in_flight: int,
    allow_shared_memory: bool,
    tensor_content: bool,
    grace: float,
    memory_limit: int,
    allowed_custom_calls: tuple[str, ...],
    allow_management: bool,
    load_apart: bool,
    load_timeout: float,
    load_memory: int,
    call_timeout: float,
    log_requests: bool,
    count: int,
    supervise: bool,
) -> None:
    """Serve models until SIGTERM or SIGINT."""
    if not models and not allow_management:
        raise click.UsageError("Missing option '--model', or --allow-management to load some later")
    if count > 1:
        for option, given in (
            # A caller would reach one of the processes, and change nothing in the others.
            ("--allow-management", allow_management),
            ("--allow-shared-memory", allow_shared_memory),
            ("--no-supervise", not supervise),
        ):
            if given:
                raise click.UsageError(f"--processes {count} does not go with {option}")
    settings = Settings(
        registry=registry,
        models=tuple(dict.fromkeys(models)),
        cache_directory=cache_directory.expanduser(),
        listen=listen,
        http=http,
        poll=poll,
        warm_up=dict(warm_up),
        max_executables=max_executables,
        compile_on_demand=compile_on_demand,
        batching=batching,
        max_batch_rows=max_batch_rows,
        queue_delay=queue_delay / 1000,
        max_queue=max_queue,
        max_message_bytes=max_message_bytes,
        max_request_bytes=max_request_bytes,
        max_in_flight=max_in_flight,
        allow_shared_memory=allow_shared_memory,
        tensor_content=tensor_content,
        grace=grace,
        memory_limit=memory_limit,
        allowed_custom_calls=frozenset(allowed_custom_calls),
        allow_management=allow_management,
        load_apart=load_apart,
        load_timeout=load_timeout,
        load_memory=load_memory,
        call_timeout=call_timeout,
        log_requests=log_requests,
        processes=count,
    )
    configure_logging()
    try:
        if supervise:
            sys.exit(processes.supervise(settings))
        serving_process.run(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_http_option
def health(http: str) -> None:
    """Ask a worker whether all its models are READY: exit code 0, or 1 and why not."""
    # Not for a supervisor, after which the serving process waits.
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://{http}/healthz", timeout=5):
            click.echo("all models are READY")
    except urllib.error.HTTPError as error:
        states = [
            f"{served['model']} is {served['state']} ({served['detail'] or 'no detail'})"
            for served in json.load(error)["versions"]
            if served["state"] != "READY"
        ]
        raise click.ClickException(f"not ready: {'; '.join(states) or 'shutting down'}") from error
    except OSError as error:
        raise click.ClickException(f"no worker answers at {http}: {error}") from error


if __name__ == "__main__":
    main(prog_name="servax-worker")
