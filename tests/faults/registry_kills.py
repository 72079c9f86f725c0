"""Kills registries and clients at random moments, and checks what is left after each kill.

    python tests/faults/registry_kills.py --kills 60 --seed 1

Clients, each a process with a model of its own, upload, publish, move and delete, and tell of every
operation before it begins and once it is acknowledged. After each kill, and a restart, the registry
must hold exactly what was acknowledged. The one operation that a client had begun and was not
answered may have happened or not, but as a whole. A failure prints the seed and exits with 1.
"""

import hashlib
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

import click

from servax import Blob, Client
from servax.errors import (
    Conflict,
    DeadlineExceeded,
    NotFound,
    OutOfRange,
    ServaxError,
    Unavailable,
)

MIB = 1 << 20
CLIENTS = 2

# What a client may be told while the registry dies, or while the upload of a client that was killed
# still ends.
INTERRUPTIONS = (Unavailable, DeadlineExceeded, Conflict, OutOfRange)

Operation = tuple[Any, ...]


@dataclass
class State:
    """What the registry holds of one client's: versions with their labels, aliases, uploads."""

    last_number: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    uploads: set[tuple[int, int]] = field(default_factory=set)

    def apply(self, operation: Operation) -> None:
        """Change what the operation changes."""
        match operation:
            case ("upload", seed, size):
                self.uploads.add((seed, size))
            case ("publish", label, alias):
                self.last_number += 1
                self.versions[self.last_number] = label
                self.aliases[alias] = self.last_number
            case ("alias", alias, number):
                self.aliases[alias] = number
            case ("unalias", alias):
                del self.aliases[alias]
            case ("delete", number):
                del self.versions[number]

    def choose(self, rng: random.Random, label: str) -> Operation:
        """Choose an operation that is possible."""
        deletable = sorted(self.versions.keys() - set(self.aliases.values()))
        possible: list[Operation] = [
            ("upload", rng.randrange(1 << 30), rng.randrange(12 * MIB)),
            ("publish", label, f"a{rng.randrange(3)}"),
        ]
        if self.versions:
            number = rng.choice(sorted(self.versions))
            possible.append(("alias", f"a{rng.randrange(3)}", number))
        if self.aliases:
            possible.append(("unalias", rng.choice(sorted(self.aliases))))
        if deletable:
            possible.append(("delete", rng.choice(deletable)))
        return rng.choice(possible)


def content(seed: int, size: int) -> bytes:
    """Make the bytes of an upload."""
    return random.Random(seed).randbytes(size)


def perform(
    client: Client, model: str, operation: Operation, programs: list[bytes], folder: Path
) -> None:
    """Do one operation on the registry; files are put into `folder`."""
    match operation:
        case ("upload", seed, size):
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(content(seed, size))
                file.flush()
                client.upload(file.name)
        case ("publish", label, alias):
            program = programs[crc32(label.encode()) % len(programs)]
            client.push(model, program, aliases=[alias], labels={"operation": label})
        case ("alias", alias, number):
            client.set_alias(model, alias, number)
        case ("unalias", alias):
            client.delete_alias(model, alias)
        case ("delete", number):
            client.delete_version(f"{model}:{number}")


def run_client(
    pipe: Connection,
    address: str,
    model: str,
    state: State,
    seed: int,
    programs: list[bytes],
    folder: Path,
) -> None:
    """Perform operations until told to stop, or until one is interrupted."""
    rng = random.Random(seed)
    with Client(registry=address, timeout=20) as client:
        while not pipe.poll():
            operation = state.choose(rng, f"{seed}-{rng.randrange(1 << 30)}")
            pipe.send(("begun", operation))
            try:
                perform(client, model, operation, programs, folder)
            except INTERRUPTIONS:
                return
            except ServaxError as error:
                pipe.send(("failed", f"{operation}: {error!r}"))
                return
            state.apply(operation)
            pipe.send(("done", operation))


class Registry:
    """A registry process that comes back at the address that it had."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder / 'registry.db'}"
        self._log = folder / "registry.log"
        self.address = "127.0.0.1:0"

    def launch(self) -> None:
        """Start it, without waiting until it serves."""
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "servax_registry", "serve"),
                    *("--db", self._url, "--listen", self.address, "--no-trials"),
                ],
                stdout=log,
            )

    def await_serving(self) -> None:
        """Wait until it serves."""
        while "\n" not in (logged := self._log.read_text()):
            assert self._process.poll() is None, "the registry did not start again"
            time.sleep(0.01)
        self.address = json.loads(logged.partition("\n")[0])["address"]

    def abandon(self) -> None:
        """Kill it, whatever its state."""
        self._process.kill()
        self._process.wait()

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end; whatever it logged meanwhile is a fault."""
        self._process.send_signal(number)
        self._process.wait()
        faults = [line for line in self._log.read_text().splitlines() if '"level": "error"' in line]
        assert not faults, faults


def observe(client: Client, model: str, before: State) -> State:
    """Read what the registry holds; uploads are those of `before`, which are told apart by name."""
    try:
        known = client.model(model)
    except NotFound:
        return State()
    versions = list(client.versions(model))
    assert known.version_count == len(versions)
    for version in versions:
        assert version.signatures, "a version without its programs"
        assert client.read_blob(version.signatures[0].program)
    return State(
        last_number=before.last_number,
        versions={version.number: version.labels["operation"] for version in versions},
        aliases=dict(known.aliases),
    )


def is_stored(client: Client, seed: int, size: int) -> bool:
    """Tell whether an upload is there; what is there must be whole."""
    data = content(seed, size)
    try:
        found = client.read_blob(Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", size))
    except NotFound:
        return False
    assert found == data
    return True


def settle(client: Client, model: str, state: State, begun: Operation | None) -> State:
    """Check that the registry holds `state`, or that and all of `begun`, and give which."""
    happened = deepcopy(state)
    if begun is not None:
        happened.apply(begun)
    if begun is not None and begun[0] == "upload" and is_stored(client, *begun[1:]):
        state = happened
    for upload in random.sample(sorted(state.uploads), min(3, len(state.uploads))):
        assert is_stored(client, *upload), f"the acknowledged upload {upload} is gone"
    found = observe(client, model, state)
    for candidate in (state, happened):
        if (found.versions, found.aliases) == (candidate.versions, candidate.aliases):
            return candidate
    raise AssertionError(f"{model}: found {found}, acknowledged was {state}, begun was {begun}")


def told(pipe: Connection) -> Iterator[tuple[str, Any]]:
    """Give what a client that has ended had told."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, ConnectionResetError):  # the latter where it had not read "stop"
            return


class Kills:
    """Rounds of clients at work, a kill, a restart, and a check."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        random.seed(seed)
        self._registry = Registry(folder)
        self._states = {f"m{index}": State() for index in range(CLIENTS)}
        self._programs = [exported(index) for index in range(20)]
        self.counts: Counter[str] = Counter()

    def run(self, kills: int) -> None:
        """Do so many rounds; raises AssertionError when the registry broke its promise."""
        self._registry.launch()
        self._registry.await_serving()
        try:
            for _ in range(kills):
                self._round()
            self._check_all()
        except BaseException:
            self._registry.abandon()
            raise
        self._registry.end(signal.SIGTERM)

    def _check_all(self) -> None:
        with Client(registry=self._registry.address, timeout=20) as client:
            for model, state in self._states.items():
                settle(client, model, state, None)
                for upload in state.uploads:
                    assert is_stored(client, *upload), f"the acknowledged upload {upload} is gone"

    def _round(self) -> None:
        context = multiprocessing.get_context("spawn")
        clients = {}
        for model, state in self._states.items():
            ours, theirs = context.Pipe()
            seed = self._rng.randrange(1 << 30)
            arguments = (self._registry.address, model, state, seed, self._programs, self._folder)
            process = context.Process(target=run_client, args=(theirs, *arguments))
            process.start()
            theirs.close()
            clients[model] = (process, ours)
        for _, pipe in clients.values():
            assert pipe.poll(60), "a client did not begin"

        victim = None
        time.sleep(self._rng.uniform(0, 1))
        if self._rng.random() < 0.6:
            self.counts["registry killed"] += 1
            self._registry.end(signal.SIGKILL)
            self._registry.launch()
            if self._rng.random() < 0.3:
                self.counts["registry killed at its start"] += 1
                time.sleep(self._rng.uniform(0, 1))
                self._registry.end(signal.SIGKILL)
                self._registry.launch()
            self._registry.await_serving()
        else:
            self.counts["client killed"] += 1
            victim, _ = self._rng.choice(list(clients.values()))
            victim.kill()
        time.sleep(self._rng.uniform(0, 0.3))

        for _, pipe in clients.values():
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have ended
                pipe.send("stop")
        for process, _ in clients.values():
            process.join(90)
            expected = -signal.SIGKILL if process is victim else 0
            assert process.exitcode == expected, f"a client ended with {process.exitcode}"
        with Client(registry=self._registry.address, timeout=20) as client:
            for model, (_, pipe) in clients.items():
                self._check(client, model, pipe)

    def _check(self, client: Client, model: str, pipe: Connection) -> None:
        state, begun = self._states[model], None
        for kind, operation in told(pipe):
            assert kind != "failed", operation
            begun = operation if kind == "begun" else None
            if kind == "done":
                state.apply(operation)
                self.counts[f"{operation[0]} acknowledged"] += 1
        self._states[model] = settled = settle(client, model, state, begun)
        if begun is not None:
            outcome = "happened" if settled is not state else "did not happen"
            self.counts[f"{begun[0]} not answered, {outcome}"] += 1


def exported(number: int) -> bytes:
    """Make a program."""
    # Here, for clients, which import this module, are to begin quickly.
    import jax
    from jax import export

    function = jax.jit(lambda x: x + number)
    return bytes(export.export(function)(jax.ShapeDtypeStruct((2,), "int32")).serialize())


@click.command()
@click.option("--kills", default=60, show_default=True, help="How many rounds to do.")
@click.option("--seed", type=int, help="Repeats a run, as far as timing allows.")
def main(kills: int, seed: int | None) -> None:
    """Kill registries and clients at random moments, and check what is left."""
    if seed is None:
        seed = random.randrange(1 << 30)
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        run = Kills(Path(folder), seed)
        run.run(kills)
    for what, count in sorted(run.counts.items()):
        click.echo(f"{count:6} {what}")


if __name__ == "__main__":
    main()
