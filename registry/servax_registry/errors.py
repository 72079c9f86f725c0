"""What can go wrong in the registry, in its own words.

    RegistryError
    ├── NotFound
    │   ├── ModelNotFound
    │   ├── VersionNotFound
    │   ├── AliasNotFound
    │   ├── SignatureNotFound
    │   └── BlobNotFound
    ├── InvalidRequest
    │   ├── InvalidName
    │   ├── InvalidProgram
    │   ├── InvalidWeights
    │   ├── Mismatch
    │   └── VersionTooLarge
    ├── BlobsNotStored
    ├── VersionInUse
    ├── AliasMoved
    ├── UploadConflict
    ├── UploadIncomplete
    ├── OffsetOutOfRange
    ├── DigestMismatch
    ├── BlobDamaged
    ├── TooManyTransfers
    ├── StorageUnavailable
    ├── StorageFull
    ├── DatabaseUnusable
    ├── BlobsUnusable
    ├── BackupFailed
    └── AddressUnusable

Every message is written for the caller: it names the thing, the value and the remedy.
`interceptors` maps the classes to gRPC status codes.
"""

from collections.abc import Sequence

# How many of many things a message lists, and how many characters of each.
_LISTED = 5
_LENGTH = 120


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """List the first few of many things in a message, and how many more there are."""
    shown = [item if len(item) <= _LENGTH else f"{item[:_LENGTH]}…" for item in items[:_LISTED]]
    if len(items) > _LISTED:
        shown.append(f"and {len(items) - _LISTED} more")
    return separator.join(shown)


class RegistryError(Exception):
    """Anything that the registry refuses or cannot do; the message is meant for the caller."""


class NotFound(RegistryError):
    """What was asked for does not exist; the message tells what does."""


class ModelNotFound(NotFound):
    """No model has this name."""


class VersionNotFound(NotFound):
    """The model has no version of this number, or none at all."""


class AliasNotFound(NotFound):
    """The model has no alias of this name."""


class SignatureNotFound(NotFound):
    """The version has no signature of this name."""


class BlobNotFound(NotFound):
    """No blob of this digest is stored."""


class InvalidRequest(RegistryError):
    """The request can never succeed as it is."""


class InvalidName(InvalidRequest):
    """A model, alias, signature, label or request id is not a legal one."""


class InvalidProgram(InvalidRequest):
    """A blob is not a serialized jax.export.Exported that the registry can read."""


class InvalidWeights(InvalidRequest):
    """A blob is not a well-formed safetensors file."""


class Mismatch(InvalidRequest):
    """The programs and the weights of a version do not fit each other."""


class VersionTooLarge(InvalidRequest):
    """The description of a version does not fit one message."""


class BlobsNotStored(RegistryError):
    """A version names blobs that were not uploaded."""


class VersionInUse(RegistryError):
    """The version cannot be deleted because an alias points to it."""


class AliasMoved(RegistryError):
    """The alias does not point where the caller believes."""


class UploadConflict(RegistryError):
    """Another upload of the same blob moved on meanwhile."""


class UploadIncomplete(RegistryError):
    """The stream ended before all bytes had arrived; those that did are kept."""


class OffsetOutOfRange(RegistryError):
    """Bytes were sent, or asked for, at an offset that is not the expected one."""


class DigestMismatch(RegistryError):
    """The bytes that were uploaded are not those that the digest names."""


class BlobDamaged(RegistryError):
    """A stored blob lost bytes."""


class TooManyTransfers(RegistryError):
    """As many calls that read or write blobs are under way as the registry allows at once."""


class StorageUnavailable(RegistryError):
    """The database, or the store of the blobs, does not answer at the moment."""


class StorageFull(RegistryError):
    """The database, or the store of the blobs, has no room left."""


class DatabaseUnusable(RegistryError):
    """The database cannot be opened, read or written; the registry does not start."""


class BlobsUnusable(RegistryError):
    """The place for blobs cannot be opened, read or written; the registry does not start."""


class BackupFailed(RegistryError):
    """A backup cannot be made, or is none."""


class AddressUnusable(RegistryError):
    """The address cannot be listened on; the registry does not start."""
