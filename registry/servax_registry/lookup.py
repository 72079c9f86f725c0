"""Finds what a caller names, or tells the caller what there is instead."""

import difflib

from servax_registry import names
from servax_registry.artifact import Model, Signature, Version
from servax_registry.errors import (
    AliasNotFound,
    ModelNotFound,
    SignatureNotFound,
    VersionNotFound,
    listed,
)
from servax_registry.store.versions import Versions

# How many model names are searched for one that resembles an unknown one.
_NAMES_SEARCHED = 500


def find_model(versions: Versions, name: str) -> Model:
    """Find a model. Raises InvalidName and ModelNotFound."""
    names.check_model(name)
    model = versions.model(name)
    if model is None:
        raise ModelNotFound(f"there is no model {name!r}; {_similar(versions, name)}")
    return model


def _similar(versions: Versions, name: str) -> str:
    existing = versions.model_names(_NAMES_SEARCHED)
    similar = difflib.get_close_matches(name, existing, n=5)
    if similar:
        return f"did you mean {listed(similar)}?"
    return f"there are {listed(existing)}" if existing else "none has been published yet"


def find_version(versions: Versions, model: str, number: int, *, deleted: bool = False) -> Version:
    """Find a version of an existing model, a deleted one where told. Raises VersionNotFound."""
    # No version has the number 0, which stands for the latest of none.
    version = versions.version(model, number) if number else None
    if version is not None and (version.delete_time is None or deleted):
        return version
    if version is not None:
        raise VersionNotFound(
            f"version {number} of model {model!r} was deleted; UndeleteVersion brings it back"
        )
    existing = versions.numbers(model, limit=1000)
    raise VersionNotFound(
        f"model {model!r} has no version{f' {number}' if number else ''}; "
        + (
            f"it has {listed([str(number) for number in existing])}"
            if existing
            else "all were deleted"
        )
    )


def find_signature(version: Version, name: str) -> Signature:
    """Find a signature. Raises InvalidName and SignatureNotFound."""
    names.check_signature(name)
    for signature in version.signatures:
        if signature.name == name:
            return signature
    raise SignatureNotFound(
        f"version {version.number} of model {version.model!r} has no signature {name!r}; it has "
        f"{listed([signature.name for signature in version.signatures])}"
    )


def find_aliased(model: Model, alias: str) -> int:
    """Find the number of the version that an alias points to.

    Raises InvalidName and AliasNotFound.
    """
    names.check_alias(alias)
    if alias not in model.aliases:
        raise AliasNotFound(
            f"model {model.name!r} has no alias {alias!r}; "
            + (f"it has {listed(list(model.aliases))}" if model.aliases else "it has none")
        )
    return model.aliases[alias]
