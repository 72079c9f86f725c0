"""What the command line shows of what the registry knows."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import click
import pytest

from servax.cli import details, documents, tables
from servax.cli.parameters import DAY
from servax.types import (
    Batching,
    Blob,
    Compatibility,
    Encoding,
    GoldenExample,
    Signature,
    TensorSpec,
    Trial,
    TrialOutcome,
    Version,
    VersionName,
)

TODAY = date.today()
CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
E, G, P = (Blob(f"sha256:{letter * 64}", 3000) for letter in "e0a")
WINDOW = Compatibility("0.10.1", date(2026, 5, 20), date(2999, 1, 2), estimated=False)
PASSED = Trial(
    TrialOutcome.PASSED,
    reason="",
    jax_version="0.12.0",
    size=8,
    ran=True,
    flops=1_234_567,
    accessed_bytes=4096,
    argument_bytes=96,
    result_bytes=2048,
    temporary_bytes=0,
    code_bytes=5_000_000,
)
BARE = Signature(
    name="serving_default",
    program=P,
    function_name="forward",
    inputs=(TensorSpec("x", "float32", ("b", "3"), 0),),
    weights=(),
    outputs=(TensorSpec("output", "float32", ("b", "3"), 0),),
    platforms=("cpu",),
    device_count=1,
    calling_convention_version=10,
    serialization_version=6,
    stablehlo_version="1.13.0",
    jax_version="0.12.0",
)
ENCODING = Encoding(E, 10, 3, "1.10.0", "0.13.0", WINDOW, CREATED, PASSED)
SIGNATURE = replace(
    BARE,
    custom_calls=("lapack_spotrf_ffi", "\x1b[31m"),
    compatibility=WINDOW,
    trial=PASSED,
    encodings=(ENCODING,),
    batching=Batching("b", 64),
    golden=GoldenExample(G, rtol=1e-5, atol=0.25),
)
VERSION = Version(
    model="lm",
    number=3,
    signatures=(SIGNATURE,),
    weights=(),
    description="",
    labels={},
    create_time=CREATED,
    creator="ada",
    source_revision="abc123",
    copied_from=VersionName("base", 7),
    delete_time=datetime(2026, 2, 3, tzinfo=UTC),
)


@pytest.fixture
def shown(capsys):
    """What is printed of a version, by the name of each fact."""

    def shown(**changes):
        details.print_version(replace(VERSION, signatures=(replace(SIGNATURE, **changes),)))
        facts = {}
        for line in capsys.readouterr().out.splitlines():
            name, _, value = line.strip().partition("  ")
            facts[name] = value.strip()
        return facts

    return shown


def test_everything_that_is_known_is_shown(shown):
    """Each fact of the version and of its program has a line, in units that people read."""
    facts = shown()

    assert facts["created"].endswith(" by ada")
    assert facts["deleted"].startswith("2026-02-0")
    assert facts["copied from"] == "base:7"
    assert facts["made from"] == "abc123"
    assert facts["loads in"] == "JAX 0.10.1 (2026-05-20) and newer"
    assert facts["expires"] == "2999-01-02"
    assert facts["custom calls"] == r"lapack_spotrf_ffi, \x1b[31m"
    assert facts["batching"] == "rows are counted by b, at most 64 a call"
    assert facts["golden"] == f"rtol 1e-05, atol 0.25, 3.0 kB, {G.digest}"
    assert facts["trial"] == "passed: compiled and run by JAX 0.12.0, every symbolic dimension 8"
    assert facts["computes"] == "1.2 MFLOP, 4.1 kB accessed"
    assert facts["takes"] == "96 bytes arguments, 2.0 kB results, 0 bytes temporaries, 5.0 MB code"
    encoding = facts[E.digest]
    assert "JAX 0.13.0, StableHLO 1.10.0" in encoding
    assert "2999-01-02" in encoding
    assert "passed: compiled and run" in encoding


def test_what_is_not_known_has_no_line(shown):
    """A registry that tells less, an older one, leaves lines out and nothing else."""
    facts = shown(
        compatibility=None, trial=None, encodings=(), batching=None, golden=None, custom_calls=()
    )

    unknown = {"loads in", "expires", "trial", "encoding", "batching", "golden", "custom calls"}
    assert not unknown & facts.keys()


@pytest.mark.parametrize(
    ("window", "loads", "expires"),
    [
        (
            Compatibility("0.10.1", None, date(2999, 1, 2), estimated=True),
            "JAX 0.10.1 and newer",
            "2999-01-02 or later",
        ),
        (
            Compatibility("", None, date(2020, 1, 2), estimated=False),
            "no release of JAX that is known here",
            "2020-01-02; a JAX that is built now may refuse it",
        ),
    ],
    ids=["estimated", "expired"],
)
def test_the_window_is_told_in_words(shown, window, loads, expires):
    """What is estimated, unknown or over is told as such."""
    facts = shown(compatibility=window)

    assert (facts["loads in"], facts["expires"]) == (loads, expires)


@pytest.mark.parametrize(
    ("trial", "text"),
    [
        (replace(PASSED, ran=False, size=0), "passed: compiled, too large to run by JAX 0.12.0"),
        (replace(PASSED, outcome=TrialOutcome.FAILED, reason="it hangs\x07"), r"failed: it hangs"),
        (replace(PASSED, outcome=TrialOutcome.IMPOSSIBLE, reason="no JAX"), "impossible: no JAX"),
    ],
    ids=["not run", "failed", "impossible"],
)
def test_how_a_trial_ended_is_told(shown, trial, text):
    """A trial that did not pass has its reason, one that did says whether the program ran."""
    assert shown(trial=trial)["trial"].startswith(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (1000, "1.0 kFLOP"), (10**22, "10000.0 EFLOP")],
)
def test_operations_have_prefixes(shown, count, text):
    """Floating-point operations are counted in thousands of thousands."""
    assert shown(trial=replace(PASSED, flops=count))["computes"].startswith(text)


@pytest.mark.parametrize(("symbol", "most", "text"), [("", 8, "8 rows"), ("n", 0, "by n")])
def test_batching_is_told_in_words(shown, symbol, most, text):
    """A fixed number of rows, and rows without a limit, are told as such."""
    told = shown(batching=Batching(symbol, most))["batching"]
    assert text in told
    assert "at most" not in told


def test_versions_are_listed_with_the_day_on_which_they_expire(capsys):
    """A version lasts as long as the signature that ends first, by its most lasting encoding."""
    soon = replace(WINDOW, expires=TODAY + timedelta(days=5))
    ending = replace(SIGNATURE, name="ending", compatibility=soon, encodings=())
    version = replace(VERSION, signatures=(SIGNATURE, ending))

    tables.print_versions([version, replace(VERSION, signatures=())], with_model=True)

    lines = capsys.readouterr().out.splitlines()
    assert "expires" in lines[1]
    assert str(TODAY + timedelta(days=5)) in lines[3]


def test_json_tells_the_same():
    """The document of a version has every fact, with its type, or null."""
    document = documents.version(VERSION)
    (signature,) = document["signatures"]

    assert document["expires"] == "2999-01-02"
    assert document["copied_from"] == "base:7"
    assert signature["custom_calls"][0] == "lapack_spotrf_ffi"
    assert signature["compatibility"] == {
        "oldest_jax": "0.10.1",
        "oldest_jax_date": "2026-05-20",
        "expires": "2999-01-02",
        "estimated": False,
    }
    assert signature["encodings"] == [
        {
            "program": {"digest": E.digest, "size": 3000},
            "calling_convention_version": 10,
            "serialization_version": 3,
            "stablehlo_version": "1.10.0",
            "jax_version": "0.13.0",
            "compatibility": signature["compatibility"],
            "create_time": "2026-01-02T03:04:05+00:00",
            "trial": signature["trial"],
        }
    ]
    assert signature["trial"]["outcome"] == "PASSED"
    assert signature["trial"]["flops"] == 1_234_567
    assert signature["batching"] == {"symbol": "b", "max_rows": 64}
    assert signature["golden"]["atol"] == 0.25
    bare = documents.signature(BARE)
    for key in ("compatibility", "trial", "batching", "golden"):
        assert bare[key] is None


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("0d", TODAY),
        ("60d", TODAY + timedelta(days=60)),
        ("2w", TODAY + timedelta(days=14)),
        ("3m", TODAY + timedelta(days=90)),
        ("2026-12-31", date(2026, 12, 31)),
    ],
)
def test_days_are_read(text, day):
    """A day is told by its distance or by its date."""
    assert DAY.convert(text, None, None) == day


@pytest.mark.parametrize("text", ["", "60", "d", "1y", "-1d", "2026-02-30", "99999m", "soon"])
def test_what_is_no_day_is_refused(text):
    """Anything else is wrong usage, with examples of what is right."""
    with pytest.raises(click.BadParameter, match="is no day; say 60d, 8w, 6m or"):
        DAY.convert(text, None, None)
