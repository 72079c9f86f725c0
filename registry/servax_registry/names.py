"""What a legal name is."""

import re

from servax_registry.errors import InvalidName

_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_model(name: str) -> None:
    """Raise InvalidName unless `name` can be a model's."""
    _check(
        _MODEL, "model name", name, "a-z, 0-9, '.', '_' and '-', of which the first is a-z or 0-9"
    )


def check_alias(name: str) -> None:
    """Raise InvalidName unless `name` can be an alias."""
    _check(_ALIAS, "alias", name, "a-z, 0-9, '.', '_' and '-', of which the first is a-z")


def check_signature(name: str) -> None:
    """Raise InvalidName unless `name` can be a signature's."""
    _check(
        _SIGNATURE,
        "signature name",
        name,
        "A-Z, a-z, 0-9, '.', '_' and '-', of which the first is neither '.' nor '-'",
    )


def check_digest(digest: str) -> None:
    """Raise InvalidName unless `digest` has the form of a blob's digest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidName(
            f"{digest[:80]!a} is no digest; it must be 'sha256:' and 64 lower-case hexadecimal "
            "digits"
        )


def _check(pattern: re.Pattern[str], kind: str, name: str, letters: str) -> None:
    if not pattern.fullmatch(name):
        shown = f"{name[:40]!a}… ({len(name)} characters)" if len(name) > 128 else f"{name!a}"
        raise InvalidName(f"{kind} {shown} is not legal; it must be 1 to 128 characters: {letters}")
