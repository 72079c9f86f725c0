"""Makes a version callable: loads programs and weights, compiles the warm-up sizes, tries them."""

import asyncio
import itertools
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from servax.types import ServedState, Version
from servax_worker.blobs import open_mapped
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.executables import Executables
from servax_worker.gate import choose_encoding
from servax_worker.golden import Golden
from servax_worker.loaded import LoadedSignature
from servax_worker.memory import MemoryBudget, Reservation
from servax_worker.metrics import Metrics
from servax_worker.placement import Weights
from servax_worker.planning import Compile, Planner
from servax_worker.plans import Plans
from servax_worker.runtime import Executable, Program, Runtime
from servax_worker.settings import Settings
from servax_worker.signature import SignatureChecker
from servax_worker.weights import map_weights

T = TypeVar("T")
Report = Callable[[ServedState, str], None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LoadedVersion:
    """A version that can be called, by signature."""

    version: Version
    signatures: Mapping[str, LoadedSignature]


class Assembler:
    """Loads versions one at a time, on a thread of its own."""

    def __init__(
        self,
        runtime: Runtime,
        dispatcher: Dispatcher,
        metrics: Metrics,
        plans: Plans,
        memory: MemoryBudget,
        settings: Settings,
    ):
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._planner = Planner(runtime, dispatcher, plans, settings)
        self._settings = settings
        self._memory = memory
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        # Apart from loading, so that a request for a new size does not wait for a whole model.
        self._on_demand = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._turn = asyncio.Lock()

    def choose_encodings(self, version: Version) -> Version:
        """Gives the version with those encodings of its programs that are to be run here."""
        host, today = self._runtime.host, date.today()
        signatures = (choose_encoding(each, host, today) for each in version.signatures)
        return replace(version, signatures=tuple(signatures))

    async def assemble(
        self,
        version: Version,
        files: Mapping[str, Path],
        report: Report,
        *,
        proved: bool = False,
    ) -> LoadedVersion:
        """Loads, compiles and tries every signature; `files` holds every blob by its digest.

        Of what was `proved` in the same circumstances, one size of each signature is tried, which
        brings the weights into memory. Raises CannotServe where a signature cannot be served here,
        does not do what it says, or where the device has no memory left for it, and what the device
        raises.
        """
        reservation = self._memory.reserve(f"{version.model}:{version.number}")
        try:
            loaded = await self._assemble(version, files, report, reservation, proved)
        except BaseException:
            reservation.release()
            raise
        # The memory is free when nobody refers to the version any more.
        weakref.finalize(loaded, reservation.release)
        return loaded

    async def _assemble(
        self,
        version: Version,
        files: Mapping[str, Path],
        report: Report,
        reservation: Reservation,
        proved: bool,
    ) -> LoadedVersion:
        report(ServedState.COMPILING, "loading programs and weights")
        names = [signature.name for signature in version.signatures]
        if not names or len(set(names)) < len(names):
            raise CannotServe(f"the artifact's signatures are {names}: one or more, each once")
        weights = await self._load(partial(self._map_weights, version, files))
        reservation.grow(weights.nbytes, "the weights")
        prepared = []
        for signature in version.signatures:
            blob = open_mapped(files[signature.program.digest])
            name = f"{version.model}:{version.number}"
            program = await self._load(partial(self._runtime.load, blob, signature, name))
            checker = SignatureChecker(self._planner.served(signature), program.constraints)
            prepared.append(
                (program, checker, await self._load(partial(self._planner.choices, checker)))
            )

        total = sum(len(rows) for _, _, choices in prepared for _, rows in choices)
        counting = itertools.count(1)
        signatures, compilers = {}, {}
        for program, checker, choices in prepared:
            compile = self._compiler(version, program, weights, self._loading)
            compilers[checker.signature.name] = compile

            def compile_now(
                sizes: Mapping[str, int], compile: Compile = compile
            ) -> Awaitable[Executable]:
                report(ServedState.COMPILING, f"compiling {next(counting)} of up to {total}")
                return compile(sizes)

            plan, compiled = await self._planner.plan(checker, choices, compile_now)
            executables = Executables(
                self._settings.max_executables,
                self._compiler(version, program, weights, self._on_demand),
                self._turn,
                on_demand=self._settings.compile_on_demand,
            )
            for executable in compiled:
                executables.add(executable)
            code = sum(executable.code_bytes for executable in compiled)
            most = max(executable.call_bytes for executable in compiled)
            reservation.grow(code + plan.side_by_side * most, "calls")
            name = checker.signature.name
            signatures[name] = LoadedSignature(
                checker,
                executables,
                plan,
                self._dispatcher,
                self._metrics.of_calls(version.model, version.number, name),
                joins=self._settings.batching,
                max_queue=self._settings.max_queue,
                delay=self._settings.queue_delay,
            )
        await self._try(signatures, report, 1 if proved else None)
        for signature in version.signatures:
            if signature.golden is not None:
                report(ServedState.VERIFYING, f"golden example of '{signature.name}'")
                blob = open_mapped(files[signature.golden.blob.digest])
                golden = Golden.read(signature.name, signature.golden, blob)
                await self._try_golden(
                    signatures[signature.name], golden, compilers[signature.name]
                )
        return LoadedVersion(version, signatures)

    async def release(self) -> None:
        """Gives the memory of versions that are not referred to any more back to the system."""

        def release() -> None:
            # While neither thread compiles; a new size never waits for what is loading.
            self._on_demand.submit(self._runtime.release).result()

        await self._load(release)

    def close(self) -> None:
        """Drops what has not begun; does not wait for what has."""
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._on_demand.shutdown(wait=False, cancel_futures=True)

    async def _load(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loading, step)

    def _map_weights(self, version: Version, files: Mapping[str, Path]) -> Weights:
        specs = [spec for signature in version.signatures for spec in signature.weights]
        shards = {
            tensor.name: (open_mapped(files[shard.blob.digest]), tensor)
            for shard in version.weights
            for tensor in shard.tensors
        }
        return Weights(map_weights(specs, shards))

    def _compiler(
        self, version: Version, program: Program, weights: Weights, executor: ThreadPoolExecutor
    ) -> Compile:
        labels = (version.model, str(version.number), program.signature.name)

        def compile(sizes: Mapping[str, int]) -> Executable:
            began = time.monotonic()
            executable = program.compile(sizes, weights)
            seconds = time.monotonic() - began
            self._metrics.compilations.labels(*labels, executable.source).inc()
            self._metrics.compilation_seconds.labels(*labels).observe(seconds)
            log.info(
                "compiled",
                model=version.model,
                version=version.number,
                signature=program.signature.name,
                sizes=dict(sizes),
                seconds=round(seconds, 3),
                source=executable.source,
            )
            return executable

        return lambda sizes: asyncio.get_running_loop().run_in_executor(executor, compile, sizes)

    async def _try(
        self, signatures: Mapping[str, LoadedSignature], report: Report, sizes: int | None
    ) -> None:
        """Runs so many sizes of each signature, or all."""
        trials = [
            (loaded.checker, executable)
            for loaded in signatures.values()
            for executable in itertools.islice(loaded.executables, sizes)
        ]
        for count, (checker, executable) in enumerate(trials, 1):
            report(ServedState.VERIFYING, f"running {count} of {len(trials)}")
            example = checker.example(executable.sizes)
            outputs = await self._dispatcher.run(partial(executable, example))
            checker.check_outputs(outputs, executable.sizes)

    async def _try_golden(self, loaded: LoadedSignature, golden: Golden, compile: Compile) -> None:
        try:
            sizes = loaded.checker.check(golden.inputs)
        except InvalidInput as error:
            raise CannotServe(f"the golden example does not fit: {error}") from error
        if not loaded.checker.row_symbol and loaded.executables.find(sizes) is None:
            loaded.executables.add(await compile(sizes))
        result = await loaded.call(golden.inputs, sizes, None)
        golden.check(result.outputs)
