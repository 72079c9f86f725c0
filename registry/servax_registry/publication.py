"""Checks what a caller sent before anything is looked up."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from servax_registry import names
from servax_registry.artifact import ProgramSource, Publication, Selection
from servax_registry.errors import InvalidName, InvalidRequest

MAX_PROGRAMS = 100
MAX_SHARDS = 1000
MAX_ALIASES = 1000
MAX_DESCRIPTION = 65_536
MAX_LABELS = 64
MAX_LABEL_KEY = 128
MAX_LABEL_VALUE = 1024
MAX_REQUEST_ID = 128
MAX_SOURCE_REVISION = 1024

_PLATFORM = re.compile(r"[a-z0-9_]{1,32}")


def check_publication(publication: Publication) -> None:
    """Raise InvalidRequest unless every name, digest and length is legal."""
    check_copy(publication.model, publication.aliases, publication.request_id)
    if not publication.programs:
        raise InvalidRequest("a version needs at least one program")
    # Before anything else, so that no later step meets more than these.
    for what, values, most in (
        ("programs", publication.programs, MAX_PROGRAMS),
        ("weights", publication.weights, MAX_SHARDS),
        ("labels", publication.labels, MAX_LABELS),
    ):
        if len(values) > most:
            raise InvalidRequest(f"{len(values)} {what} are given; at most {most} fit a version")
    for source in publication.programs:
        names.check_signature(source.signature)
        names.check_digest(source.digest)
        _check_declared(source)
    for digest in publication.weights:
        names.check_digest(digest)
    _check_once("signature", [source.signature for source in publication.programs])
    _check_once("weights", publication.weights)
    size = len(publication.description.encode())
    if size > MAX_DESCRIPTION:
        raise InvalidRequest(f"the description has {size} bytes; at most {MAX_DESCRIPTION} fit")
    if "\0" in publication.description:
        raise InvalidRequest("the description contains a NUL character; leave it out")
    _check_labels(publication.labels)
    _check_text("source_revision", publication.source_revision, 0, MAX_SOURCE_REVISION)


def check_copy(model: str, aliases: Sequence[str], request_id: str | None) -> None:
    """Raise InvalidRequest unless a version with these can be added to a model."""
    names.check_model(model)
    if len(aliases) > MAX_ALIASES:
        raise InvalidRequest(f"{len(aliases)} aliases are given; at most {MAX_ALIASES} fit a model")
    for alias in aliases:
        names.check_alias(alias)
    if request_id is not None:
        _check_text("request_id", request_id, 1, MAX_REQUEST_ID)


def check_selection(selection: Selection) -> None:
    """Raise InvalidRequest unless every condition is one that a version can meet."""
    if selection.model:
        names.check_model(selection.model)
    if len(selection.labels) > MAX_LABELS:
        raise InvalidRequest(
            f"{len(selection.labels)} labels are asked for; versions have at most {MAX_LABELS}"
        )
    _check_labels(selection.labels)
    if selection.platform and not _PLATFORM.fullmatch(selection.platform):
        raise InvalidRequest(
            f"{selection.platform[:40]!a} is no platform; name one such as cpu, cuda, rocm or tpu"
        )


def _check_declared(source: ProgramSource) -> None:
    if source.batching is not None and not 0 <= source.batching.max_rows < 1 << 31:
        raise InvalidRequest(
            f"signature {source.signature!r}: at most {source.batching.max_rows} rows make no "
            "call; give 0 for no limit"
        )
    golden = source.golden
    if golden is None:
        return
    names.check_digest(golden.digest)
    for what, value in (("rtol", golden.rtol), ("atol", golden.atol)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(
                f"signature {source.signature!r}: {what} {value} is no tolerance; give a number "
                "from 0 on"
            )


def _check_once(what: str, values: Sequence[str]) -> None:
    value, count = Counter(values).most_common(1)[0] if values else ("", 0)
    if count > 1:
        raise InvalidRequest(f"{what} {value!r} is given {count} times; give it once")


def _check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        _check_text("label key", key, 1, MAX_LABEL_KEY)
        _check_text(f"value of label {key!r}", value, 0, MAX_LABEL_VALUE)


def _check_text(what: str, text: str, least: int, most: int) -> None:
    if not least <= len(text) <= most:
        raise InvalidName(f"{what} has {len(text)} characters; it must have {least} to {most}")
    if not text.isprintable():
        raise InvalidName(f"{what} {text[:40]!a} contains characters that cannot be printed")
