"""Makes a version callable: loads programs and weights, compiles the warm-up sizes, tries them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from servax.types import ServedState, Version
from servax_worker.blobs import open_mapped
from servax_worker.dispatch import Dispatcher
from servax_worker.errors import CannotServe, InvalidInput
from servax_worker.executables import Executables
from servax_worker.metrics import Metrics
from servax_worker.placement import Weights
from servax_worker.runtime import Executable, Program, Runtime
from servax_worker.signature import SignatureChecker
from servax_worker.warmup import choose_sizes
from servax_worker.weights import map_weights

T = TypeVar("T")
Report = Callable[[ServedState, str], None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LoadedSignature:
    """One callable program: how requests are checked, and what runs them."""

    checker: SignatureChecker
    executables: Executables[Executable]


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
        *,
        warm_up: Mapping[str, Sequence[int]],
        max_executables: int,
        compile_on_demand: bool,
    ):
        """`settings.Settings` explains the last three."""
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._warm_up = warm_up
        self._max_executables = max_executables
        self._compile_on_demand = compile_on_demand
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        # Apart from loading, so that a request for a new size does not wait for a whole model.
        self._on_demand = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._turn = asyncio.Lock()

    async def assemble(
        self, version: Version, files: Mapping[str, Path], report: Report
    ) -> LoadedVersion:
        """Loads, compiles and tries every signature; `files` holds every blob by its digest.

        Raises CannotServe where a signature cannot be served here or does not do what it says, and
        what the device raises.
        """
        report(ServedState.COMPILING, "loading programs and weights")
        names = [signature.name for signature in version.signatures]
        if not names or len(set(names)) < len(names):
            raise CannotServe(f"the artifact's signatures are {names}: one or more, each once")
        weights = await self._load(partial(self._place_weights, version, files))
        prepared = []
        for signature in version.signatures:
            blob = open_mapped(files[signature.program.digest])
            program = await self._load(partial(self._runtime.load, blob, signature))
            checker = SignatureChecker(signature, program.constraints)
            wanted = await self._load(partial(self._sizes, checker))
            prepared.append((program, checker, wanted))

        count, total = 0, sum(len(sizes) for _, _, sizes in prepared)
        signatures = {}
        for program, checker, wanted in prepared:
            make = self._compiler(version, program, weights, self._on_demand)
            executables = Executables(
                self._max_executables, make, self._turn, on_demand=self._compile_on_demand
            )
            compile_now = self._compiler(version, program, weights, self._loading)
            refusal: InvalidInput | None = None
            for sizes in wanted:
                count += 1
                report(ServedState.COMPILING, f"compiling {count} of {total}")
                try:
                    executables.add(await compile_now(sizes))
                except InvalidInput as error:
                    # Whether a program takes a size is known only once it was compiled for it.
                    log.warning("a warm-up size is refused", sizes=sizes, reason=str(error))
                    refusal = error
            if not len(executables):
                raise CannotServe(
                    f"signature '{checker.signature.name}' compiles for none of {wanted}: {refusal}"
                )
            signatures[checker.signature.name] = LoadedSignature(checker, executables)
        await self._try_all(signatures, report)
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

    def _place_weights(self, version: Version, files: Mapping[str, Path]) -> Weights:
        specs = [spec for signature in version.signatures for spec in signature.weights]
        shards = {
            tensor.name: (open_mapped(files[shard.blob.digest]), tensor)
            for shard in version.weights
            for tensor in shard.tensors
        }
        return Weights(map_weights(specs, shards))

    def _sizes(self, checker: SignatureChecker) -> list[dict[str, int]]:
        def allowed(sizes: dict[str, int]) -> bool:
            try:
                checker.check_constraints(sizes)
            except InvalidInput:
                return False
            return True

        name = checker.signature.name
        sizes = choose_sizes(checker.symbols, self._warm_up, allowed)
        if not sizes:
            raise CannotServe(
                f"no small sizes of {', '.join(checker.symbols)} meet the constraints of signature "
                f"'{name}' ({'; '.join(map(str, checker.constraints))}): name some with --warm-up"
            )
        if len(sizes) > self._max_executables:
            raise CannotServe(
                f"{len(sizes)} sizes of signature '{name}' to warm up, at most "
                f"{self._max_executables}: change --warm-up or --max-executables"
            )
        return sizes

    def _compiler(
        self, version: Version, program: Program, weights: Weights, executor: ThreadPoolExecutor
    ) -> Callable[[Mapping[str, int]], "asyncio.Future[Executable]"]:
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

    async def _try_all(self, signatures: Mapping[str, LoadedSignature], report: Report) -> None:
        trials = [
            (loaded.checker, executable)
            for loaded in signatures.values()
            for executable in loaded.executables
        ]
        for count, (checker, executable) in enumerate(trials, 1):
            report(ServedState.VERIFYING, f"running {count} of {len(trials)}")
            example = checker.example(executable.sizes)
            executed = await self._dispatcher.run(partial(executable, example))
            checker.check_outputs(executed.result, executable.sizes)
