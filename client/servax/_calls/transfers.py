"""Blobs to and from the registry, over broken connections and restarts of the registry.

What arrived is never sent again: every attempt goes on where the one before got to. A stream's
deadline is the call's timeout and a second for every MiB that is left.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from servax import convert
from servax._calls.methods import FIND_MISSING_BLOBS, READ_BLOB, WRITE_BLOB
from servax._calls.steps import Steps, call, receive, sleep, work
from servax._files import PartFile, Source, digest_of
from servax.errors import (
    Conflict,
    DataLoss,
    DeadlineExceeded,
    OutOfRange,
    Unavailable,
)
from servax.types import Blob, FilePath, Progress, ProgressCallback
from servax_proto.v1 import registry_pb2

MAX_FAILURES = 8
"""Attempts without any progress before a transfer is given up: with the pauses, about 20 s."""

_SLOWEST = 1 << 20  # bytes/s that a transfer must reach


def _deadline(timeout: float | None, size: int) -> float | None:
    return None if timeout is None else timeout + size / _SLOWEST


def _pause(failures: int) -> float:
    """Give the seconds before the next attempt: doubling, spread, so that clients do not march."""
    return float(min(0.1 * 2**failures, 5) * random.uniform(0.5, 1))


def upload(
    source: Source,
    timeout: float | None,
    report: ProgressCallback | None,
    expected: Blob | None = None,
) -> Steps[Blob]:
    """Hash a source and store it, sending only what the registry lacks.

    Raises DataLoss, before anything is sent, where it is not the expected blob.
    """
    blob = yield from work(partial(source.blob, report))
    if expected is not None and blob != expected:
        raise DataLoss(
            f"{source.name} is damaged: it has {blob.size} bytes of the digest {blob.digest}, not "
            f"{expected.size} of {expected.digest}"
        )
    begun = False
    furthest = offset = failures = 0
    while True:
        try:
            committed = yield from _committed_size(blob, timeout)
            if committed is None:
                return blob
            if committed > furthest:
                furthest, failures = committed, 0
            begun, offset = True, committed
            requests = _write_requests(source, blob, offset, report)
            yield from call(WRITE_BLOB, requests, _deadline(timeout, blob.size - offset))
            return blob
        except (Unavailable, DeadlineExceeded, Conflict, OutOfRange, DataLoss) as error:
            yield from work(source.check)
            # What an earlier upload left may be the reason of a mismatch; from 0 on, it is not.
            hopeless = isinstance(error, DataLoss) and offset == 0
            failures += 1
            if hopeless or not begun or failures > MAX_FAILURES:
                raise
        yield from sleep(_pause(failures))


def _committed_size(blob: Blob, timeout: float | None) -> Steps[int | None]:
    """Ask from where to send; None when the blob is stored."""
    request = registry_pb2.FindMissingBlobsRequest(digests=[blob.digest])
    response = yield from call(FIND_MISSING_BLOBS, request, timeout)
    if not response.missing:
        return None
    committed = response.missing[0].committed_size
    # A registry that kept more than there is would be asked to begin beyond the end.
    return committed if committed <= blob.size else 0


def _write_requests(
    source: Source, blob: Blob, offset: int, report: ProgressCallback | None
) -> Iterator[registry_pb2.WriteBlobRequest]:
    # The first one has no data, so that nothing is special about an empty rest.
    yield registry_pb2.WriteBlobRequest(blob=convert.blob_to_proto(blob), offset=offset)
    for chunk in source.read(offset):
        yield registry_pb2.WriteBlobRequest(offset=offset, data=chunk)
        offset += len(chunk)
        if report is not None:
            report(Progress("upload", source.name, offset, blob.size))


def download(
    blob: Blob, destination: FilePath, timeout: float | None, report: ProgressCallback | None
) -> Steps[Path]:
    """Fetch a blob into a file that appears only when it is whole and verified."""
    part = yield from work(partial(PartFile, blob, destination, report))
    try:
        yield from _fill(part, blob, timeout)
        if part.resumed and not part.intact:
            # The part was of something else, or damaged; now all of it comes from the registry.
            yield from work(part.restart)
            yield from _fill(part, blob, timeout)
        return (yield from work(part.finish))
    finally:
        part.close()


def _fill(part: PartFile, blob: Blob, timeout: float | None) -> Steps[None]:
    begin, failures = part.offset, 0
    while part.offset < blob.size:
        before = part.offset
        try:
            request = registry_pb2.ReadBlobRequest(digest=blob.digest, offset=before)
            deadline = _deadline(timeout, blob.size - before)
            yield from receive(READ_BLOB, request, lambda r: part.write(r.data), deadline)
        except (Unavailable, DeadlineExceeded):
            failures = 1 if part.offset > before else failures + 1
            if part.offset == begin or failures > MAX_FAILURES:
                raise
            yield from sleep(_pause(failures))
        else:
            if part.offset < blob.size:
                raise DataLoss(f"{blob.digest} ended after {part.offset} of its {blob.size} bytes")


def read_blob(blob: Blob, timeout: float | None) -> Steps[bytes]:
    """Fetch a blob into memory."""
    data = bytearray()

    def keep(response: registry_pb2.ReadBlobResponse) -> None:
        if len(data) + len(response.data) > blob.size:
            raise DataLoss(f"{blob.digest}: more than its {blob.size} bytes arrived")
        data.extend(response.data)

    request = registry_pb2.ReadBlobRequest(digest=blob.digest)
    yield from receive(READ_BLOB, request, keep, _deadline(timeout, blob.size))
    if len(data) != blob.size or digest_of(data) != blob.digest:
        raise DataLoss(f"the bytes that arrived are not those of {blob.digest}")
    return bytes(data)
