"""When programs can be loaded, against what the installed JAX reads, writes and promises."""

from datetime import date

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jaxlib.mlir.dialects import stablehlo

from servax_registry.artifact import WrittenIn
from servax_registry.inspection.compatibility import _RELEASES, _months_after, compatibility
from servax_registry.inspection.exported import read_program


def window(stablehlo="1.15.0", serialization=3, jax_version="", calling_convention=10):
    """The window of a program of these versions."""
    return compatibility(WrittenIn(stablehlo, serialization, calling_convention, jax_version))


def ordered(version):
    """A version that can be compared."""
    return tuple(map(int, version.split(".")))


def test_the_installed_jax_loads_what_it_writes():
    """The window of an export begins no later than the release that wrote it, and ends after it."""
    made = export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((3,), jnp.float32))
    program = read_program(bytes(made.serialize()))

    found = window(
        program.stablehlo_version,
        program.serialization_version,
        program.jax_version,
        program.calling_convention_version,
    )

    assert ordered(found.oldest_jax) <= ordered(jax.__version__)
    assert found.oldest_date < _RELEASES[jax.__version__].day < found.expires
    assert found.estimated == (program.jax_version == "")


def test_the_table_says_what_the_installed_jax_says_of_itself():
    """What the installed release reads up to, and what it writes, is what the table has."""
    release = _RELEASES[jax.__version__]
    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_4

    assert release.reads == stablehlo.get_current_version()
    assert release.writes == stablehlo.get_version_from_compatibility_requirement(requirement)


def test_the_table_covers_the_stable_releases_in_order():
    """Versions, and what they read and write, never go back from one release to the next."""
    versions = list(_RELEASES)
    reads = [release.reads for release in _RELEASES.values()]
    writes = [release.writes for release in _RELEASES.values()]

    for column in (versions, reads, writes):
        assert column == sorted(column, key=ordered)


@pytest.mark.parametrize(
    ("versions", "oldest", "expires", "estimated"),
    [
        (("1.15.0", 3, ""), "0.10.0", date(2026, 12, 17), True),
        (("1.18.0", 12, "0.12.0.1"), "0.11.0", date(2027, 4, 21), False),
        (("1.18.0", 12, "0.11.2"), "0.11.0", date(2027, 3, 17), False),
        # Rewritten for older readers, which still read no newer serialization.
        (("1.10.0", 12, "0.12.0.1"), "0.8.3", date(2027, 4, 21), False),
        # Between two releases: not older than the first that writes as much.
        (("1.13.2", 3, ""), "0.8.1", date(2026, 7, 20), True),
        # Older than all that is known.
        (("1.0.0", 2, ""), "0.6.0", date(2025, 10, 17), True),
        # Newer than all that is known.
        (("1.25.0", 13, ""), "", date(2027, 4, 21), True),
        (("1.25.0", 13, "0.13.0"), "0.13.0", date(2027, 4, 21), True),
        (("1.18.0", 12, "0.12.0.2"), "0.11.0", date(2027, 4, 21), True),
        # Nightly builds tell their day.
        (("1.19.0", 12, "0.12.1.dev20261105"), "0.11.1", date(2027, 5, 5), False),
        (("1.19.0", 12, "0.12.1.dev20261199"), "0.11.1", date(2027, 4, 21), True),
        # Nobody vouches for what a program says.
        (("1.18.0", 12, "9" * 5000), "0.11.0", date(2027, 3, 17), True),
        (("1.18.0", 12, "latest"), "0.11.0", date(2027, 3, 17), True),
    ],
)
def test_windows(versions, oldest, expires, estimated):
    """The oldest reader and the day of expiry follow from the versions that a program tells."""
    found = window(*versions)

    assert (oldest, expires, estimated) == (found.oldest_jax, found.expires, found.estimated)


def test_an_unknown_calling_convention_is_read_by_no_known_release():
    """A calling convention that no known release has begins with a release that is not known."""
    assert window(calling_convention=11).oldest_jax == ""


@pytest.mark.parametrize(
    ("day", "after"),
    [
        (date(2026, 8, 31), date(2027, 2, 28)),
        (date(2026, 5, 31), date(2026, 11, 30)),
        (date(2026, 7, 1), date(2027, 1, 1)),
        (date(2023, 8, 30), date(2024, 2, 29)),
    ],
)
def test_six_months_end_on_the_same_day_or_the_last_of_the_month(day, after):
    """Six months after the 31st is the last day of a shorter month."""
    assert after == _months_after(day, 6)
