"""Versions from registry to registry, through a directory that any OCI tool can carry."""

import hashlib
import json
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

import jax
import numpy as np
import pytest
import safetensors.numpy
import structlog
from click.testing import CliRunner
from jax import export

from servax import (
    Batching,
    Blob,
    Client,
    DataLoss,
    Encoding,
    FileError,
    Golden,
    GoldenExample,
    InvalidArgument,
    NotFound,
    Signature,
    Version,
    VersionName,
)
from servax._calls.layouts import import_versions
from servax._calls.steps import Work
from servax._layout import Layout
from servax.cli import main
from servax.manifests import (
    PortableSignature,
    PortableVersion,
    config,
    decode,
    encode,
    manifest,
    portable,
    read_config,
)
from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.server import serve
from servax_registry.settings import Settings

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@contextmanager
def serving(folder):
    """Serve a new registry in this process; give its address."""
    with (
        structlog.testing.capture_logs(),
        serve(Settings(f"sqlite:///{folder / 'registry.db'}", "127.0.0.1:0")) as server,
    ):
        yield server.address


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The registry that versions come from, which tests leave as they find it."""
    with serving(tmp_path_factory.mktemp("one")) as address:
        yield address


@pytest.fixture
def two(tmp_path):
    """The registry that they go to, without any at first."""
    with serving(tmp_path) as address:
        yield address


@pytest.fixture(scope="module")
def source(one, linear, tmp_path_factory):
    """The first registry, with versions that have everything that one can have."""
    weights = tmp_path_factory.mktemp("source") / "linear.safetensors"
    weights.write_bytes(linear.weights)
    with Client(registry=one, actor="ada") as client:
        client.push("lm", linear.program, weights=[weights])
        client.push(
            "lm",
            linear.program,
            weights=[weights],
            aliases=["production", "canary"],
            description="a description: ünïcode",
            labels={"stage": "gold"},
            source_revision="abc123",
            batching=Batching("b", 64),
            golden=Golden(linear.golden, rtol=0.25, atol=0.5),
        )
        yield client


@pytest.fixture
def target(two, connect):
    """The second registry, through a client of either kind."""
    return connect(registry=two)


@pytest.fixture
def refusing(two):
    """The second registry, for what one kind of client shows well enough."""
    with Client(registry=two) as client:
        yield client


class Linear:
    """An exported x @ w and what belongs to it."""

    def __init__(self, rows=4):
        (b,) = export.symbolic_shape("b")
        arguments = (
            {"w": jax.ShapeDtypeStruct((rows, 3), "float32")},
            jax.ShapeDtypeStruct((b, rows), "float32"),
        )
        exported = export.export(jax.jit(lambda params, x: x @ params["w"]))(*arguments)
        self.program = bytes(exported.serialize())
        w, x = np.ones((rows, 3), np.float32), np.ones((2, rows), np.float32)
        self.weights = safetensors.numpy.save({"w": w})
        self.golden = safetensors.numpy.save({"inputs/x": x, "outputs/output": x @ w})


@pytest.fixture(scope="session")
def linear():
    """A program with weights and an example."""
    return Linear()


def documents(directory):
    """Read the index, and of each name the manifest and its config."""
    index = json.loads((directory / "index.json").read_text())
    found = {}
    for entry in index["manifests"]:
        manifest = json.loads(blob(directory, entry).read_text())
        name = entry["annotations"]["org.opencontainers.image.ref.name"]
        found[name] = manifest, json.loads(blob(directory, manifest["config"]).read_text())
    return index, found


def blob(directory, descriptor):
    """Give the file of a blob, whose size and digest are what the descriptor says."""
    path = directory / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")
    data = path.read_bytes()
    assert len(data) == descriptor["size"]
    assert hashlib.sha256(data).hexdigest() == path.name
    return path


def test_what_is_exported_is_an_oci_image_layout(source, tmp_path):
    """Index, manifest, config and layers are what the specification asks for, byte by byte."""
    source.export_versions(["lm@production"], tmp_path / "out")

    out = tmp_path / "out"
    index, found = documents(out)
    assert json.loads((out / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert index["schemaVersion"] == 2
    assert {entry["mediaType"] for entry in index["manifests"]} == {MANIFEST}
    assert sorted(found) == ["lm:2", "lm@canary", "lm@production"]
    manifest, described = found["lm:2"]
    assert manifest["schemaVersion"] == 2
    assert manifest["artifactType"] == "application/vnd.servax.version.v1"
    assert manifest["config"]["mediaType"] == "application/vnd.servax.version.v1+json"
    assert manifest["annotations"]["org.opencontainers.image.title"] == "lm:2"
    titles = [
        layer["annotations"]["org.opencontainers.image.title"] for layer in manifest["layers"]
    ]
    assert titles == [
        "serving_default/program.jaxexport",
        "serving_default/golden.safetensors",
        "model-00001-of-00001.safetensors",
    ]
    for layer in manifest["layers"]:
        blob(out, layer)
    assert described["labels"] == {"stage": "gold"}
    assert described["creator"] == "ada"
    stored = {path.name for path in (out / "blobs" / "sha256").iterdir()}
    assert len(stored) == len(manifest["layers"]) + 2


def test_what_is_imported_is_what_was_exported(source, target, tmp_path):
    """Everything that a publisher says comes along, in the order of the numbers, which are new."""
    exported = source.export_versions(["lm@production", "lm:1", "lm"], tmp_path / "out")
    assert [version.number for version in exported] == [2, 1]

    imported = target.import_versions(tmp_path / "out")

    assert {name: version.number for name, version in imported.items()} == {"lm:1": 1, "lm:2": 2}
    old, new = exported[0], imported["lm:2"]
    for name in ("description", "labels", "source_revision", "signatures", "weights"):
        assert getattr(new, name) == replace_trials(getattr(old, name)), name
    assert new.aliases == ()
    assert target.read_blob(new.weights[0].blob) == source.read_blob(new.weights[0].blob)


def replace_trials(value):
    """Leave out what a registry finds out by itself, later."""
    if isinstance(value, tuple) and value and isinstance(value[0], Signature):
        return tuple(replace(signature, trial=None) for signature in value)
    return value


def test_importing_again_publishes_nothing_twice(source, target, tmp_path):
    """A repetition gives the same versions, and publishes one that was deleted meanwhile anew."""
    source.export_versions(["lm:1", "lm:2"], tmp_path / "out")
    first = target.import_versions(tmp_path / "out")

    assert target.import_versions(tmp_path / "out") == first
    target.delete_version("lm:1")
    again = target.import_versions(tmp_path / "out")

    assert {name: version.number for name, version in again.items()} == {"lm:1": 3, "lm:2": 2}


def test_aliases_come_along_where_they_are_asked_for(source, target, tmp_path):
    """With aliases, those of the time of the export point to the new versions."""
    source.export_versions(["lm:1", "lm:2"], tmp_path / "out")
    source.set_alias("lm", "canary", 1)
    source.export_versions(["lm:1"], tmp_path / "out")
    source.set_alias("lm", "canary", 2)

    target.import_versions(tmp_path / "out", aliases=True)

    assert target.model("lm").aliases == {"canary": 1, "production": 2}


def test_an_export_goes_on_where_it_was_broken_off(source, tmp_path):
    """What is there and whole is not fetched again; what is damaged is."""
    out = tmp_path / "out"
    source.export_versions(["lm:2"], out)
    files = sorted((out / "blobs" / "sha256").iterdir())
    files[0].write_bytes(b"damaged")
    files[1].unlink()
    fetched = []

    source.export_versions(
        ["lm:2"], out, progress=lambda p: fetched.append(p) if p.action == "download" else None
    )

    documents(out)
    assert len(fetched) <= 2


def test_nothing_is_fetched_when_something_is_not_found(source, tmp_path):
    """A reference that leads nowhere is told before the directory is made."""
    with pytest.raises(NotFound, match="version 9"):
        source.export_versions(["lm:1", "lm:9"], tmp_path / "out")
    with pytest.raises(InvalidArgument, match="at least one"):
        source.export_versions([], tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_not_sent(source, refusing, tmp_path):
    """A blob, a config or a manifest that is not what its digest says is DataLoss."""
    out = tmp_path / "out"
    source.export_versions(["lm:2"], out)
    for path in (out / "blobs" / "sha256").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(DataLoss, match="damaged"):
            refusing.import_versions(out)
        path.write_bytes(data)
    assert list(refusing.models()) == []
    next((out / "blobs" / "sha256").iterdir()).unlink()
    with pytest.raises(FileError, match="cannot read"):
        refusing.import_versions(out)


@pytest.mark.parametrize("digest", ["sha256:../../secret", "sha256:" + "0" * 63, "../x", 7, None])
def test_no_path_leads_out_of_the_directory(source, refusing, tmp_path, digest):
    """Only what is a digest becomes part of a path."""
    out = tmp_path / "out"
    source.export_versions(["lm:1"], out)
    index = json.loads((out / "index.json").read_text())
    index["manifests"][0]["digest"] = digest
    (out / "index.json").write_text(json.dumps(index))

    with pytest.raises(InvalidArgument, match="is no digest"):
        refusing.import_versions(out)


def rewritten(out, **changes):
    """Change the config of the only version, and every digest above it."""
    index, found = documents(out)
    ((manifest, described),) = found.values()
    manifest["config"] |= put(out, described | changes)
    index["manifests"][0] |= put(out, manifest)
    (out / "index.json").write_text(json.dumps(index))


def put(out, document):
    """Store a document, and describe it."""
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    (out / "blobs" / "sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "../lm"},
        {"model": None},
        {"version": 0},
        {"version": True},
        {"labels": {"a": 1}},
        {"labels": []},
        {"description": "\ud800"},
        {"signatures": {}},
        {"signatures": [7]},
        {"signatures": [{"name": "a"}]},
        {"weights": [{"digest": "sha256:../x", "size": 1}]},
        {"weights": [{"digest": "sha256:" + "0" * 64, "size": -1}]},
    ],
)
def test_what_is_no_version_is_refused(source, refusing, tmp_path, changes):
    """A config that no export wrote is refused with its digests intact, and nothing is sent."""
    out = tmp_path / "out"
    source.export_versions(["lm:1"], out)
    rewritten(out, **changes)

    with pytest.raises(InvalidArgument):
        refusing.import_versions(out)
    assert list(refusing.models()) == []


def test_other_things_in_the_directory_are_left_alone(source, refusing, tmp_path):
    """Images of other tools stay in the index, and are not imported."""
    out = tmp_path / "out"
    (out / "blobs" / "sha256").mkdir(parents=True)
    (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    image = {"config": {"mediaType": "application/vnd.oci.image.config.v1+json"}, "layers": []}
    entry = {"mediaType": MANIFEST, **put(out, image)}
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))

    with pytest.raises(InvalidArgument, match="holds no version"):
        refusing.import_versions(out)
    source.export_versions(["lm:1"], out)

    assert entry in json.loads((out / "index.json").read_text())["manifests"]
    assert list(refusing.import_versions(out)) == ["lm:1"]


@pytest.mark.parametrize("content", [None, "{}", '{"imageLayoutVersion": "2.0.0"}', "[" * 100_000])
def test_what_is_no_layout_is_refused(refusing, tmp_path, content):
    """A directory without the file that marks a layout, or with one of another version, is told."""
    if content is not None:
        (tmp_path / "oci-layout").write_text(content)

    with pytest.raises(InvalidArgument, match=r"oci-layout|OCI image layout"):
        refusing.import_versions(tmp_path)


def test_large_weights_are_carried_by_pieces(source, target, tmp_path):
    """A file of many messages comes along, and progress goes by names that people know."""
    large = Linear(rows=500_000)
    weights = tmp_path / "large.safetensors"
    weights.write_bytes(large.weights)
    source.push("large", large.program, weights=[weights])
    steps = []

    source.export_versions(["large"], tmp_path / "out", progress=steps.append)
    target.import_versions(tmp_path / "out", progress=steps.append)

    size = weights.stat().st_size
    for action in ("download", "hash", "upload"):
        found = [step for step in steps if step.action == action and step.total == size]
        assert {step.name.partition(" ")[2] for step in found} == {
            "model-00001-of-00001.safetensors"
        }
        assert found[-1].done == size


class TestDocuments:
    """What is written of a version is read back."""

    def version(self, encodings=()):
        """Make a version with everything."""
        blobs = [Blob(f"sha256:{n:064x}", n) for n in range(4)]
        signature = Signature(
            name="s",
            program=blobs[0],
            function_name="f",
            inputs=(),
            weights=(),
            outputs=(),
            platforms=("cpu",),
            device_count=1,
            calling_convention_version=10,
            serialization_version=6,
            stablehlo_version="1.13.0",
            jax_version="0.12.0",
            encodings=encodings,
            batching=Batching("b", 8),
            golden=GoldenExample(blobs[1], 0.0, 1e-6),
        )
        return Version(
            model="m",
            number=7,
            signatures=(signature, replace(signature, name="t", batching=None, golden=None)),
            weights=(),
            description="d",
            labels={"k": "v"},
            create_time=datetime(2026, 1, 2, tzinfo=UTC),
            copied_from=VersionName("n", 1),
        )

    def encoding(self):
        """Make an encoding."""
        return Encoding(Blob(f"sha256:{9:064x}", 9), 9, 5, "1.0.0", "", None, datetime.now(UTC))

    def test_a_config_is_read_as_it_was_written(self):
        """Nothing is lost between writing and reading, and the bytes are always the same."""
        described = portable(self.version((self.encoding(),)))

        data = encode(config(described))

        assert read_config(decode(data, "it")) == described
        assert data == encode(config(read_config(decode(data, "it"))))

    def test_encodings_do_not_make_another_version(self):
        """What was imported is found again after encodings were added where it came from."""
        plain, encoded = (portable(self.version(e)) for e in ((), (self.encoding(),)))

        assert plain.identity() == encoded.identity()
        assert plain.identity() != replace(plain, number=8).identity()


def test_encodings_come_along(tmp_path):
    """Every encoding of a signature is sent, and added to the version once it is published."""
    data = b"another encoding"
    encoding = Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    program = Blob(f"sha256:{hashlib.sha256(b'program').hexdigest()}", len(b"program"))
    described = PortableVersion(
        *("m", 7, "ada", "2026-01-02T00:00:00+00:00", "", {}, ""),
        signatures=(PortableSignature("s", program, (encoding,), None, None),),
        weights=(),
    )
    layout = Layout(tmp_path)
    layout.create()
    for blob, content in ((encoding, data), (program, b"program")):
        layout.path(blob).write_bytes(content)
    layout.name(layout.put(manifest(described, layout.put(config(described)))), ["m:7"])
    version = artifact_pb2.Version(model="m", number=3)
    called = []

    def perform(step):
        if isinstance(step, Work):
            return step.function()
        called.append((step.method.name, step.request))
        return {"FindMissingBlobs": registry_pb2.FindMissingBlobsResponse()}.get(
            step.method.name, version
        )

    steps = import_versions(tmp_path, False, None, None)
    result = None
    with suppress(StopIteration):
        while True:
            result = perform(steps.send(result))

    assert [name for name, _ in called] == [
        *(["FindMissingBlobs"] * 2),
        *("PublishVersion", "AddEncoding", "GetVersion"),
    ]
    assert called[3][1] == registry_pb2.AddEncodingRequest(
        model="m", version=3, signature="s", digest=encoding.digest
    )


def test_the_commands_carry_versions(source, one, two, tmp_path):
    """Export and import tell where what went, as text and as JSON."""

    def run(*arguments):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    here, there = ("--registry", one), ("--registry", two)
    out = str(tmp_path / "out")

    assert run("export", "lm:1", "lm@production", "-o", out, *here).splitlines() == [
        f"lm:1 is in {out}",
        f"lm:2 is in {out}",
    ]
    (exported,) = json.loads(run("export", "lm:2", "-o", out, "--json", *here))
    assert exported["version"] == 2
    assert run("import", out, "--aliases", "--actor", "bob", *there).splitlines() == [
        "lm:1 is lm:1",
        "lm:2 is lm:2",
    ]
    imported = json.loads(run("import", out, "--json", *there))
    assert (imported["lm:2"]["creator"], imported["lm:2"]["aliases"]) == (
        "bob",
        ["canary", "production"],
    )
