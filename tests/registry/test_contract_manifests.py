"""What the registry promises of manifests, copies, deletion, search and changes."""

from datetime import UTC, datetime, timedelta

import jax
import numpy as np
import pytest
import safetensors.numpy
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode
from jax import export

from servax_proto.v1 import artifact_pb2, registry_pb2

Action = registry_pb2.Change.Action
Batching = artifact_pb2.Batching


def exported(function, *specs, **options):
    """Export a function for shapes written as in "b,4", all of float32."""
    scope = export.SymbolicScope()
    arguments = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32")
        for shape in specs
    ]
    return bytes(export.export(jax.jit(function), **options)(*arguments).serialize())


@pytest.fixture(scope="session")
def doubling():
    """An exported x * 2 of float32[b,3]."""
    return exported(lambda x: x * 2, "b,3")


def golden_file(inputs, outputs):
    """Write a golden example."""
    arrays = {f"inputs/{name}": array for name, array in inputs.items()}
    arrays |= {f"outputs/{name}": array for name, array in outputs.items()}
    return safetensors.numpy.save(arrays)


def source(registry, program, batching=None, golden=None, rtol=1e-5, atol=0.0):
    """Upload a program and what is declared of it."""
    made = registry_pb2.ProgramSource(digest=registry.write(program), batching=batching)
    if golden is not None:
        made.golden.digest = registry.write(golden)
        made.golden.rtol, made.golden.atol = rtol, atol
    return made


def publish(registry, *sources, model="m", **fields):
    """Publish sources that were uploaded."""
    return registry.api.PublishVersion(
        registry_pb2.PublishVersionRequest(model=model, programs=sources, **fields)
    )


class TestDeclarations:
    """What publishers declare is kept, where it fits the program."""

    def test_everything_declared_is_kept(self, registry, doubling):
        """Batching, golden example and source revision come back with the version."""
        x = np.ones((2, 3), np.float32)
        file = golden_file({"x": x}, {"output": 2 * x})

        made = source(registry, doubling, Batching(symbol="b", max_rows=8), file, 0.25, 0.5)
        version = publish(registry, made, source_revision="abc123")

        got = registry.api.GetVersion(registry_pb2.GetVersionRequest(model="m"))
        assert got == version
        assert got.source_revision == "abc123"
        assert got.creator
        signature = got.signatures[0]
        assert (signature.batching.symbol, signature.batching.max_rows) == ("b", 8)
        assert signature.golden.blob.size == len(file)
        assert (signature.golden.rtol, signature.golden.atol) == (0.25, 0.5)

    def test_a_fixed_number_of_rows_can_be_declared(self, registry):
        """Without a symbol, all first dimensions must be the same number."""
        fixed = exported(lambda x: x + 1, "4,3")

        version = publish(registry, source(registry, fixed, Batching(max_rows=4)))

        assert version.signatures[0].HasField("batching")

    @pytest.mark.parametrize(
        ("function", "specs", "symbol", "reason"),
        [
            (lambda x: x, ["b,3"], "c", "dimension 0 .* must be c, .* float32"),
            (lambda x: x.sum(), ["b,3"], "b", "must be b, but there are output: float32.."),
            (lambda x: x @ x.T, ["b,3"], "b", "b is a further dimension of output"),
            (lambda x, y: x * y, ["b,3", "3"], "b", r"float32\[3\]"),
            (lambda x: x, ["b,3"], "", "must be the same number"),
            (lambda x: x, ["b,3"], "b+1", "no symbolic dimension"),
        ],
    )
    def test_batching_that_cannot_be_right_is_refused(
        self, registry, function, specs, symbol, reason
    ):
        """Rows must be counted by dimension 0 of every input and output, and by no other."""
        made = source(registry, exported(function, *specs), Batching(symbol=symbol))

        with registry.refuses(StatusCode.INVALID_ARGUMENT, reason):
            publish(registry, made)

    @pytest.mark.parametrize(
        ("inputs", "outputs", "reason"),
        [
            ({}, {"output": (2, 3)}, "inputs/x missing"),
            ({"x": (2, 3)}, {}, "outputs/output missing"),
            ({"x": (2, 3), "y": (1,)}, {"output": (2, 3)}, "inputs/y belong to no"),
            ({"x": (2, 4)}, {"output": (2, 3)}, r"'inputs/x' is float32\[2,4\].*float32\[b,3\]"),
            ({"x": (2, 3)}, {"output": (1, 3)}, r"'outputs/output' is float32\[1,3\].*b=2"),
            ({"x": (2, 3, 1)}, {"output": (2, 3)}, "'inputs/x'"),
        ],
    )
    def test_a_golden_example_of_something_else_is_refused(
        self, registry, doubling, inputs, outputs, reason
    ):
        """Names, dtypes and shapes must be those of one call of the signature."""

        def arrays(shapes):
            return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

        made = source(registry, doubling, golden=golden_file(arrays(inputs), arrays(outputs)))

        with registry.refuses(StatusCode.INVALID_ARGUMENT, reason):
            publish(registry, made)

    @pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
    def test_tolerances_are_numbers_from_zero_on(self, registry, doubling, tolerance):
        """What nothing can be compared with is refused."""
        x = np.ones((2, 3), np.float32)
        made = source(registry, doubling, golden=golden_file({"x": x}, {"output": x}))
        made.golden.rtol = tolerance

        with registry.refuses(StatusCode.INVALID_ARGUMENT, "no tolerance"):
            publish(registry, made)

    def test_a_golden_example_must_be_stored(self, registry, doubling):
        """A digest that nothing is stored under is FAILED_PRECONDITION."""
        made = source(registry, doubling)
        made.golden.digest = "sha256:" + "0" * 64

        with registry.refuses(StatusCode.FAILED_PRECONDITION, "1 of the version's 2 blobs"):
            publish(registry, made)


class TestDeletion:
    """Deleted versions are gone for readers, and come back."""

    def test_a_deleted_version_comes_back_as_it_was(self, registry, constant):
        """Undelete undoes delete; meanwhile nothing but a search for deleted ones shows it."""
        registry.publish("m", constant)
        before = registry.publish("m", constant)
        named = {"model": "m", "version": 2}

        deleted = registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(**named))
        assert deleted.HasField("delete_time")
        model = registry.api.GetModel(registry_pb2.GetModelRequest(model="m"))
        assert (model.latest_version, model.version_count) == (1, 1)
        with registry.refuses(StatusCode.NOT_FOUND, "version 2 .* was deleted; Undelete"):
            registry.api.GetVersion(registry_pb2.GetVersionRequest(**named))
        with registry.refuses(StatusCode.NOT_FOUND, "deleted"):
            registry.api.SetAlias(registry_pb2.SetAliasRequest(alias="a", **named))
        listing = registry_pb2.ListVersionsRequest(model="m")
        assert [v.number for v in registry.api.ListVersions(listing).versions] == [1]
        listing.show_deleted = True
        assert registry.api.ListVersions(listing).versions[0] == deleted

        back = registry.api.UndeleteVersion(registry_pb2.UndeleteVersionRequest(**named))

        assert back == before
        assert registry.api.GetVersion(registry_pb2.GetVersionRequest(**named)) == before
        again = registry.api.UndeleteVersion(registry_pb2.UndeleteVersionRequest(**named))
        assert again == before

    def test_a_deleted_number_is_not_given_again(self, registry, constant):
        """The version after a deleted latest one has a higher number."""
        registry.publish("m", constant)
        registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))

        assert registry.publish("m", constant).number == 2


class TestCopies:
    """A copy has what its source has, in another model, without another byte."""

    def test_a_copy_has_what_its_source_has(self, registry, doubling):
        """Signatures, what was declared of them, labels and description are the same."""
        x = np.ones((2, 3), np.float32)
        made = source(
            registry, doubling, Batching(symbol="b"), golden_file({"x": x}, {"output": 2 * x})
        )
        original = publish(registry, made, labels={"k": "v"}, description="d", aliases=["a"])
        request = registry_pb2.CopyVersionRequest(
            model="m", alias="a", destination="prod", aliases=["live"], request_id="once"
        )

        copy = registry.api.CopyVersion(request)

        assert registry.api.CopyVersion(request) == copy
        assert copy == registry.api.GetVersion(
            registry_pb2.GetVersionRequest(model="prod", alias="live")
        )
        assert (copy.copied_from.model, copy.copied_from.version) == ("m", 1)
        for field in ("signatures", "weights", "labels", "description", "source_revision"):
            assert getattr(copy, field) == getattr(original, field)

    def test_a_copy_outlives_its_source(self, registry, constant):
        """Deleting the source leaves the copy, and the record of where it came from."""
        registry.publish("m", constant)
        registry.api.CopyVersion(registry_pb2.CopyVersionRequest(model="m", destination="n"))

        registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))

        copy = registry.api.GetVersion(registry_pb2.GetVersionRequest(model="n"))
        assert copy.copied_from.model == "m"

    def test_what_cannot_be_copied_is_refused(self, registry, constant):
        """An absent source is NOT_FOUND, an illegal destination INVALID_ARGUMENT."""
        registry.publish("m", constant)

        with registry.refuses(StatusCode.NOT_FOUND, "no version 2"):
            registry.api.CopyVersion(
                registry_pb2.CopyVersionRequest(model="m", version=2, destination="n")
            )
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "No Name"):
            registry.api.CopyVersion(
                registry_pb2.CopyVersionRequest(model="m", destination="No Name")
            )


def timestamp(time):
    """Write a time."""
    message = Timestamp()
    message.FromDatetime(time)
    return message


class TestSearch:
    """Listings are of the versions that meet every condition."""

    @pytest.fixture
    def search(self, registry):
        """List the names of versions that meet conditions, page by page."""

        def search(page_size=0, **conditions):
            found, token = [], ""
            while True:
                request = registry_pb2.ListVersionsRequest(
                    page_size=page_size, page_token=token, **conditions
                )
                page = registry.api.ListVersions(request)
                found += [f"{version.model}:{version.number}" for version in page.versions]
                token = page.next_page_token
                if not token:
                    return found

        return search

    def test_all_models_are_searched_by_name(self, registry, search, constant):
        """Without a model, versions come by model, then newest first, whatever the page size."""
        for model in ("b", "a", "b", "c"):
            registry.publish(model, constant)

        assert search() == ["a:1", "b:2", "b:1", "c:1"]
        assert search(page_size=1) == search()
        assert search(model="b") == ["b:2", "b:1"]

    def test_labels_must_all_be_there(self, registry, search, constant):
        """Versions that lack a label, or have another value, are left out."""
        registry.publish("m", constant, labels={"stage": "prod", "team": "x"})
        registry.publish("m", constant, labels={"stage": "prod"})
        registry.publish("n", constant, labels={"stage": "test", "team": "x"})

        assert search(labels={"stage": "prod"}) == ["m:2", "m:1"]
        assert search(labels={"stage": "prod", "team": "x"}) == ["m:1"]
        assert search(labels={"stage": "prod", "team": "y"}) == []

    def test_every_signature_must_be_for_the_platform(self, registry, search, constant):
        """A version with a signature for other platforms alone is left out."""
        both = exported(lambda x: x, "3", platforms=("cpu", "cuda"))
        registry.publish("m", constant)
        registry.publish("m", both)
        registry.publish("m", both, constant)

        assert search(platform="cuda") == ["m:2"]
        assert search(platform="cpu") == ["m:3", "m:2", "m:1"]
        assert search(platform="cud_") == []

    def test_times_are_half_open(self, registry, search, constant):
        """created_from takes that moment, created_before does not."""
        first = registry.publish("m", constant).create_time
        second = registry.publish("m", constant).create_time

        assert search(created_from=second) == ["m:2"]
        assert search(created_before=second) == ["m:1"]
        assert search(created_from=first, created_before=second) == ["m:1"]

    def test_expiring_versions_are_found(self, registry, search, constant):
        """A version is found by any day after the one on which its program expires."""
        version = registry.publish("m", constant)
        expires = datetime.fromisoformat(version.signatures[0].compatibility.expires)

        assert search(expiring_before=expires.date().isoformat()) == []
        assert search(expiring_before=(expires + timedelta(1)).date().isoformat()) == ["m:1"]

    def test_what_is_no_condition_is_refused(self, registry, search):
        """Days, platforms, models and tokens that cannot exist are INVALID_ARGUMENT."""
        for conditions, reason in (
            ({"expiring_before": "tomorrow"}, "no day"),
            ({"platform": "a b"}, "no platform"),
            ({"model": "A"}, "'A'"),
            ({"created_from": Timestamp(seconds=1 << 60)}, "no time"),
        ):
            with registry.refuses(StatusCode.INVALID_ARGUMENT, reason):
                search(**conditions)

    def test_a_token_belongs_to_its_conditions(self, registry, constant):
        """Going on with other conditions than a page had is INVALID_ARGUMENT."""
        for _ in range(2):
            registry.publish("m", constant)
        request = registry_pb2.ListVersionsRequest(model="m", page_size=1)
        token = registry.api.ListVersions(request).next_page_token

        with registry.refuses(StatusCode.INVALID_ARGUMENT, "page_token"):
            registry.api.ListVersions(registry_pb2.ListVersionsRequest(page_token=token))


class TestChanges:
    """Everything that changes is told, once and in order."""

    @pytest.fixture
    def changes(self, registry):
        """List changes from a revision on."""

        def changes(since=0, **conditions):
            request = registry_pb2.ListChangesRequest(since=since, **conditions)
            return registry.api.ListChanges(request)

        return changes

    def test_every_change_is_told_with_who_made_it(self, registry, changes, constant):
        """Publishing, copying, aliases, deleting and undeleting leave one change each."""
        start = datetime.now(UTC)
        registry.publish("m", constant, aliases=["a"])
        registry.publish("m", constant)
        registry.api.SetAlias(registry_pb2.SetAliasRequest(model="m", alias="a", version=2))
        registry.api.CopyVersion(
            registry_pb2.CopyVersionRequest(model="m", version=1, destination="n")
        )
        registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))
        registry.api.UndeleteVersion(registry_pb2.UndeleteVersionRequest(model="m", version=1))
        registry.api.DeleteAlias(registry_pb2.DeleteAliasRequest(model="m", alias="a"))

        told = changes()

        assert [
            (c.action, c.model, c.version, c.alias, c.previous_version, c.detail)
            for c in told.changes
        ] == [
            (Action.PUBLISH, "m", 1, "", 0, ""),
            (Action.SET_ALIAS, "m", 1, "a", 0, ""),
            (Action.PUBLISH, "m", 2, "", 0, ""),
            (Action.SET_ALIAS, "m", 2, "a", 1, ""),
            (Action.COPY, "n", 1, "", 0, "m:1"),
            (Action.DELETE, "m", 1, "", 0, ""),
            (Action.UNDELETE, "m", 1, "", 0, ""),
            (Action.DELETE_ALIAS, "m", 0, "a", 2, ""),
        ]
        revisions = [c.revision for c in told.changes]
        assert revisions == sorted(set(revisions))
        assert told.revision == revisions[-1]
        assert not told.more
        assert all(c.actor for c in told.changes)
        assert all(c.time.ToDatetime(UTC) >= start for c in told.changes)

    def test_what_changes_nothing_is_not_told(self, registry, changes, constant):
        """Repeated requests, refused ones and an alias that points there already leave nothing."""
        registry.publish("m", constant, aliases=["a"], request_id="once")
        before = changes().revision

        registry.publish("m", constant, aliases=["a"], request_id="once")
        registry.api.SetAlias(registry_pb2.SetAliasRequest(model="m", alias="a", version=1))
        registry.api.UndeleteVersion(registry_pb2.UndeleteVersionRequest(model="m", version=1))
        with registry.refuses(StatusCode.FAILED_PRECONDITION, "alias"):
            registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))

        assert changes(before).revision == before
        assert not changes(before).changes

    def test_changes_go_on_where_they_were_left(self, registry, changes, constant):
        """Pages of any size give every change once; a model's or alias's are told alone."""
        for model in ("m", "n", "m"):
            registry.publish(model, constant, aliases=["a"])
        everything = list(changes().changes)

        found, since, more = [], 0, True
        while more:
            page = changes(since, page_size=2)
            found += page.changes
            since, more = page.revision, page.more

        assert found == everything
        assert list(changes(model="n").changes) == [c for c in everything if c.model == "n"]
        alias = changes(model="m", alias="a")
        assert [(c.previous_version, c.version) for c in alias.changes] == [(0, 1), (1, 2)]
        assert alias.revision == everything[-1].revision
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "alias"):
            changes(alias="a")
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "revision -1"):
            changes(-1)
