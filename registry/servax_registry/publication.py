"""Checks what a publisher sent before anything is looked up."""

from collections import Counter
from collections.abc import Sequence

from servax_registry import names
from servax_registry.artifact import Publication
from servax_registry.errors import InvalidName, InvalidRequest

MAX_PROGRAMS = 100
MAX_SHARDS = 1000
MAX_ALIASES = 1000
MAX_DESCRIPTION = 65_536
MAX_LABELS = 64
MAX_LABEL_KEY = 128
MAX_LABEL_VALUE = 1024
MAX_REQUEST_ID = 128


def check_publication(publication: Publication) -> None:
    """Raise InvalidRequest unless every name, digest and length is legal."""
    names.check_model(publication.model)
    if not publication.programs:
        raise InvalidRequest("a version needs at least one program")
    # Before anything else, so that no later step meets more than these.
    for what, values, most in (
        ("programs", publication.programs, MAX_PROGRAMS),
        ("weights", publication.weights, MAX_SHARDS),
        ("aliases", publication.aliases, MAX_ALIASES),
        ("labels", publication.labels, MAX_LABELS),
    ):
        if len(values) > most:
            raise InvalidRequest(f"{len(values)} {what} are given; at most {most} fit a version")
    for source in publication.programs:
        names.check_signature(source.signature)
        names.check_digest(source.digest)
    for digest in publication.weights:
        names.check_digest(digest)
    for alias in publication.aliases:
        names.check_alias(alias)
    _check_once("signature", [source.signature for source in publication.programs])
    _check_once("weights", publication.weights)
    size = len(publication.description.encode())
    if size > MAX_DESCRIPTION:
        raise InvalidRequest(f"the description has {size} bytes; at most {MAX_DESCRIPTION} fit")
    if "\0" in publication.description:
        raise InvalidRequest("the description contains a NUL character; leave it out")
    _check_labels(publication.labels)
    request_id = publication.request_id
    if request_id is not None:
        _check_text("request_id", request_id, 1, MAX_REQUEST_ID)


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
