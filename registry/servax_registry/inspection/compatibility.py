"""Which releases of JAX load a program, from when until when.

Two things limit that. A release reads StableHLO up to its own version and, where it checks, exports
up to some serialization version: this gives the oldest release that loads a program. And JAX
promises to load what was exported by a release built at most six months before
(https://docs.jax.dev/en/latest/501/export.html#compatibility-guarantees): this gives the day after
which new releases may refuse it. From 0.11.1 on they begin to; what they still load, they load
without any promise.
"""

import contextlib
import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from servax_registry.artifact import WrittenIn

_NEWEST_CALLING_CONVENTION = 10
_BACKWARD_MONTHS = 6


@dataclass(frozen=True)
class Window:
    """When a program can be loaded.

    `oldest_jax` is the oldest release of which it is known that it loads the program, and
    `oldest_date` is the day of that release; "" and None where they are not known. `expires` is
    the last day on which a release of JAX can be built that is bound to load it. `estimated` says
    that the program does not tell the release that wrote it, or one that is not known here:
    `expires` may then be too early, and is never too late.
    """

    oldest_jax: str
    oldest_date: date | None
    expires: date
    estimated: bool


@dataclass(frozen=True)
class _Release:
    """A release of JAX: its day, and the versions of StableHLO that it reads up to and writes."""

    day: date
    reads: str
    writes: str


# The days are those of the uploads to PyPI. What a release reads up to is its jaxlib's
# `stablehlo.get_current_version()`; what it writes is the version that its jaxlib gives for
# `StablehloCompatibilityRequirement.WEEK_4`, which jax.export asks for.
_RELEASES = {
    "0.6.0": _Release(date(2025, 4, 17), reads="1.10.4", writes="1.9.5"),
    "0.6.1": _Release(date(2025, 5, 21), reads="1.10.9", writes="1.10.3"),
    "0.6.2": _Release(date(2025, 6, 17), reads="1.11.0", writes="1.10.6"),
    "0.7.0": _Release(date(2025, 7, 22), reads="1.12.1", writes="1.11.0"),
    "0.7.1": _Release(date(2025, 8, 20), reads="1.13.0", writes="1.12.1"),
    "0.7.2": _Release(date(2025, 9, 16), reads="1.13.0", writes="1.12.1"),
    "0.8.0": _Release(date(2025, 10, 15), reads="1.13.1", writes="1.12.1"),
    "0.8.1": _Release(date(2025, 11, 18), reads="1.13.3", writes="1.13.0"),
    "0.8.2": _Release(date(2025, 12, 18), reads="1.13.5", writes="1.13.1"),
    "0.8.3": _Release(date(2026, 1, 29), reads="1.13.5", writes="1.13.1"),
    "0.9.0": _Release(date(2026, 1, 20), reads="1.13.7", writes="1.13.4"),
    "0.9.0.1": _Release(date(2026, 2, 5), reads="1.13.7", writes="1.13.4"),
    "0.9.1": _Release(date(2026, 3, 2), reads="1.13.8", writes="1.13.4"),
    "0.9.2": _Release(date(2026, 3, 18), reads="1.14.0", writes="1.13.7"),
    "0.10.0": _Release(date(2026, 4, 16), reads="1.16.0", writes="1.13.9"),
    "0.10.1": _Release(date(2026, 5, 20), reads="1.17.0", writes="1.14.1"),
    "0.10.2": _Release(date(2026, 6, 17), reads="1.17.0", writes="1.15.0"),
    "0.11.0": _Release(date(2026, 7, 16), reads="1.18.0", writes="1.16.1"),
    "0.11.1": _Release(date(2026, 8, 17), reads="1.19.0", writes="1.16.3"),
    "0.11.2": _Release(date(2026, 9, 17), reads="1.20.0", writes="1.18.0"),
    "0.12.0": _Release(date(2026, 10, 19), reads="1.22.0", writes="1.18.0"),
    "0.12.0.1": _Release(date(2026, 10, 21), reads="1.22.0", writes="1.18.0"),
}
# Up to 0.7.2, every serialization version after 3 is refused; the first release of which it is
# known that it reads what later ones write is this.
_READS_LATER_SERIALIZATIONS = "0.8.3"
_STRICT_SERIALIZATION = 3

# What is older than all of them has expired in any case.
_FIRST_DAY = min(release.day for release in _RELEASES.values())
_LAST_DAY = max(release.day for release in _RELEASES.values())

_RELEASE = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){1,4}")
_NIGHTLY = re.compile(r"[0-9.]{3,40}\.dev(20[0-9]{2})([0-9]{2})([0-9]{2}).{0,40}")


@lru_cache(1000)
def compatibility(written: WrittenIn) -> Window:
    """When a program that was written in these versions can be loaded."""
    oldest = _oldest_reader(
        written.stablehlo_version,
        written.serialization_version,
        written.calling_convention_version,
    )
    version = written.jax_version
    if _RELEASE.fullmatch(version) and (not oldest or _ordered(version) < _ordered(oldest)):
        oldest = version  # a release loads what it wrote
    release = _RELEASES.get(oldest)
    day, exact = _written(version, written.stablehlo_version)
    return Window(
        oldest_jax=oldest,
        oldest_date=release.day if release else None,
        expires=_months_after(day, _BACKWARD_MONTHS),
        estimated=not exact,
    )


def _oldest_reader(stablehlo: str, serialization: int, calling_convention: int) -> str:
    """The oldest release that is known to load these versions; "" when none is."""
    if calling_convention > _NEWEST_CALLING_CONVENTION:
        return ""
    for version, release in _RELEASES.items():
        strict = _ordered(version) < _ordered(_READS_LATER_SERIALIZATIONS)
        if strict and serialization > _STRICT_SERIALIZATION:
            continue
        if _ordered(stablehlo) <= _ordered(release.reads):
            return version
    return ""


def _written(jax_version: str, stablehlo: str) -> tuple[date, bool]:
    """The day on which the writer of a program was built, or one before; whether it is exact."""
    if jax_version in _RELEASES:
        return _RELEASES[jax_version].day, True
    if nightly := _NIGHTLY.fullmatch(jax_version):
        with contextlib.suppress(ValueError):  # no such day
            return date(*map(int, nightly.groups())), True
    if _RELEASE.fullmatch(jax_version):
        # Not older than the newest of the known releases before it.
        days = [
            release.day
            for version, release in _RELEASES.items()
            if _ordered(version) < _ordered(jax_version)
        ]
        return max(days, default=_FIRST_DAY), False
    # Not older than the first known release that writes as much.
    days = [
        release.day
        for release in _RELEASES.values()
        if _ordered(release.writes) >= _ordered(stablehlo)
    ]
    return min(days, default=_LAST_DAY), False


def _months_after(day: date, months: int) -> date:
    """The same day some months later, or the last one of a shorter month."""
    years, month = divmod(day.month - 1 + months, 12)
    following = date(day.year + years + (month == 11), (month + 1) % 12 + 1, 1)
    last = following - timedelta(days=1)
    return last.replace(day=min(day.day, last.day))


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
