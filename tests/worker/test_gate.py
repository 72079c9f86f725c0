"""Programs that a worker cannot or must not run are refused with what to do about it."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from servax.types import Blob, Compatibility, Encoding, Signature
from servax_worker.errors import CannotServe
from servax_worker.gate import Host, choose_encoding, refuse_unservable

HOST = Host(platform="cpu", device_count=2, jax_version="0.10.2", stablehlo_version="1.17.0")
FINE = Signature(
    name="serving_default",
    program=Blob("sha256:" + "0" * 64, 1),
    function_name="f",
    inputs=(),
    weights=(),
    outputs=(),
    platforms=("cpu", "cuda"),
    device_count=1,
    calling_convention_version=10,
    serialization_version=3,
    stablehlo_version="1.17.0",
    jax_version="",
)


@pytest.mark.parametrize("version", ["1.17.0", "1.9.9", "0.20.0", "1"])
def test_what_it_reads_passes(version):
    """A program for this platform and one device, in StableHLO up to the host's, is taken."""
    refuse_unservable(replace(FINE, stablehlo_version=version), HOST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"platforms": ("cuda", "tpu")}, "exported for cuda, tpu, this worker runs on cpu: add"),
        ({"device_count": 4}, "runs on 4 devices, this worker has 2"),
        ({"stablehlo_version": "1.18.0"}, r"StableHLO 1.18.0, .* JAX 0.10.2 reads up to 1.17.0"),
        ({"stablehlo_version": "1.17.0.1"}, "upgrade the worker's JAX"),
        ({"stablehlo_version": "new"}, "'new' is not a version"),
        ({"effects": ("debug",)}, r"side effects \(debug\): export the function without them"),
        ({"disabled_checks": ("platform",)}, r"disabled \(platform\): export it without"),
        ({"disabled_checks": ("custom_call:f",)}, r"\(custom_call:f\).* --allow-custom-call"),
    ],
)
def test_what_it_cannot_run_is_refused(changes, message):
    """Each reason is told in words that lead to a remedy."""
    with pytest.raises(CannotServe, match=message):
        refuse_unservable(replace(FINE, **changes), HOST)


def test_the_operator_allows_custom_calls():
    """A disabled check of an allowed custom call is taken; any other one is still refused."""
    calling = replace(FINE, disabled_checks=("custom_call:mine", "custom_call:yours"))

    refuse_unservable(calling, HOST, {"mine", "yours"})
    with pytest.raises(CannotServe, match=r"disabled \(custom_call:yours\)"):
        refuse_unservable(calling, HOST, {"mine"})


TODAY = date(2026, 12, 1)


def encoding(letter: str, stablehlo_version: str, expires: date) -> Encoding:
    """Another encoding of FINE."""
    return Encoding(
        Blob("sha256:" + letter * 64, 2),
        9,
        4,
        stablehlo_version,
        f"0.{letter}",
        Compatibility("0.9.0", None, expires, estimated=False),
        datetime(2026, 1, 1, tzinfo=UTC),
    )


FRESH, STALE = date(2027, 1, 1), date(2026, 11, 30)


@pytest.mark.parametrize(
    ("written", "expires", "encodings", "chosen"),
    [
        ("1.17.0", FRESH, [("1.10.0", FRESH)], "0"),
        ("1.17.0", TODAY, [("1.10.0", FRESH)], "0"),
        ("1.17.0", STALE, [("1.18.0", FRESH)], "0"),
        ("1.17.0", STALE, [("1.18.0", FRESH), ("1.16.0", FRESH)], "b"),
        ("1.18.0", FRESH, [("1.19.0", FRESH), ("1.17.0", STALE), ("1.9.0", FRESH)], "c"),
        ("1.18.0", FRESH, [("1.17.0", STALE), ("1.9.0", STALE)], "a"),
        ("1.18.0", FRESH, [("1.19.0", FRESH)], "0"),
        ("1.18.0", FRESH, [], "0"),
    ],
    ids=[
        *("as written", "last day", "expired alone", "renewed", "retargeted", "all expired"),
        *("unreadable", "no others"),
    ],
)
def test_the_first_encoding_that_is_read_and_lasts_is_chosen(written, expires, encodings, chosen):
    """The program itself comes first, what has expired last, and what is not read never."""
    signature = replace(
        FINE,
        stablehlo_version=written,
        compatibility=Compatibility("0.9.0", None, expires, estimated=False),
        encodings=tuple(encoding(letter, *each) for letter, each in zip("abc", encodings)),  # noqa: B905
    )

    found = choose_encoding(signature, HOST, TODAY)

    assert found.program.digest == "sha256:" + chosen * 64
    if chosen == "0":
        assert found is signature
    else:
        assert (found.jax_version, found.inputs) == (f"0.{chosen}", signature.inputs)
        refuse_unservable(found, HOST)


def test_what_a_registry_does_not_tell_does_not_expire():
    """A program of which an older registry tells no window is taken as it is."""
    signature = replace(FINE, encodings=(encoding("a", "1.10.0", FRESH),))

    assert choose_encoding(signature, HOST, TODAY) is signature
