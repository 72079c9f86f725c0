"""Kills registries, clients and garbage collections at random moments, and checks what is left.

    python -m tests.faults.registry_kills --kills 500 --seed 1
    python -m tests.faults.registry_kills --kills 500 --db postgresql://USER@HOST/EMPTY_DATABASE

Clients, each a process with a model of its own, upload, publish, move, delete and undelete, and
tell of every operation before it begins and once it is acknowledged; garbage is collected beside
them. After each kill, and a restart, the registry must hold exactly what was acknowledged, its log
of changes must lead to that, and a check must find nothing wrong. The one operation that a client
had begun and was not answered may have happened or not, but as a whole. A failure prints the seed
and exits with 1.
"""

import faulthandler
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import click
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import text

from servax import Client
from servax.errors import (
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    ServaxError,
    Unavailable,
)
from servax_registry.__main__ import main as servax_registry
from servax_registry.store.blobs import BlobStore
from servax_registry.store.checking import Check
from servax_registry.store.database import Database
from tests.faults.history import Operation, State, replayed

CLIENTS = 2

# How many seconds no round takes.
HANG = 150
PROGRAMS = 10

# What a client may be told while the registry dies, or while the upload of a client that was killed
# still ends.
INTERRUPTIONS = (Unavailable, DeadlineExceeded, Conflict, OutOfRange)

# What it may be told besides where garbage is collected without any grace: that is gone which it
# was told is there.
COLLECTED = (NotFound, FailedPrecondition)

# Processes begin quickly: all that they import is there already.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["servax", "servax_registry.__main__", "psycopg", "obstore"])


def content(seed: int, size: int) -> bytes:
    """Make the bytes of an upload."""
    return random.Random(seed).randbytes(size)


def digest(data: bytes) -> str:
    """Give the digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def exported(number: int) -> bytes:
    """Make a program."""
    # Here, so that other processes begin quickly.
    import jax
    from jax import export

    function = jax.jit(lambda x: x + number)
    return bytes(export.export(function)(jax.ShapeDtypeStruct((2,), "int32")).serialize())


def perform(
    client: Client, model: str, operation: Operation, programs: Sequence[bytes], folder: Path
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
        case ("undelete", number):
            client.undelete_version(f"{model}:{number}")


def run_client(pipe: Connection, model: str, programs: Sequence[bytes], folder: Path) -> None:
    """Work in rounds, each until it is over or an operation was interrupted."""
    while True:
        try:
            address, state, seed, collecting = pipe.recv()
        except EOFError:
            return
        rng = random.Random(seed)
        with Client(registry=address, timeout=20) as client:
            while not pipe.poll():
                operation = state.choose(rng, f"{seed}-{rng.randrange(1 << 30)}")
                pipe.send(("begun", operation))
                try:
                    perform(client, model, operation, programs, folder)
                except INTERRUPTIONS:
                    break
                except ServaxError as error:
                    if not (collecting and isinstance(error, COLLECTED)):
                        pipe.send(("failed", f"{operation}: {error!r}"))
                    break
                state = state.after(operation)
                pipe.send(("done", operation))
        pipe.recv()
        pipe.send(("over", None))


class Worker:
    """A client in a process of its own."""

    def __init__(self, model: str, programs: Sequence[bytes], folder: Path) -> None:
        self._arguments = (model, programs, folder)
        self._begin()

    def _begin(self) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=run_client, args=(theirs, *self._arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def start(self, address: str, state: State, seed: int, collecting: bool) -> None:
        """Begin a round, and wait for its first operation."""
        self._pipe.send((address, state, seed, collecting))
        assert self._pipe.poll(60), "a client did not begin"

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()

    def finish(self) -> Iterator[tuple[str, Any]]:
        """End the round; yield what the client told. Who was killed has a successor after that."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send("over")
        while True:
            try:
                told = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                assert self._process.exitcode == -signal.SIGKILL, "a client failed"
                self._begin()
                return
            if told[0] == "over":
                return
            yield told


def run_command(arguments: Sequence[str], log: Path) -> None:
    """Run servax-registry in this process; everything it prints goes to `log`."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    servax_registry(arguments, prog_name="servax-registry")


class Registry:
    """A registry that comes back at the address that it had, and commands on its storage."""

    def __init__(self, folder: Path, database: str | None, blobs: str | None) -> None:
        self._folder = folder
        self.database = database or f"sqlite:///{folder / 'registry.db'}"
        self.blobs = (folder / "blobs").as_uri() if blobs == "directory" else blobs
        self._where = ["--db", self.database, *(["--blobs", self.blobs] if self.blobs else [])]
        self._log = folder / "registry.log"
        self._launched: Any = None
        self.address = "127.0.0.1:0"

    def launch(self) -> None:
        """Start it, without waiting until it serves."""
        self._launched = self._now()
        self._log.write_text("")
        listen = ["--listen", self.address, "--no-trials"]
        self._process = self.command(["serve", *self._where, *listen], self._log)

    def collect(self) -> ForkServerProcess:
        """Begin to collect garbage, without any grace."""
        command = ["gc", *self._where, "--retention", "0", "--grace", "0"]
        return self.command(command, self._folder / "gc.log")

    def command(self, arguments: Sequence[str], log: Path) -> ForkServerProcess:
        """Start a command."""
        process = context.Process(target=run_command, args=(arguments, log), daemon=True)
        process.start()
        return process

    def await_serving(self) -> None:
        """Wait until it serves."""
        while "\n" not in (logged := self._log.read_text()):
            assert self._process.exitcode is None, "the registry did not start again"
            time.sleep(0.01)
        self.address = json.loads(logged.partition("\n")[0])["address"]

    def abandon(self) -> None:
        """Kill it, whatever its state."""
        self._process.kill()
        self._process.join()

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end; whatever it logged meanwhile is a fault."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        self._process.join()
        faults = [line for line in self._log.read_text().splitlines() if '"level": "error"' in line]
        assert not faults, faults

    def settle(self) -> None:
        """Wait until a database server has noticed who was killed before the last start.

        Until then, what they had asked for last can still happen.
        """
        while self._launched is not None and self._ask(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            f"AND pid <> pg_backend_pid() AND backend_start < '{self._launched}'"
        ):
            time.sleep(0.01)

    def _now(self) -> Any:
        """Give the database server's time; None where there is no server."""
        return None if self.database.startswith("sqlite") else self._ask("SELECT clock_timestamp()")

    def _ask(self, query: str) -> Any:
        with closing(Database(self.database)) as database, database.read() as session:
            return session.scalar(text(query))


def observe(client: Client, model: str) -> State:
    """Read what the registry holds of a model, every program included."""
    try:
        known = client.model(model)
    except NotFound:
        return State()
    found = State(aliases=dict(known.aliases))
    programs = set()
    for version in client.versions(model, deleted=True):
        programs.add(version.signatures[0].program)
        numbers = found.deleted if version.delete_time else found.versions
        numbers[version.number] = version.labels["operation"]
    for program in programs:
        assert digest(client.read_blob(program)) == program.digest
    told = replayed(client.changes(model))
    assert (told.versions.keys(), told.deleted.keys(), told.aliases) == (
        found.versions.keys(),
        found.deleted.keys(),
        found.aliases,
    ), f"{model}: found {found}, changes lead to {told}"
    assert known.version_count == len(found.versions)
    assert known.latest_version == max(found.versions, default=0)
    found.last_number = told.last_number
    return found


class Kills:
    """Rounds of clients at work, a kill, a restart, and a check."""

    def __init__(self, folder: Path, database: str | None, blobs: str | None, seed: int) -> None:
        self._rng = random.Random(seed)
        self._registry = Registry(folder, database, blobs)
        programs = [exported(index) for index in range(PROGRAMS)]
        self._states = {f"m{index}": State() for index in range(CLIENTS)}
        self._workers = {model: Worker(model, programs, folder) for model in self._states}
        self.kills = 0
        self.counts: Counter[str] = Counter()

    def run(self, kills: int) -> None:
        """Kill so often; raises AssertionError when the registry broke its promise."""
        self._registry.launch()
        try:
            self._registry.await_serving()
            with Progress(console=Console(stderr=True)) as progress:
                task = progress.add_task("kills", total=kills)
                while self.kills < kills:
                    self._round()
                    progress.update(task, completed=self.kills)
            self._end()
        finally:
            self._registry.abandon()

    def _round(self) -> None:
        # A hang is a failure as well, which tells where.
        faulthandler.dump_traceback_later(HANG, exit=True)
        collecting = self._rng.random() < 0.4
        for model, worker in self._workers.items():
            seed = self._rng.randrange(1 << 30)
            worker.start(self._registry.address, self._states[model], seed, collecting)
        collection = self._registry.collect() if collecting else None
        time.sleep(self._rng.uniform(0, 0.7))
        if collection is not None and self._rng.random() < 0.6:
            collection.kill()
            self._count_kill("a garbage collection")
        if self._rng.random() < 0.6:
            self._kill_registry()
        else:
            self._rng.choice(list(self._workers.values())).kill()
            self._count_kill("a client")
            # What it had asked for last ends before it is looked at.
            self._registry.end(signal.SIGTERM)
            self._registry.launch()
        self._registry.await_serving()
        time.sleep(self._rng.uniform(0, 0.2))
        told = {model: list(worker.finish()) for model, worker in self._workers.items()}
        if collection is not None:
            collection.join()
            assert collection.exitcode in (0, -signal.SIGKILL), "garbage was not collected"
        self._registry.settle()
        self._check(told, collecting)

    def _kill_registry(self) -> None:
        self._registry.end(signal.SIGKILL)
        self._registry.launch()
        self._count_kill("a registry that served")
        if self._rng.random() < 0.3:
            time.sleep(self._rng.uniform(0, 0.5))
            self._registry.end(signal.SIGKILL)
            self._registry.launch()
            self._count_kill("a registry that started")

    def _count_kill(self, what: str) -> None:
        self.kills += 1
        self.counts[f"killed: {what}"] += 1

    def _check(self, told: dict[str, list[tuple[str, Any]]], collecting: bool) -> None:
        with (
            Client(registry=self._registry.address, timeout=20) as client,
            closing(Database(self._registry.database)) as database,
        ):
            for model, messages in told.items():
                state, begun = self._states[model], None
                for kind, operation in messages:
                    assert kind != "failed", operation
                    begun = operation if kind == "begun" else None
                    if kind == "done":
                        state = state.after(operation)
                        self.counts[f"acknowledged: {operation[0]}"] += 1
                state = self._settled(client, model, state, begun, collecting)
                state.uploads = self._kept(database, state, begun, collecting)
                self._states[model] = state
            problems = Check(database, self._registry.blobs, lambda done, total: None).run()
            serious = [problem for problem in problems if not problem.harmless]
            assert not serious, serious

    def _settled(
        self,
        client: Client,
        model: str,
        state: State,
        begun: Operation | None,
        collecting: bool,
    ) -> State:
        """Check that the registry holds `state`, or that and all of `begun`, and give which."""
        found = observe(client, model)
        for outcome, candidate in (("", state), (", but happened", state.after(begun))):
            if candidate.fits(found, collecting=collecting):
                if begun is not None:
                    self.counts[f"not answered{outcome}: {begun[0]}"] += 1
                candidate.deleted = found.deleted
                return candidate
        raise AssertionError(f"{model}: found {found}, acknowledged was {state}, begun was {begun}")

    def _kept(
        self, database: Database, state: State, begun: Operation | None, collecting: bool
    ) -> set[tuple[int, int]]:
        """Give the uploads that are stored: all that were acknowledged, or some were collected."""
        expected = {digest(content(*upload)): upload for upload in state.uploads}
        blobs = BlobStore(database, self._registry.blobs)
        names = list(expected)
        missing = {blob.digest for blob in blobs.find_missing(names)}
        unanswered = {begun[1:]} if begun is not None and begun[0] == "upload" else set()
        lost = {expected[name] for name in missing}
        assert collecting or lost <= unanswered, f"the acknowledged uploads {lost} are gone"
        return state.uploads - lost

    def _end(self) -> None:
        """Collect all garbage, and check that nothing else is gone, and no garbage left."""
        collection = self._registry.collect()
        collection.join()
        assert collection.exitcode == 0, "garbage was not collected"
        self._check({model: [] for model in self._states}, collecting=True)
        for model, state in self._states.items():
            assert not state.deleted, f"deleted versions of {model} were not collected"
            assert not state.uploads, f"uploads of {model} were not collected"
        self._registry.end(signal.SIGTERM)


@click.command()
@click.option("--kills", default=60, show_default=True, help="How many processes to kill.")
@click.option("--seed", type=int, help="Repeats a run, as far as timing allows.")
@click.option("--db", "database", help="An empty PostgreSQL database; else a SQLite file.")
@click.option("--blobs", help="A URL, or `directory` for a temporary one; else in the database.")
def main(kills: int, seed: int | None, database: str | None, blobs: str | None) -> None:
    """Kill registries, clients and garbage collections, and check what is left."""
    if seed is None:
        seed = random.randrange(1 << 30)
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        run = Kills(Path(folder), database, blobs, seed)
        try:
            run.run(kills)
        finally:
            for what, count in sorted(run.counts.items()):
                click.echo(f"{count:6} {what}")


if __name__ == "__main__":
    main()
