"""Whether a registry stays as quick with 100,000 versions in 1,000 models as with 1,000 in 10.

    python -m benchmarks.registry_scale [--versions N] [--calls N] [--db URL URL]

Both registries run side by side, each on a fresh SQLite database unless told otherwise (two empty
PostgreSQL databases, of which the second gets the many versions), and are asked the same in turn,
because the speed of a machine drifts. The target: every median at most twice as long with many
versions; what changed since a revision takes as long.
"""

import hashlib
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import click
import grpc
import jax
from jax import export
from rich.console import Console
from rich.table import Table
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from examples.services import clean_environment, service
from servax import Client
from servax_proto.v1 import registry_pb2, registry_pb2_grpc
from servax_registry.artifact import Action
from servax_registry.store.database import Database
from servax_registry.store.models import (
    AliasRow,
    BlobRow,
    ChangeRow,
    LabelRow,
    ModelRow,
    ShardRow,
    SignatureRow,
    VersionRow,
)

VERSIONS_PER_MODEL = 100
FEW = 1_000

# One version of every model has this label.
RARE = {"stage": "v50"}


def name(model: int) -> str:
    """Name a model; the order of names is that of numbers."""
    return f"model-{model:05d}"


def fill(database: Database, models: int) -> None:
    """Insert models like the one that was published, each with as many versions and an alias."""
    now = datetime.now(UTC)
    with database.read() as session:
        signature = session.scalars(select(SignatureRow).limit(1)).one()
    for begin in range(0, models, 10):
        with database.write(durable=False) as session:
            for model in range(begin, min(begin + 10, models)):
                _fill_model(session, model, signature, now)


def _fill_model(session: Session, model: int, signature: SignatureRow, now: datetime) -> None:
    numbers = range(1, VERSIONS_PER_MODEL + 1)
    times = [now - timedelta(minutes=VERSIONS_PER_MODEL - number) for number in numbers]
    own = {"name": name(model), "last_number": VERSIONS_PER_MODEL, "create_time": now}
    (model_id,) = _inserted(session, ModelRow, [own])
    digests = [f"sha256:{hashlib.sha256(b'%d:%d' % (model, n)).hexdigest()}" for n in numbers]
    blob = {"size": 1 << 20, "committed_size": 1 << 20, "update_time": now, "complete_time": now}
    blobs = _inserted(session, BlobRow, [{"digest": digest, **blob} for digest in digests])
    versions = _inserted(
        session,
        VersionRow,
        [
            {"model_id": model_id, "number": number, "description": "", "create_time": time}
            for number, time in zip(numbers, times, strict=True)
        ],
    )
    columns = ("position", "name", "inspection_id", "inputs", "weights", "outputs")
    copied = {column: getattr(signature, column) for column in columns}
    session.execute(insert(SignatureRow), [{"version_id": key, **copied} for key in versions])
    session.execute(
        insert(ShardRow),
        [
            {"version_id": key, "position": 0, "blob_id": blob, "tensors": ()}
            for key, blob in zip(versions, blobs, strict=True)
        ],
    )
    labels = [
        {"version_id": key, "key": label, "value": value}
        for key, number in zip(versions, numbers, strict=True)
        for label, value in (("team", "vision"), ("stage", f"v{number}"))
    ]
    session.execute(insert(LabelRow), labels)
    alias = {"model_id": model_id, "name": "production", "number": VERSIONS_PER_MODEL}
    session.execute(insert(AliasRow), [alias])
    change = {"actor": "", "model": name(model), "previous_version": 0, "detail": ""}
    session.execute(
        insert(ChangeRow),
        [
            {"time": time, "action": action.value, "version": number, "alias": alias, **change}
            for number, time in zip(numbers, times, strict=True)
            for action, alias in ((Action.PUBLISH, ""), (Action.SET_ALIAS, "production"))
        ],
    )


def _inserted(session: Session, table: Any, rows: list[dict[str, Any]]) -> list[int]:
    """Insert rows; gives their keys, in the same order."""
    statement = insert(table).returning(table.id, sort_by_parameter_order=True)
    return list(session.scalars(statement, rows))


def questions(models: int) -> dict[str, Callable[[registry_pb2_grpc.RegistryStub], object]]:
    """Give what is asked, each time of models chosen at random; listings in pages of ten.

    Every version but the first makes two changes.
    """
    rng = random.Random(0)
    revision = 2 * models * VERSIONS_PER_MODEL

    def some() -> str:
        return name(rng.randrange(models))

    def versions(**fields: Any) -> registry_pb2.ListVersionsRequest:
        return registry_pb2.ListVersionsRequest(page_size=10, **fields)

    get = registry_pb2.GetVersionRequest
    list_models = registry_pb2.ListModelsRequest(page_size=10)
    return {
        "list models": lambda stub: stub.ListModels(list_models),
        "list versions of a model": lambda stub: stub.ListVersions(versions(model=some())),
        "list versions": lambda stub: stub.ListVersions(versions()),
        "list versions with a label": lambda stub: stub.ListVersions(versions(labels=RARE)),
        "list versions of a model with a label": lambda stub: stub.ListVersions(
            versions(model=some(), labels=RARE)
        ),
        "list versions of a platform": lambda stub: stub.ListVersions(versions(platform="cpu")),
        "show a version": lambda stub: stub.GetVersion(
            get(model=some(), version=rng.randrange(1, VERSIONS_PER_MODEL + 1))
        ),
        "resolve an alias": lambda stub: stub.GetVersion(get(model=some(), alias="production")),
        "show a model": lambda stub: stub.GetModel(registry_pb2.GetModelRequest(model=some())),
        "what changed since a revision": lambda stub: stub.ListChanges(
            registry_pb2.ListChangesRequest(since=revision - 10)
        ),
    }


def publish_one(address: str) -> None:
    """Publish what the other versions are made like."""
    exported = export.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), "float32"))  # type: ignore[no-untyped-call]
    with Client(registry=address) as client:
        client.push("first", bytes(exported.serialize()))


@click.command()
@click.option("--versions", default=100_000, show_default=True, help="How many are many.")
@click.option("--calls", default=200, show_default=True, help="How many of each kind.")
@click.option("--db", nargs=2, help="The databases for few and for many versions.")
def main(versions: int, calls: int, db: tuple[str, str] | None) -> None:
    """Compare a registry of many versions with one of few."""
    console = Console()
    sizes = [count // VERSIONS_PER_MODEL for count in (FEW, versions)]
    with ExitStack() as stack:
        stubs = []
        for index, models in enumerate(sizes):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = db[index] if db else f"sqlite:///{folder / 'registry.db'}"
            arguments = ["serve", "--db", url, "--listen", "127.0.0.1:0", "--no-trials"]
            environment = clean_environment()
            running = service("servax_registry", arguments, folder, environment)
            address = stack.enter_context(running).address
            publish_one(address)
            began = time.perf_counter()
            with closing(Database(url)) as database:
                fill(database, models)
            took = time.perf_counter() - began
            console.print(f"{models * VERSIONS_PER_MODEL:,} versions inserted in {took:.0f} s")
            channel = stack.enter_context(grpc.insecure_channel(address))
            stubs.append(registry_pb2_grpc.RegistryStub(channel))
        table = Table(title=f"median of {calls} calls, ms")
        for column in ("", f"{FEW:,} versions", f"{versions:,} versions", "ratio"):
            table.add_column(column, justify="right" if column else "left")
        asked = [questions(models) for models in sizes]
        for question in asked[0]:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(calls):
                for ask, stub, taken in zip(asked, stubs, times, strict=True):
                    began = time.perf_counter()
                    ask[question](stub)
                    taken.append(time.perf_counter() - began)
            few, many = map(median, times)
            table.add_row(question, f"{few * 1e3:.2f}", f"{many * 1e3:.2f}", f"{many / few:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
