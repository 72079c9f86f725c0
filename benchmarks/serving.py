"""What serving costs: throughput, CPU and latency against the bare minimum, and overload.

    python -m benchmarks.serving [--rounds N] [--seconds S] [--cache DIR]

A registry and a worker run as processes of their own and serve two models of the examples, whose
batching is declared. Everything is measured in rounds, one thing after the other in each, and each
ratio is of what was measured in the same round, because the speed of a machine drifts:

* the transformer's rows per second with many callers of one row, against the best batch of the same
  program called directly in a process that does nothing else: at least 0.95;
* the worker's CPU per request of the MLP with 64 callers at once, against a bare `grpc.aio` server
  that answers messages of the same sizes: at most 1.4, and over PredictStream at most half of that;
* the latency of one caller of the MLP, against that server's plus the direct call's: at most 1.5;
* the transformer at four times its capacity: answers in time per second against what it can do, at
  least 0.9; accepted requests that kept their deadline; the worker's memory.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from examples.prepare import Example, prepare_mlp, prepare_transformer
from examples.services import clean_environment, service
from servax import Client
from servax.tensors import to_proto
from servax.types import Batching
from servax_proto.v1 import prediction_pb2

CALLERS = 64
DEADLINE = 2.0
OVERLOAD = 4
_PREDICT = "/servax.v1.Prediction/Predict"
_STREAM = "/servax.v1.Prediction/PredictStream"

Call = Callable[[], Awaitable[Any]]


class Processes:
    """What a process and those that it started have used so far, from /proc."""

    def __init__(self, pid: int):
        self._pid = pid

    @property
    def cpu(self) -> float:
        """Seconds of CPU time."""
        ticks = 0
        for directory in self._directories():
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float:
        """Resident MiB."""
        pages = sum(int((each / "statm").read_text().split()[1]) for each in self._directories())
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _directories(self) -> Iterator[Path]:
        pids = [self._pid]
        while pids:
            directory = Path(f"/proc/{pids.pop()}")
            yield directory
            for children in directory.glob("task/*/children"):
                pids += map(int, children.read_text().split())


async def calls(call: Call, callers: int, seconds: float) -> list[float]:
    """Have so many callers call one after the other; gives how many seconds each call took."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < end:
            await call()
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return times


def unary(channel: grpc.aio.Channel, method: str, message: bytes) -> Call:
    """A call of a message that is serialized already; its answer stays as it is."""
    method_call: Any = channel.unary_unary(method)
    return lambda: method_call(message)


async def cpu_per_call(process: Processes, call: Call, seconds: float) -> float:
    """Seconds of the process's CPU time per call with `CALLERS` callers."""
    await calls(call, CALLERS, 0.3)
    before = process.cpu
    count = len(await calls(call, CALLERS, seconds))
    return (process.cpu - before) / count


async def cpu_per_streamed(
    process: Processes, channel: grpc.aio.Channel, request: Any, seconds: float
) -> float:
    """The same over one stream that has `CALLERS` requests under way."""
    free = asyncio.Queue[int]()
    for number in range(CALLERS):
        free.put_nowait(number)
    messages = [
        prediction_pb2.PredictStreamRequest(id=number, request=request).SerializeToString()
        for number in range(CALLERS)
    ]
    end = time.perf_counter() + seconds + 0.3

    async def requests() -> AsyncIterator[bytes]:
        while time.perf_counter() < end:
            yield messages[await free.get()]

    count, before, counted_from = 0, process.cpu, time.perf_counter() + 0.3
    stream: Any = channel.stream_stream(
        _STREAM, response_deserializer=prediction_pb2.PredictStreamResponse.FromString
    )
    async for answer in stream(requests()):
        assert answer.HasField("response"), answer.error
        free.put_nowait(answer.id)
        if time.perf_counter() < counted_from:
            before = process.cpu
        else:
            count += 1
    return (process.cpu - before) / count


async def overload(call: Callable[[], Awaitable[Any]], rate: float, seconds: float) -> Counter[str]:
    """Send so many calls a second, whatever comes of them; count their ends by status."""
    ends: Counter[str] = Counter()

    async def one() -> None:
        try:
            await call()
            ends["OK"] += 1
        except grpc.aio.AioRpcError as error:
            ends[error.code().name] += 1

    began = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    while (passed := time.perf_counter() - began) < seconds:
        while len(tasks) < passed * rate:
            tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return ends


_DIRECT = """
import sys, time
import jax, numpy as np, safetensors.flax
from pathlib import Path
jax.config.update("jax_cpu_enable_async_dispatch", False)
program, weights, rows, samples = sys.argv[1:]
call = jax.jit(jax.export.deserialize(bytearray(Path(program).read_bytes())).call)
arguments = (safetensors.flax.load_file(weights),) if weights else ()
inputs = np.resize(np.load(samples), (int(rows), *np.load(samples).shape[1:]))
compiled = call.lower(*arguments, inputs).compile()
for line in sys.stdin:
    count, end = 0, time.perf_counter() + float(line)
    times = []
    while (began := time.perf_counter()) < end:
        np.asarray(compiled(*arguments, inputs)["logits"])
        times.append(time.perf_counter() - began)
    print(len(times) / sum(times), sorted(times)[len(times) // 2], flush=True)
"""


class Direct:
    """A program that is called in a process that does nothing else, when it is told to."""

    def __init__(self, example: Example, rows: int, directory: Path):
        samples = directory / f"{example.name}.npy"
        np.save(samples, example.samples[:1])
        self.rows = rows
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _DIRECT),
                *(example.program, example.weights or "", str(rows), samples),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.measure(0.1)

    def measure(self, seconds: float) -> tuple[float, float]:
        """Calls per second, and the median seconds of a call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        rate, call = map(float, self._process.stdout.readline().split())
        return rate, call

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_ECHO = """
import asyncio, sys
import grpc, grpc.aio
async def main():
    answer = bytes(int(sys.argv[1]))
    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(echo)
    async def echo(request, context):
        return answer
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@contextmanager
def _echo(size: int) -> Iterator[tuple[int, int]]:
    """A bare server whose answers have so many bytes: its process and its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ECHO, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


def request_of(example: Example, rows: int) -> Any:
    """A request of the first samples."""
    array: NDArray[Any] = example.samples[:rows]
    return prediction_pb2.PredictRequest(
        model=example.name, inputs={example.input: to_proto(array)}
    )


async def measure(
    stack: ExitStack, worker: str, pid: int, examples: list[Example], rounds: int, seconds: float
) -> Table:
    """Measure everything; a table of medians."""
    transformer, mlp = examples
    folder = transformer.program.parent
    batches = [Direct(transformer, rows, folder) for rows in (1, 2, 4, 8)]
    single = Direct(mlp, 1, folder)
    for direct in (*batches, single):
        stack.callback(direct.stop)
    process = Processes(pid)

    async with grpc.aio.insecure_channel(worker) as channel:
        message = request_of(mlp, 1).SerializeToString()
        call_mlp = unary(channel, _PREDICT, message)
        call_transformer = unary(channel, _PREDICT, request_of(transformer, 1).SerializeToString())
        size = len(await call_mlp())
        echo, port = stack.enter_context(_echo(size))
        echo_process = Processes(echo)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as bare:
            call_echo = unary(bare, "/bare/Echo", message)
            found: dict[str, list[tuple[float, float]]] = {}

            def note(name: str, own: float, other: float) -> None:
                found.setdefault(name, []).append((own, other))

            for _ in range(rounds):
                best = max(direct.rows * direct.measure(seconds)[0] for direct in batches)
                began = time.perf_counter()
                count = len(await calls(call_transformer, CALLERS, 2 * seconds))
                rate = count / (time.perf_counter() - began)
                note("transformer, rows/s", rate, best)

                base = await cpu_per_call(echo_process, call_echo, seconds)
                note(
                    "MLP, CPU µs a call",
                    1e6 * await cpu_per_call(process, call_mlp, seconds),
                    1e6 * base,
                )
                streamed = await cpu_per_streamed(process, channel, request_of(mlp, 1), seconds)
                note("MLP, CPU µs a streamed call", 1e6 * streamed, 1e6 * base)

                latency = median(await calls(call_echo, 1, seconds))
                least = latency + single.measure(seconds / 2)[1]
                own = median(await calls(call_mlp, 1, seconds))
                note("MLP, one caller's p50 in µs", 1e6 * own, 1e6 * least)

            capacity = median(rate for rate, _ in found["transformer, rows/s"])
            predict: Any = channel.unary_unary(_PREDICT)
            heavy = request_of(transformer, 1).SerializeToString()
            before = process.memory
            ends = await overload(
                lambda: predict(heavy, timeout=DEADLINE), OVERLOAD * capacity, 8 * seconds
            )
            after = process.memory
    total = 8 * seconds
    note("overload, answers in time/s", ends["OK"] / total, capacity)
    accepted = sum(ends.values()) - ends["RESOURCE_EXHAUSTED"]
    note("overload, accepted in time", ends["OK"], accepted)
    note("overload, memory in MiB", after, before)

    table = Table(title=f"{rounds} rounds, medians")
    for column in ("", "Servax", "against", "ratio", "ratios"):
        table.add_column(column, justify="right" if column else "left")
    for name, pairs in found.items():
        ratios = [own / other for own, other in pairs]
        table.add_row(
            name,
            f"{median(own for own, _ in pairs):.1f}",
            f"{median(other for _, other in pairs):.1f}",
            f"{median(ratios):.2f}",
            " ".join(f"{ratio:.2f}" for ratio in ratios),
        )
    table.caption = f"overload ended with {dict(ends)}"
    return table


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often to measure.")
@click.option("--seconds", default=3.0, show_default=True, help="How long one measurement takes.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path(".cache/examples"),
    show_default=True,
    help="Where trained checkpoints are kept.",
)
def main(rounds: int, seconds: float, cache: Path) -> None:
    """Measure a worker against the bare minimum."""
    console = Console()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        environment = clean_environment()
        examples = []
        for prepare in (prepare_transformer, prepare_mlp):
            folder = directory / prepare.__name__
            folder.mkdir()
            examples.append(prepare(console, cache.resolve(), folder))
        registry = stack.enter_context(
            service(
                "servax_registry",
                ["serve", "--db", f"sqlite:///{directory}/r.db", "--listen", "127.0.0.1:0"],
                directory,
                environment,
            )
        )
        with Client(registry=registry.address) as client:
            for example in examples:
                weights = [example.weights] if example.weights else []
                client.push(example.name, example.program, weights=weights, batching=Batching("b"))
        arguments = ["serve", "--registry", registry.address, "--cache-dir", str(directory)]
        arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        for example in examples:
            arguments += ["--model", example.name]
        worker = stack.enter_context(service("servax_worker", arguments, directory, environment))
        with Client(worker=worker.address) as client:
            for example in examples:
                client.wait_until_ready(example.name, timeout=120)
        for path in sorted(directory.glob("plans/*.json")):
            console.print(path.read_text(), soft_wrap=True)
        table = asyncio.run(measure(stack, worker.address, worker.pid, examples, rounds, seconds))
        console.print(table)


if __name__ == "__main__":
    main()
