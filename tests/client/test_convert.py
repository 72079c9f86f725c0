"""Messages to and from the values that people see."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servax import ModelReference, convert, types
from servax_proto.v1 import artifact_pb2, prediction_pb2

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
COUNTS = st.integers(0, 2**31 - 1)
TEXTS = st.text(max_size=5)
TUPLES = st.lists(TEXTS, max_size=2).map(tuple)
BLOBS = st.builds(types.Blob, TEXTS, COUNTS)
SPECS = st.lists(st.builds(types.TensorSpec, TEXTS, TEXTS, TUPLES, COUNTS), max_size=2).map(tuple)
SIGNATURES = st.builds(
    types.Signature,
    TEXTS,
    BLOBS,
    TEXTS,
    SPECS,
    SPECS,
    SPECS,
    TUPLES,
    COUNTS,
    COUNTS,
    COUNTS,
    TEXTS,
    TEXTS,
    TUPLES,
    TUPLES,
    TUPLES,
)
STORED = st.builds(
    types.StoredTensor, TEXTS, TEXTS, st.lists(COUNTS, max_size=3).map(tuple), COUNTS, COUNTS
)
NUMBERS = st.floats(0, 1)
WINDOWS = st.builds(types.Compatibility, TEXTS, st.none() | st.dates(), st.dates(), st.booleans())
TOLD_BY_REGISTRIES = st.fixed_dictionaries(
    {
        "custom_calls": TUPLES,
        "compatibility": st.none() | WINDOWS,
        "trial": st.none()
        | st.builds(
            types.Trial,
            *(st.sampled_from(types.TrialOutcome), TEXTS, TEXTS, COUNTS, st.booleans()),
            *(COUNTS,) * 6,
        ),
        "encodings": st.lists(
            st.builds(types.Encoding, BLOBS, COUNTS, COUNTS, TEXTS, TEXTS, WINDOWS, TIMES),
            max_size=1,
        ).map(tuple),
        "batching": st.none() | st.builds(types.Batching, TEXTS, COUNTS),
        "golden": st.none()
        | st.builds(
            types.GoldenExample, BLOBS, NUMBERS, NUMBERS, st.lists(STORED, max_size=1).map(tuple)
        ),
    }
)
PUBLISHED = st.builds(
    lambda signature, more: replace(signature, **more), SIGNATURES, TOLD_BY_REGISTRIES
)
SHARDS = st.builds(types.WeightsShard, BLOBS, st.lists(STORED, max_size=2).map(tuple))
VERSIONS = st.builds(
    types.Version,
    TEXTS,
    COUNTS,
    st.lists(PUBLISHED, max_size=2).map(tuple),
    st.lists(SHARDS, max_size=2).map(tuple),
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    TIMES,
    TUPLES,
    TEXTS,
    TEXTS,
    st.none() | st.builds(types.VersionName, TEXTS, COUNTS),
    st.none() | TIMES,
)
MODELS = st.builds(
    types.Model, TEXTS, TIMES, COUNTS, COUNTS, st.dictionaries(TEXTS, COUNTS, max_size=2)
)
SERVED = st.builds(
    types.ServedVersion,
    TEXTS,
    COUNTS,
    TEXTS,
    st.sampled_from(types.ServedState),
    TEXTS,
    st.lists(SIGNATURES, max_size=1).map(tuple),
)
STATUSES = st.builds(types.WorkerStatus, st.lists(SERVED, max_size=2).map(tuple), TEXTS, TEXTS)
ROUND_TRIPS = [
    (VERSIONS, convert.version_from_proto),
    (MODELS, convert.model_from_proto),
    (STATUSES, convert.worker_status_from_proto),
]


@pytest.mark.parametrize(("values", "from_proto"), ROUND_TRIPS)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_value_survives_the_round_trip(to_proto_of, values, from_proto, data):
    """A value comes back from its message as it was."""
    value = data.draw(values)

    assert value == from_proto(to_proto_of[type(value)](value))


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(VERSIONS)
def test_versions_can_be_stored(version):
    """A version comes back from its bytes as it was."""
    assert convert.version_from_bytes(convert.version_to_bytes(version)) == version


def test_what_is_no_stored_version_is_refused():
    """Bytes that hold something else raise a ValueError."""
    with pytest.raises(ValueError, match="not a stored version"):
        convert.version_from_bytes(b"\xff\xff")


def test_values_have_every_field_of_their_messages():
    """No field of the API is left out of the values that people see."""
    pairs: list[tuple[Any, Any]] = [
        (types.Blob, artifact_pb2.Blob),
        (types.TensorSpec, artifact_pb2.TensorSpec),
        (types.Signature, artifact_pb2.Signature),
        (types.StoredTensor, artifact_pb2.StoredTensor),
        (types.WeightsShard, artifact_pb2.WeightsShard),
        (types.Version, artifact_pb2.Version),
        (types.Model, artifact_pb2.Model),
        (types.ServedVersion, prediction_pb2.ServedVersion),
        (types.WorkerStatus, prediction_pb2.GetStatusResponse),
    ]

    for value, message in pairs:
        assert [f.name for f in fields(value)] == [f.name for f in message.DESCRIPTOR.fields]


def test_states_are_those_of_the_api():
    """Every state of the API has its member, with the same number."""
    states = {
        name.removeprefix("STATE_"): number
        for name, number in prediction_pb2.ServedVersion.State.items()
    }

    assert {state.name: state.value for state in types.ServedState} == states


def test_a_state_of_a_newer_worker_is_unspecified():
    """A number that is not known here does not make the answer unreadable."""
    message = prediction_pb2.ServedVersion.FromString(b"\x20\x63")  # field 4 is 99
    served = convert.served_version_from_proto(message)

    assert served.state is types.ServedState.UNSPECIFIED


def test_times_are_in_utc():
    """Times know that they are in UTC."""
    model = convert.model_from_proto(artifact_pb2.Model())

    assert model.create_time.utcoffset() == timedelta(0)


def test_a_spec_prints_as_people_write_it():
    """A spec prints its name, dtype and shape."""
    spec = types.TensorSpec("tokens", "int32", ("b", "256"), 0)

    assert str(spec) == "tokens: int32[b,256]"


@pytest.mark.parametrize(
    ("reference", "positions"),
    [
        ("lm", [0, 1, 2]),
        ("lm:1", [0, 2]),
        ("lm:7", [2]),
        ("lm@canary", [2]),
        ("lm@other", []),
        ("mnist", [3]),
    ],
)
def test_a_status_tells_what_a_reference_may_name(reference, positions):
    """Model, number and alias have to match; what is still RESOLVING may have any number."""
    served = [
        types.ServedVersion(model, version, alias, state, "", ())
        for model, version, alias, state in (
            ("lm", 1, "", types.ServedState.READY),
            ("lm", 2, "production", types.ServedState.COMPILING),
            ("lm", 0, "canary", types.ServedState.RESOLVING),
            ("mnist", 1, "", types.ServedState.READY),
        )
    ]
    status = types.WorkerStatus(tuple(served), "cpu", "0.12.0")

    found = status.matching(ModelReference.parse(reference))

    assert found == tuple(served[position] for position in positions)


def test_a_version_counts_shared_blobs_once():
    """A version's size is what its distinct blobs take."""
    blob = types.Blob("sha256:a", 10)
    shard = types.WeightsShard(types.Blob("sha256:b", 5), ())
    signature = convert.signature_from_proto(artifact_pb2.Signature(program={"digest": "x"}))
    signatures = tuple(
        types.Signature(**(vars(signature) | {"name": name, "program": blob})) for name in "ab"
    )
    version = types.Version("m", 1, signatures, (shard,), "", {}, datetime.now(UTC))

    assert version.size == 15
