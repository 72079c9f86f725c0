"""What clients of either kind do with a registry."""

import asyncio
import inspect
import re
import threading
from concurrent import futures
from pathlib import Path

import pytest

from servax import (
    AsyncClient,
    Client,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    FileError,
    InvalidArgument,
    InvalidReference,
    NotFound,
    Unavailable,
)

PROGRAM = b"a program"


@pytest.fixture
def published(client):
    """Three versions of one model."""
    return [client.push("lm", PROGRAM + bytes([n]), aliases=[f"a{n}"]) for n in range(3)]


def test_both_clients_have_the_same_methods():
    """AsyncClient takes what Client takes, argument by argument, and documents it."""

    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        return {
            name: list(inspect.signature(member).parameters.values())
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)


def test_a_version_is_published(client, registry, file_of):
    """Pushing stores program and weights and gives the version that names them."""
    weights = file_of(b"weights")

    version = client.push(
        "lm",
        file_of(PROGRAM),
        weights=[weights],
        aliases=["production"],
        description="trained on rain",
        labels={"data": "rain"},
    )

    assert (version.model, version.number, version.aliases) == ("lm", 1, ("production",))
    assert (version.description, version.labels) == ("trained on rain", {"data": "rain"})
    assert [s.name for s in version.signatures] == ["serving_default"]
    assert registry.blobs[version.signatures[0].program.digest] == PROGRAM
    assert registry.blobs[version.weights[0].blob.digest] == b"weights"
    assert client.version("lm@production") == version


def test_several_signatures_are_published_together(client, registry, file_of):
    """A mapping publishes a program for each signature, from bytes or files."""
    version = client.push("lm", {"prefill": PROGRAM, "decode": file_of(b"decode")})

    stored = {s.name: registry.blobs[s.program.digest] for s in version.signatures}
    assert stored == {"prefill": PROGRAM, "decode": b"decode"}


def test_a_lost_answer_publishes_once(client, registry):
    """When the answer to a publication is lost, the repetition gives the same version."""
    registry.publish_failures = 2

    version = client.push("lm", PROGRAM)

    assert version.number == 1
    assert len(registry.versions) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"model": "Bad Name"}, InvalidReference),
        ({"aliases": ["3"]}, InvalidReference),
        ({"program": {}}, InvalidArgument),
        ({"program": "/no/such/file"}, FileError),
        ({"weights": ["/no/such/file"]}, FileError),
        ({"weights": "weights.safetensors"}, InvalidArgument),
        ({"weights": Path("weights.safetensors")}, InvalidArgument),
        ({"aliases": "production"}, InvalidArgument),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(
    client, registry, arguments, error
):
    """A bad name, alias or file costs no upload."""
    arguments = {"model": "lm", "program": PROGRAM} | arguments

    with pytest.raises(error):
        client.push(**arguments)

    assert registry.received == 0


def test_a_rejected_program_is_no_version(client, registry):
    """What the registry says of the contents reaches the caller."""
    with pytest.raises(InvalidArgument, match="an empty file is no program"):
        client.push("lm", b"")

    assert registry.versions == {}


def test_listing_goes_over_all_pages(client, published):
    """Models and versions come in the registry's order, however many pages they take."""
    for name in ("b", "a", "c", "d"):
        client.push(name, PROGRAM)

    assert [model.name for model in client.models()] == ["a", "b", "c", "d", "lm"]
    assert [version.number for version in client.versions("lm")] == [3, 2, 1]


def test_an_empty_registry_has_no_models(client):
    """Listing nothing gives nothing."""
    assert list(client.models()) == []


@pytest.mark.parametrize(("reference", "number"), [("lm", 3), ("lm:1", 1), ("lm@a1", 2)])
def test_a_reference_names_a_version(client, published, reference, number):
    """The newest, a number and an alias each give their version."""
    assert client.version(reference) == published[number - 1]


def test_a_model_knows_its_aliases(client, published):
    """A model tells its newest version, how many there are, and its aliases."""
    model = client.model("lm")

    assert (model.latest_version, model.version_count) == (3, 3)
    assert model.aliases == {"a0": 1, "a1": 2, "a2": 3}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.version("other"),
        lambda client: client.version("lm:9"),
        lambda client: client.version("lm@nope"),
        lambda client: client.model("other"),
        lambda client: list(client.versions("other")),
        lambda client: client.delete_version("lm:9"),
        lambda client: client.delete_alias("lm", "nope"),
        lambda client: client.set_alias("lm", "a0", 9),
        lambda client: client.pull("lm", "never", signature="nope"),
        lambda client: client.pull("lm", "never", weights="never"),
    ],
    ids=range(10),
)
def test_what_does_not_exist_is_not_found(client, published, call):
    """Every call tells what does not exist by the same exception."""
    with pytest.raises(NotFound):
        call(client)


def test_an_alias_moves(client, published):
    """An alias points where it was last pointed to, and can be removed."""
    assert client.set_alias("lm", "a0", 3).aliases["a0"] == 3
    assert client.version("lm@a0").number == 3
    assert client.delete_alias("lm", "a0").aliases == {"a1": 2, "a2": 3}


def test_an_alias_moves_only_from_where_it_is_expected(client, published):
    """With an expectation, an alias that somebody else moved stays where it is."""
    client.set_alias("lm", "a0", 2, expected_version=1)
    with pytest.raises(Conflict, match="'a0' points to 2"):
        client.set_alias("lm", "a0", 3, expected_version=1)
    client.set_alias("lm", "fresh", 1, expected_version=0)
    with pytest.raises(Conflict):
        client.set_alias("lm", "fresh", 1, expected_version=0)


def test_a_version_is_deleted_by_number(client, published):
    """A version goes when no alias points to it, and only when its number is given."""
    with pytest.raises(FailedPrecondition, match="'a0' points to it"):
        client.delete_version("lm:1")
    client.delete_alias("lm", "a0")
    client.delete_version("lm:1")

    assert [version.number for version in client.versions("lm")] == [3, 2]
    for reference in ("lm", "lm@a1"):
        with pytest.raises(InvalidReference, match="'lm:3'"):
            client.delete_version(reference)


def test_program_and_weights_are_pulled(client, file_of, tmp_path):
    """Pulling writes the program to a file and the weights into a folder, which it makes."""
    shards = [file_of(b"first"), file_of(b"second")]
    pushed = client.push("lm", {"decode": PROGRAM}, weights=shards)

    pulled = client.pull("lm:1", tmp_path / "lm", signature="decode", weights=tmp_path / "a/b")

    assert pulled == pushed
    assert (tmp_path / "lm").read_bytes() == PROGRAM
    assert {path.name: path.read_bytes() for path in (tmp_path / "a/b").iterdir()} == {
        "model-00001-of-00002.safetensors": b"first",
        "model-00002-of-00002.safetensors": b"second",
    }


def test_a_missing_address_is_named(connect):
    """A client without a registry or a worker says which address it was not given."""
    client = connect()

    with pytest.raises(InvalidArgument, match=re.escape("Client(registry='HOST:PORT')")):
        client.model("lm")
    with pytest.raises(InvalidArgument, match=re.escape("Client(worker='HOST:PORT')")):
        client.status()


def test_a_call_ends_at_its_timeout(client, registry):
    """A call that says how long it may take ends then, whatever the client's timeout."""
    registry.silent = True

    with pytest.raises(DeadlineExceeded, match=r"registry at 127\.0\.0\.1:\d+ did not answer"):
        client.model("lm", timeout=0.2)


def test_a_read_survives_a_hiccup(client, registry, published):
    """A read that is refused as unavailable is repeated, though not for ever."""
    registry.model_failures = 2

    assert client.model("lm").name == "lm"

    registry.model_failures = 100
    with pytest.raises(Unavailable, match="busy"):
        client.model("lm")


def test_threads_share_a_client(registry_address):
    """Many threads may make the first call of one client at once."""
    with Client(registry=registry_address) as client, futures.ThreadPoolExecutor(8) as pool:
        pushed = list(pool.map(lambda n: client.push("lm", PROGRAM + bytes([n])), range(8)))

    assert sorted(version.number for version in pushed) == list(range(1, 9))


def test_a_cancelled_upload_stops(registry, registry_address, file_of, large):
    """A task that is cancelled in the middle of an upload ends, and so does the upload."""

    async def upload_and_cancel() -> None:
        async with AsyncClient(registry=registry_address) as client:
            task = asyncio.create_task(client.upload(file_of(large), progress=hold))
            await asyncio.to_thread(reached.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

    def hold(progress):
        if progress.action == "upload":
            reached.set()
            go_on.wait()

    reached, go_on = threading.Event(), threading.Event()
    asyncio.run(upload_and_cancel())

    assert registry.blobs == {}
