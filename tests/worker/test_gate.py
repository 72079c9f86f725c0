"""Programs that a worker cannot or must not run are refused with what to do about it."""

from dataclasses import replace

import pytest

from servax.types import Blob, Signature
from servax_worker.errors import CannotServe
from servax_worker.gate import Host, refuse_unservable

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
