"""What the registry promises, whether it is called directly or over gRPC."""

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from grpc import StatusCode

from servax_proto.v1 import artifact_pb2, registry_pb2
from servax_registry.pages import encode_token

MIB = 1 << 20
ABSENT = "sha256:" + "0" * 64


@pytest.mark.parametrize("variable", ["SERVAX_TEST_POSTGRES", "SERVAX_TEST_S3"])
def test_every_backend_is_covered(variable):
    """All of this file runs on this server too; where it is skipped, on SQLite and files alone."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set; run the tests under .ci/services")


class TestBlobs:
    """Blobs go in by pieces and come out the same."""

    @pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 17])
    def test_a_blob_comes_back_as_it_was_written(self, registry, size):
        """Every byte of a stored blob is read back, at sizes around those of chunks."""
        data = np.random.default_rng(size).bytes(size)

        digest = registry.write(data)

        assert registry.missing(digest) == {}
        assert registry.read(digest) == data

    @pytest.mark.parametrize("part", [1000, 300_001, 700_000])
    def test_parts_of_any_size_are_taken(self, registry, part):
        """How a blob is cut into messages does not matter."""
        data = np.random.default_rng(part).bytes(2 * MIB + 5)

        digest = registry.write(data, part=part)

        assert registry.read(digest) == data

    @pytest.mark.parametrize(
        ("offset", "limit"), [(0, 1), (MIB - 1, 2), (MIB, 0), (3, 2 * MIB), (3 * MIB, 0), (7, 9**9)]
    )
    def test_reading_begins_and_ends_where_it_is_told(self, registry, offset, limit):
        """Offset and limit select the bytes that they name."""
        data = np.random.default_rng(1).bytes(3 * MIB)
        digest = registry.write(data, part=MIB // 3)

        assert (
            registry.read(digest, offset, limit) == data[offset : offset + limit if limit else None]
        )

    def test_reading_beyond_the_end_is_refused(self, registry):
        """An offset behind the end, or a negative one, is OUT_OF_RANGE."""
        digest = registry.write(b"abc")

        for offset in (-1, 4):
            with registry.refuses(StatusCode.OUT_OF_RANGE, f"offset {offset} .* 3 bytes"):
                registry.read(digest, offset)
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "limit -1"):
            registry.read(digest, 0, -1)

    def test_reading_what_is_not_stored_is_refused(self, registry):
        """A digest that nothing is stored under is NOT_FOUND."""
        with registry.refuses(StatusCode.NOT_FOUND, ABSENT):
            registry.read(ABSENT)

    def test_missing_blobs_are_told_in_order(self, registry):
        """FindMissingBlobs gives those that are not stored, in the order of the request."""
        stored = registry.write(b"abc")
        other = "sha256:" + "f" * 64

        assert list(registry.missing(other, stored, ABSENT)) == [other, ABSENT]

    def test_too_many_digests_are_refused(self, registry):
        """More than 1000 digests at once are INVALID_ARGUMENT."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "1001 .* at most 1000"):
            registry.missing(*[ABSENT] * 1001)

    @pytest.mark.parametrize(
        "digest", ["", "sha256:", "md5:" + "0" * 64, "sha256:" + "F" * 64, ABSENT + "\n", "é" * 71]
    )
    def test_malformed_digests_are_refused(self, registry, digest):
        """Only sha256: and 64 lower-case hexadecimal digits are a digest."""
        for call in (
            registry.missing,
            registry.read,
            lambda d: registry.write(b"a", digest=d or " "),
        ):
            with registry.refuses(StatusCode.INVALID_ARGUMENT, "digest"):
                call(digest)

    def test_too_many_bytes_discard_the_upload(self, registry):
        """More bytes than announced are DATA_LOSS, and nothing is kept."""
        with registry.refuses(StatusCode.DATA_LOSS, "more than the announced 2 bytes"):
            registry.write(b"abc", digest=ABSENT, size=2)

        assert registry.missing(ABSENT) == {ABSENT: 0}

    def test_too_few_bytes_are_kept(self, registry):
        """A stream that ends early is ABORTED, and can be continued."""
        data = np.random.default_rng(5).bytes(9 * MIB)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"

        with registry.refuses(StatusCode.ABORTED, f"after {len(data) - 1} of .* {len(data)} bytes"):
            registry.write(data[:-1], digest=digest, size=len(data))
        assert registry.missing(digest) == {digest: len(data) - 1}
        registry.write(data, len(data) - 1)

        assert registry.read(digest) == data

    def test_wrong_bytes_discard_the_upload(self, registry):
        """Bytes that do not give the digest are DATA_LOSS, and the upload begins at 0 again."""
        right = np.random.default_rng(0).bytes(9 * MIB)
        wrong = right[:-1] + bytes([right[-1] ^ 1])
        digest = hashlib.sha256(right).hexdigest()

        with registry.refuses(StatusCode.DATA_LOSS, f"not sha256:{digest}"):
            registry.write(wrong, digest=f"sha256:{digest}")

        assert registry.missing(f"sha256:{digest}") == {f"sha256:{digest}": 0}
        assert registry.read(registry.write(right)) == right

    def test_a_stored_blob_is_not_written_twice(self, registry):
        """Uploading what is stored succeeds at once; another length for it is DATA_LOSS."""
        digest = registry.write(b"abc")

        assert registry.write(b"abc") == digest
        with registry.refuses(StatusCode.DATA_LOSS, "has 3 bytes, not 4"):
            registry.write(b"abc", size=4)

    def test_an_upload_begins_where_it_stands(self, registry):
        """An offset beyond what is kept is OUT_OF_RANGE."""
        with registry.refuses(StatusCode.OUT_OF_RANGE, "stands at byte 0, not 2"):
            registry.write(b"abc", offset=2)

    def test_a_gap_keeps_what_came_before(self, registry):
        """A message that does not follow the one before is OUT_OF_RANGE; the rest can resume."""
        blob = artifact_pb2.Blob(digest=ABSENT, size=9)
        requests = [
            registry_pb2.WriteBlobRequest(blob=blob, data=b"abc"),
            registry_pb2.WriteBlobRequest(offset=4, data=b"efg"),
        ]

        with registry.refuses(StatusCode.OUT_OF_RANGE, "from 4 .* from 3"):
            registry.api.WriteBlob(iter(requests))

        assert registry.missing(ABSENT) == {ABSENT: 3}

    def test_a_message_above_the_limit_is_refused(self, registry):
        """More than 1 MiB in one message is INVALID_ARGUMENT."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "at most 1048576"):
            registry.write(bytes(MIB + 1), part=MIB + 1)

    def test_an_upload_must_name_its_blob(self, registry):
        """A stream without a blob in its first message, or without messages, is refused."""
        for requests in ([], [registry_pb2.WriteBlobRequest(data=b"abc")]):
            with registry.refuses(StatusCode.INVALID_ARGUMENT, "first message"):
                registry.api.WriteBlob(iter(requests))

    def test_parallel_uploads_of_one_blob_all_end_well(self, registry):
        """Uploads of the same blob that get in each other's way give one right blob."""
        data = np.random.default_rng(3).bytes(17 * MIB + 1)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        start = threading.Barrier(3)

        def upload(_):
            start.wait()
            for _ in range(50):
                missing = registry.missing(digest)
                if not missing:
                    return True
                try:
                    registry.write(data, missing[digest], part=MIB // 2)
                except Exception as error:
                    code, message = registry.explain(error)
                    assert code in (StatusCode.ABORTED, StatusCode.OUT_OF_RANGE), message
            return False

        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(upload, range(3)))

        assert registry.read(digest) == data


class TestPublishing:
    """A version is made of stored blobs, all or nothing."""

    def test_a_version_tells_what_its_blobs_say(self, registry, linear, linear_weights):
        """Function name, inputs, weights, outputs and platforms are read out of the blobs."""
        version = registry.publish(
            "mnist",
            linear,
            weights=[linear_weights],
            description="a line",
            labels={"team": "vision"},
            aliases=["production", "canary"],
        )

        signature = version.signatures[0]
        shard = version.weights[0]
        assert (version.model, version.number, version.description) == ("mnist", 1, "a line")
        assert (dict(version.labels), list(version.aliases)) == (
            {"team": "vision"},
            ["canary", "production"],
        )
        assert (signature.name, signature.function_name) == ("serving_default", "linear")
        assert [(s.name, s.dtype, list(s.shape), s.position) for s in signature.inputs] == [
            ("x", "float32", ["b", "4"], 2)
        ]
        assert [(s.name, list(s.shape), s.position) for s in signature.weights] == [
            ("b", ["3"], 0),
            ("w", ["4", "3"], 1),
        ]
        assert [(s.name, list(s.shape)) for s in signature.outputs] == [("logits", ["b", "3"])]
        assert (list(signature.platforms), signature.device_count) == (["cpu"], 1)
        assert {tensor.name for tensor in shard.tensors} == {"w", "b"}
        w = next(tensor for tensor in shard.tensors if tensor.name == "w")
        assert linear_weights[w.offset : w.offset + w.size] == np.ones((4, 3), np.float32).tobytes()

    def test_what_was_published_is_what_one_gets(self, registry, linear, linear_weights):
        """GetVersion by number, by alias and as the latest gives what publishing gave."""
        published = registry.publish("m", linear, weights=[linear_weights], aliases=["a"])
        get = registry_pb2.GetVersionRequest

        for request in (get(model="m"), get(model="m", version=1), get(model="m", alias="a")):
            assert registry.api.GetVersion(request) == published

    def test_without_weights_every_argument_is_an_input(self, registry, linear):
        """A program that is published alone takes all of its arguments from the caller."""
        signature = registry.publish("m", linear).signatures[0]

        assert [spec.name for spec in signature.inputs] == ["b", "w", "x"]
        assert not signature.weights

    def test_several_signatures_keep_their_order(self, registry, linear, constant):
        """A version's signatures come in the order in which they were published."""
        version = registry.publish("m", linear, constant)

        assert [signature.name for signature in version.signatures] == ["serving_default", "s1"]

    def test_a_blob_must_be_stored(self, registry, linear):
        """Naming a blob that was not uploaded is FAILED_PRECONDITION, and no model appears."""
        request = registry_pb2.PublishVersionRequest(
            model="m",
            programs=[registry_pb2.ProgramSource(digest=registry.write(linear))],
            weights=[ABSENT],
        )

        with registry.refuses(StatusCode.FAILED_PRECONDITION, f"1 of .* 2 blobs .*{ABSENT}"):
            registry.api.PublishVersion(request)

        assert not registry.api.ListModels(registry_pb2.ListModelsRequest()).models

    @pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 5000])
    def test_a_blob_that_is_no_export_is_refused(self, registry, data):
        """What is not a jax.export blob is INVALID_ARGUMENT, named by signature and digest."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "'serving_default' .*sha256:"):
            registry.publish("m", data)

        assert not registry.api.ListModels(registry_pb2.ListModelsRequest()).models

    @pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 100])
    def test_a_blob_that_is_no_safetensors_is_refused(self, registry, linear, data):
        """What is not a safetensors file is INVALID_ARGUMENT, named by digest."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "weights sha256:"):
            registry.publish("m", linear, weights=[data])

    def test_weights_that_do_not_fit_are_refused(self, registry, linear):
        """A tensor of another shape is INVALID_ARGUMENT, and the message has both shapes."""
        tensors = {"w": np.ones((4, 2), np.float32), "b": np.ones(3, np.float32)}

        with registry.refuses(
            StatusCode.INVALID_ARGUMENT, r"'w' is float32\[4,2\].*float32\[4,3\]"
        ):
            registry.publish("m", linear, weights=[safetensors.numpy.save(tensors)])

    def test_numbers_are_never_given_again(self, registry, constant):
        """The number after a deleted version is a new one, also when none is left."""
        for _ in range(2):
            registry.publish("m", constant)
        for number in (2, 1):
            registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=number))

        model = registry.api.GetModel(registry_pb2.GetModelRequest(model="m"))
        assert (model.latest_version, model.version_count) == (0, 0)
        assert registry.publish("m", constant).number == 3

    def test_concurrent_publishers_get_different_numbers(self, registry, constant):
        """Versions that are published side by side are numbered without gap or duplicate."""
        registry.write(constant)
        with ThreadPoolExecutor(8) as pool:
            versions = list(pool.map(lambda _: registry.publish("m", constant), range(16)))

        assert sorted(version.number for version in versions) == list(range(1, 17))

    def test_a_repeated_request_makes_one_version(self, registry, constant):
        """Concurrent and later requests with the same id all give the version of the first."""
        with ThreadPoolExecutor(4) as pool:
            versions = list(
                pool.map(lambda _: registry.publish("m", constant, request_id="r"), range(4))
            )
        versions.append(registry.publish("m", constant, request_id="r"))

        assert {version.number for version in versions} == {1}
        assert registry.publish("m", constant, request_id="other").number == 2
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "'r' .*version 1 of model 'm'"):
            registry.publish("n", constant, request_id="r")

    @pytest.mark.parametrize(
        "name", ["", "A", "a/b", "..", "-a", "ä", "a\0b", "a b", "a" * 129, "a\n"]
    )
    def test_illegal_names_are_refused(self, registry, constant, name):
        """A model name that breaks the rule is INVALID_ARGUMENT everywhere, an alias likewise."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "model name .* not legal"):
            registry.publish(name, constant)
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "model name .* not legal"):
            registry.api.GetVersion(registry_pb2.GetVersionRequest(model=name))
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "alias .* not legal"):
            registry.publish("m", constant, aliases=[name])

    @pytest.mark.parametrize(
        ("fields", "pattern"),
        [
            ({"description": "d" * 65_537}, "65537 bytes"),
            ({"description": "a\0"}, "NUL"),
            ({"labels": {str(n): "" for n in range(65)}}, "65 labels"),
            ({"labels": {"": "v"}}, "label key has 0"),
            ({"labels": {"k" * 129: "v"}}, "label key has 129"),
            ({"labels": {"k": "v" * 1025}}, "'k' has 1025"),
            ({"labels": {"k": "\n"}}, "cannot be printed"),
            ({"request_id": "r" * 129}, "request_id has 129"),
            ({"aliases": ["9"]}, "alias '9'"),
            ({"aliases": ["a"] * 1001}, "1001 aliases"),
            ({"labels": {"k": "\u202e"}}, "cannot be printed"),
        ],
    )
    def test_illegal_fields_are_refused(self, registry, constant, fields, pattern):
        """Each limit of the API is kept, by a message that names the field."""
        with registry.refuses(StatusCode.INVALID_ARGUMENT, pattern):
            registry.publish("m", constant, **fields)

    def test_a_version_needs_programs_with_different_names(self, registry, constant):
        """No program at all, or two of one signature name, is INVALID_ARGUMENT."""
        digest = registry.write(constant)
        source = registry_pb2.ProgramSource(digest=digest, signature="s")
        bad = registry_pb2.ProgramSource(digest=digest, signature="a/b")

        for sources, pattern in (
            ([], "at least one program"),
            ([source, source], "'s' is given 2 times"),
            ([bad], "signature name"),
            ([source] * 101, "101 programs are given; at most 100"),
        ):
            with registry.refuses(StatusCode.INVALID_ARGUMENT, pattern):
                registry.api.PublishVersion(
                    registry_pb2.PublishVersionRequest(model="m", programs=sources)
                )


class TestListing:
    """Listings come in pages, and what is not there is told with what is."""

    def test_models_are_listed_by_name_in_pages(self, registry, constant):
        """Pages of any size together give every model once, by name."""
        names = ["b", "a_1", "a1", "a-1", "a", "c"]
        for name in names:
            registry.publish(name, constant, aliases=["x"])
        found, token = [], ""
        while True:
            page = registry.api.ListModels(
                registry_pb2.ListModelsRequest(page_size=3, page_token=token)
            )
            found += page.models
            token = page.next_page_token
            if not token:
                break

        assert [model.name for model in found] == sorted(names)
        assert {(m.latest_version, m.version_count, m.aliases["x"]) for m in found} == {(1, 1, 1)}

    def test_versions_are_listed_newest_first_in_pages(self, registry, constant):
        """Pages together give every version once, newest first, also when one is added between."""
        for _ in range(5):
            registry.publish("m", constant)
        first = registry.api.ListVersions(registry_pb2.ListVersionsRequest(model="m", page_size=2))
        registry.publish("m", constant)
        second = registry.api.ListVersions(
            registry_pb2.ListVersionsRequest(model="m", page_token=first.next_page_token)
        )

        assert [v.number for v in [*first.versions, *second.versions]] == [5, 4, 3, 2, 1]
        assert not second.next_page_token

    def test_a_page_fits_one_message(self, registry, constant):
        """Fewer versions than asked for are returned where they would exceed 4 MB."""
        for _ in range(5):
            registry.publish("m", constant, description="d" * 60_000)
        labels = {str(n): "v" * 1024 for n in range(64)}
        for _ in range(30):
            registry.publish("m", constant, description="d" * 65_536, labels=labels)

        page = registry.api.ListVersions(registry_pb2.ListVersionsRequest(model="m"))

        assert len(page.versions) < 35
        assert page.next_page_token
        assert page.ByteSize() < 4 * MIB

    @pytest.mark.parametrize(
        "token",
        [
            *("x", "e30=", "WyJtb2RlbHMiLCAxXQ==", "é", "A" * 5000),
            encode_token("models", "\ud800"),
            encode_token("versions of m", 1 << 63),
            encode_token("versions of m", 0),
            encode_token("versions of another", 1),
        ],
    )
    def test_tokens_of_another_kind_are_refused(self, registry, constant, token):
        """A token that this listing did not give is INVALID_ARGUMENT."""
        registry.publish("m", constant)

        with registry.refuses(StatusCode.INVALID_ARGUMENT, "page_token"):
            registry.api.ListModels(registry_pb2.ListModelsRequest(page_token=token))
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "page_token"):
            registry.api.ListVersions(registry_pb2.ListVersionsRequest(model="m", page_token=token))
        with registry.refuses(StatusCode.INVALID_ARGUMENT, "page_size"):
            registry.api.ListModels(registry_pb2.ListModelsRequest(page_size=-1))

    def test_an_unknown_model_is_told_with_similar_names(self, registry, constant):
        """NOT_FOUND names models that do exist."""
        get = registry_pb2.GetModelRequest
        with registry.refuses(StatusCode.NOT_FOUND, "no model 'mnits'; none"):
            registry.api.GetModel(get(model="mnits"))
        registry.publish("mnist", constant)

        with registry.refuses(StatusCode.NOT_FOUND, "did you mean mnist"):
            registry.api.GetModel(get(model="mnits"))
        with registry.refuses(StatusCode.NOT_FOUND, "there are mnist"):
            registry.api.ListVersions(registry_pb2.ListVersionsRequest(model="zzz"))

    def test_an_unknown_version_or_alias_is_told_with_those_that_exist(self, registry, constant):
        """NOT_FOUND names the versions and aliases of the model."""
        for _ in range(7):
            registry.publish("m", constant, aliases=["production"])
        get = registry_pb2.GetVersionRequest

        with registry.refuses(
            StatusCode.NOT_FOUND, "no version 9; it has 7, 6, 5, 4, 3, and 2 more"
        ):
            registry.api.GetVersion(get(model="m", version=9))
        with registry.refuses(StatusCode.NOT_FOUND, "no alias 'prod'; it has production"):
            registry.api.GetVersion(get(model="m", alias="prod"))

    def test_the_latest_of_no_versions_is_not_found(self, registry, constant):
        """A model whose versions were all deleted has no latest one."""
        registry.publish("m", constant)
        registry.api.DeleteVersion(registry_pb2.DeleteVersionRequest(model="m", version=1))

        with registry.refuses(StatusCode.NOT_FOUND, "all were deleted"):
            registry.api.GetVersion(registry_pb2.GetVersionRequest(model="m"))


class TestAliases:
    """Aliases move atomically and protect what they point to."""

    @pytest.fixture
    def move(self, registry, constant):
        """Two versions of m, and a call that moves an alias."""
        for _ in range(2):
            registry.publish("m", constant)

        def move(version, **fields):
            return registry.api.SetAlias(
                registry_pb2.SetAliasRequest(model="m", alias="live", version=version, **fields)
            )

        return move

    def test_an_alias_is_made_moved_and_deleted(self, registry, move):
        """Each change is in the model that it returns and in the next answer."""
        assert dict(move(1).aliases) == {"live": 1}
        assert dict(move(2).aliases) == {"live": 2}
        latest = registry.api.GetVersion(registry_pb2.GetVersionRequest(model="m"))
        assert list(latest.aliases) == ["live"]

        request = registry_pb2.DeleteAliasRequest(model="m", alias="live")
        assert dict(registry.api.DeleteAlias(request).aliases) == {}
        with registry.refuses(StatusCode.NOT_FOUND, "it has none"):
            registry.api.DeleteAlias(request)

    def test_an_alias_moves_only_from_where_it_is_expected(self, registry, move):
        """A wrong expected version is ABORTED and tells where the alias points; 0 means nowhere."""
        with registry.refuses(StatusCode.ABORTED, "'live' of model 'm' does not exist"):
            move(1, expected_version=1)
        move(1, expected_version=0)
        with registry.refuses(StatusCode.ABORTED, "points to version 1"):
            move(2, expected_version=0)
        with registry.refuses(StatusCode.ABORTED, "points to version 1, not to 2"):
            move(2, expected_version=2)

        assert dict(move(2, expected_version=1).aliases) == {"live": 2}

    def test_an_alias_points_to_a_version_that_exists(self, registry, move):
        """Pointing to a version that does not exist is NOT_FOUND and changes nothing."""
        move(1)

        for number in (3, 0, -1):
            with registry.refuses(StatusCode.NOT_FOUND, "it has 2, 1"):
                move(number)

        model = registry.api.GetModel(registry_pb2.GetModelRequest(model="m"))
        assert dict(model.aliases) == {"live": 1}

    def test_publishing_moves_aliases(self, registry, move, constant):
        """An alias that is given at publishing points to the new version from then on."""
        move(1)

        registry.publish("m", constant, aliases=["live"])

        model = registry.api.GetModel(registry_pb2.GetModelRequest(model="m"))
        assert dict(model.aliases) == {"live": 3}

    def test_a_version_with_an_alias_is_not_deleted(self, registry, move):
        """Deleting what an alias points to is FAILED_PRECONDITION and names the alias."""
        move(1)
        delete = registry_pb2.DeleteVersionRequest

        with registry.refuses(StatusCode.FAILED_PRECONDITION, "alias live; point to another"):
            registry.api.DeleteVersion(delete(model="m", version=1))
        registry.api.DeleteVersion(delete(model="m", version=2))

        with registry.refuses(StatusCode.NOT_FOUND, "version 2 .* was deleted"):
            registry.api.DeleteVersion(delete(model="m", version=2))
