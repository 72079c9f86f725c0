"""An OCI image layout: blobs by digest in a directory, and an index of what is to be found there.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from collections.abc import Sequence
from pathlib import Path

from servax._files import CHUNK_BYTES, FileSource, PartFile, digest_of, make_directory, reported
from servax.errors import DataLoss, InvalidArgument
from servax.manifests import Document, decode, encode, entry, name_of
from servax.types import Blob, FilePath, ProgressCallback

# Registries refuse manifests that are larger; the other documents are small as well.
_DOCUMENT_LIMIT = 4 << 20

_VERSION = "1.0.0"


class Layout:
    """A directory; every method may raise FileError."""

    def __init__(self, directory: FilePath) -> None:
        self.directory = Path(directory)

    def create(self) -> None:
        """Make the directory, or go on with one that is there. Raises InvalidArgument."""
        make_directory(self.directory / "blobs" / "sha256")
        if (self.directory / "oci-layout").exists():
            self.check()
        else:
            _write(self.directory / "oci-layout", encode({"imageLayoutVersion": _VERSION}))

    def check(self) -> None:
        """Raise InvalidArgument unless it is a layout that is understood here."""
        file = self.directory / "oci-layout"
        if not file.exists():
            raise InvalidArgument(f"{str(self.directory)!r} is no OCI image layout")
        version = decode(_read(file), str(file)).get("imageLayoutVersion")
        if not isinstance(version, str) or version.split(".")[0] != "1":
            raise InvalidArgument(f"{str(file)!r} is of version {version!a}, not {_VERSION}")

    def path(self, blob: Blob) -> Path:
        """Give a blob's place; its digest is known to be one."""
        return self.directory / "blobs" / "sha256" / blob.digest.removeprefix("sha256:")

    def holds(self, blob: Blob, report: ProgressCallback | None) -> bool:
        """Tell whether a blob is there, every byte of it."""
        path = self.path(blob)
        return path.exists() and FileSource(path).blob(report) == blob

    def put(self, document: Document) -> Blob:
        """Store a document as a blob."""
        data = encode(document)
        blob = Blob(digest_of(data), len(data))
        _write(self.path(blob), data)
        return blob

    def get(self, blob: Blob) -> Document:
        """Read a document. Raises DataLoss and InvalidArgument."""
        path = self.path(blob)
        data = _read(path)
        if Blob(digest_of(data), len(data)) != blob:
            raise DataLoss(f"{str(path)!r} is damaged: its bytes are not those of {blob.digest}")
        return decode(data, str(path))

    def entries(self) -> list[Document]:
        """Give the entries of the index; none where there is no index yet."""
        file = self.directory / "index.json"
        if not file.exists():
            return []
        entries = decode(_read(file), str(file)).get("manifests")
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise InvalidArgument(f"{str(file)!r} has no list of manifests")
        return entries

    def name(self, manifest: Blob, names: Sequence[str]) -> None:
        """Let a manifest go by names, of which the first is its own, and by no others."""
        old = self.entries()
        earlier = {each.get("digest") for each in old if name_of(each) == names[0]}
        kept = [
            each
            for each in old
            if name_of(each) not in names and each.get("digest") not in {manifest.digest, *earlier}
        ]
        entries = [entry(manifest, name) for name in names]
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [*kept, *entries],
        }
        _write(self.directory / "index.json", encode(index))


def _read(path: Path) -> bytes:
    with reported("read", path), path.open("rb") as file:
        data = file.read(_DOCUMENT_LIMIT + 1)
    if len(data) > _DOCUMENT_LIMIT:
        raise InvalidArgument(f"{str(path)!r} has more than {_DOCUMENT_LIMIT} bytes")
    return data


def _write(path: Path, data: bytes) -> None:
    part = PartFile(Blob(digest_of(data), len(data)), path, None)
    try:
        part.restart()
        for begin in range(0, len(data), CHUNK_BYTES):
            part.write(data[begin : begin + CHUNK_BYTES])
        part.finish()
    finally:
        part.close()
