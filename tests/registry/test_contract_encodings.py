"""What the registry promises of further encodings of a program."""

from dataclasses import replace

import jax
import pytest
from grpc import StatusCode
from jax import export

from servax.hlo import retarget
from servax_proto.v1 import registry_pb2
from servax_registry.artifact import Argument, Blob, Signature
from servax_registry.encodings import check_encoding
from servax_registry.errors import Mismatch
from servax_registry.inspection.exported import read_program

ABSENT = "sha256:" + "0" * 64


def exported(function, *shapes, dtype="float32", platforms=("cpu", "cuda"), **options):
    """Export a function for shapes written as in "b,4"."""
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype) for shape in shapes
    ]
    made = export.export(jax.jit(function), platforms=platforms, **options)(*specs)
    return bytes(made.serialize())


@pytest.fixture(scope="session")
def original():
    """An exported sum of rows."""
    return exported(lambda x: {"sum": x.sum(axis=1)}, "b,3")


@pytest.fixture(scope="session")
def older(original):
    """The same in an older version of StableHLO."""
    return retarget(original, "1.10.0")


@pytest.fixture
def add(registry):
    """Add an encoding to m:1."""

    def add(program=None, **fields):
        request = registry_pb2.AddEncodingRequest(model="m", version=1, **fields)
        if program is not None:
            request.digest = registry.write(program)
        return registry.api.AddEncoding(request)

    return add


def changes(registry):
    """What was done."""
    listed = registry.api.ListChanges(registry_pb2.ListChangesRequest(model="m"))
    return [
        (registry_pb2.Change.Action.Name(change.action), change.version, change.detail)
        for change in listed.changes
    ]


def test_an_encoding_is_added_without_changing_the_version(registry, original, older, add):
    """The version keeps its program, tells of the encoding what it was written in, and what changed
    is recorded.
    """
    published = registry.publish("m", original)
    version = add(older)

    (encoding,) = version.signatures[0].encodings
    assert encoding.program.digest == registry.write(older)
    assert encoding.stablehlo_version == "1.10.0"
    assert encoding.compatibility.oldest_jax in ("0.6.0", "0.8.3")
    assert encoding.create_time.seconds >= version.create_time.seconds
    assert registry.api.GetVersion(registry_pb2.GetVersionRequest(model="m")) == version
    del version.signatures[0].encodings[:]
    assert version == published
    assert changes(registry)[-1] == ("ADD_ENCODING", 1, "serving_default")


def test_the_same_encoding_again_changes_nothing(registry, original, older, add):
    """Adding what is there, the published program included, gives the version as it is."""
    registry.publish("m", original)
    version = add(older)
    before = changes(registry)

    assert add(older) == version
    assert add(original) == version
    assert changes(registry) == before


def test_encodings_come_in_their_order_and_are_copied(registry, original, add):
    """Of several the first comes first, and a copy of the version has them all."""
    registry.publish("m", original)
    targets = ("1.12.0", "1.10.0", "1.11.0")
    for target in targets:
        version = add(retarget(original, target))
    copy = registry.api.CopyVersion(registry_pb2.CopyVersionRequest(model="m", destination="c"))

    for each in (version, copy):
        found = each.signatures[0].encodings
        assert tuple(encoding.stablehlo_version for encoding in found) == targets


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: exported(lambda x: {"sum": x.sum(axis=1)}, "b,4"), r"argument 0 .*\[b,4\] ins"),
        (lambda: exported(lambda x: {"sum": x.sum(axis=1)}, "n,3"), r"\[n,3\] instead of .*\[b"),
        (lambda: exported(lambda x: {"sum": x.sum(axis=0)}, "b,3"), r"result 0 .*\[3\] instead"),
        (lambda: exported(lambda x: x.sum(1), "b,3", dtype="int32"), r"int32\[b,3\] instead"),
        (lambda: exported(lambda x: (x[:, 0], x), "b,3"), "2 results instead of 1"),
        (lambda: exported(lambda x, y: x.sum(1), "b,3", "b"), "2 arguments instead of 1"),
        (lambda: exported(lambda x: x.sum(1), "b,3", platforms=["cpu"]), "platforms cpu instead"),
        (lambda: b"no program", r"encoding of 'serving_default' \(sha256:"),
    ],
    ids=range(8),
)
def test_what_is_not_the_same_program_is_refused(registry, original, add, make, reason):
    """A program of other inputs, outputs, platforms or devices, or none, is no encoding."""
    registry.publish("m", original)

    with registry.refuses(StatusCode.INVALID_ARGUMENT, reason):
        add(make())


def test_names_do_not_matter(registry, original, add):
    """Parameters and results may be called otherwise: callers see the names of the original."""
    registry.publish("m", original)

    version = add(exported(lambda renamed: renamed.sum(1), "b,3"))

    assert [spec.name for spec in version.signatures[0].inputs] == ["x"]
    assert len(version.signatures[0].encodings) == 1


def test_what_does_not_exist_is_told(registry, original, older, add):
    """A missing blob, signature, version and model are answered with what to do, or what exists."""
    with registry.refuses(StatusCode.NOT_FOUND, "no model 'm'"):
        add(older)
    registry.publish("m", original)
    with registry.refuses(StatusCode.FAILED_PRECONDITION, "not stored"):
        add(digest=ABSENT)
    with registry.refuses(StatusCode.NOT_FOUND, "no signature 'nope'; it has serving_default"):
        add(older, signature="nope")
    with registry.refuses(StatusCode.INVALID_ARGUMENT, "digest"):
        add(digest="nope")
    registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))
    with registry.refuses(StatusCode.NOT_FOUND, "was deleted"):
        add(older)


def test_there_is_a_limit(registry, original, add, monkeypatch):
    """A signature takes no more encodings than fit one message with it."""
    monkeypatch.setattr("servax_registry.drafts._MAX_ENCODINGS", 1)
    registry.publish("m", original)
    add(retarget(original, "1.10.0"))

    with registry.refuses(StatusCode.INVALID_ARGUMENT, "has 1 encodings already"):
        add(retarget(original, "1.11.0"))


def test_an_encoding_keeps_a_version_from_expiring(registry, original, older, add):
    """A version expires with its most lasting encoding."""
    (short,) = registry.publish("m", older).signatures
    (signature,) = registry.publish("n", original).signatures
    short, long = short.compatibility.expires, signature.compatibility.expires

    def expiring(before):
        request = registry_pb2.ListVersionsRequest(model="m", expiring_before=before)
        return len(registry.api.ListVersions(request).versions)

    assert expiring(long) == (short < long)
    add(original)
    assert expiring(long) == 0
    assert expiring("9999-12-31") == 1


def test_terms_may_be_ordered_otherwise(original):
    """Expressions that differ in the order of their terms alone are the same."""

    def program(size):
        argument = Argument("x", (), False, "float32", (size,))
        return replace(read_program(original), arguments=(argument,))

    signature = Signature("s", Blob(ABSENT, 1), program("2*b + floordiv(t, 3)"), (), (), ())

    check_encoding(signature, program("floordiv(t, 3) + 2*b"))
    with pytest.raises(Mismatch, match="argument 0"):
        check_encoding(signature, program("3*b + floordiv(t, 2) + 1"))
