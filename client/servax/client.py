"""`Client`: performs calls by blocking."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from numpy.typing import ArrayLike, NDArray

from servax._blocking import Channels
from servax._calls import layouts, transfers
from servax._calls import registry as registry_calls
from servax._calls import worker as worker_calls
from servax._calls.endpoints import DEFAULT_TIMEOUT, Endpoints
from servax._calls.steps import Call, Sleep, Step, Steps, Work
from servax.reference import ModelReference
from servax.types import (
    DEFAULT,
    DEFAULT_SIGNATURE,
    Batching,
    Blob,
    Change,
    Content,
    FilePath,
    Golden,
    Model,
    ProgressCallback,
    ServedVersion,
    Timeout,
    Version,
    VersionStatistics,
    WorkerStatus,
)

T = TypeVar("T")


class Client:
    """Speaks to a registry, to a worker, or to both; threads may share one.

        with Client(registry="127.0.0.1:8400", worker="127.0.0.1:8500") as client:
            version = client.push("mnist", "mnist.jaxexport", aliases=["production"])
            client.wait_until_ready("mnist@production", timeout=60)
            logits = client.predict("mnist@production", {"image": images})["logits"]

    A model's version is named as `name` (the newest), `name:3` or `name@production`. Connections
    are opened by the first call that needs them.

    `actor` is what the registry records as who made a change; without, it is the address.

    `timeout` is how many seconds a call may take, unless the call says otherwise; None means for
    ever. Where a blob is sent or fetched, a second is added for every MiB. Every method raises a
    `ServaxError` (see `servax.errors`): among others `Unreachable` when nothing answers and
    `DeadlineExceeded` when the timeout has passed.
    """

    def __init__(
        self,
        *,
        registry: str | None = None,
        worker: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        actor: str | None = None,
    ) -> None:
        self._endpoints = Endpoints(registry, worker, timeout, actor)
        self._channels = Channels(self._endpoints)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls in flight end with `Cancelled`."""
        self._channels.close()

    def push(
        self,
        model: str,
        program: Content | Mapping[str, Content],
        *,
        weights: Iterable[FilePath] = (),
        aliases: Iterable[str] = (),
        description: str = "",
        labels: Mapping[str, str] | None = None,
        source_revision: str = "",
        batching: Batching | Mapping[str, Batching] | None = None,
        golden: Golden | Mapping[str, Golden] | None = None,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """Publish a new version of a model, which is created if it does not exist.

        `program` is what `jax.export` serialized, as a file's path or as bytes; for several
        signatures, a mapping from their names. `weights` are safetensors files whose names of
        tensors are the key paths of the program's weights. `aliases` point to the new version from
        the moment it exists. `progress` is called with a `Progress` about every MiB, possibly from
        another thread.

            client.push("lm", "lm.jaxexport", weights=["lm.safetensors"])
            client.push("lm", {"prefill": prefill.serialize(), "decode": decode.serialize()})

        What the registry has already is not sent again, a broken upload goes on where it ended,
        and a restart of the registry meanwhile is waited for. Raises `FileError` for a file that
        cannot be read or changes meanwhile, and `InvalidArgument` where the registry rejects the
        contents; nothing is published then.

        `batching` declares that requests of different callers may be joined, `golden` an example
        that workers have to reproduce before they serve the version; where there are several
        signatures, each is a mapping from their names. `source_revision` says what the version was
        made from.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(
            registry_calls.push(
                model,
                program,
                weights,
                aliases,
                description,
                labels or {},
                source_revision,
                batching,
                golden,
                seconds,
                progress,
            )
        )

    def upload(
        self,
        path: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Blob:
        """Store a file as a blob, as `push` does, and publish nothing."""
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.upload_file(path, seconds, progress))

    def models(self, *, timeout: Timeout = DEFAULT) -> Iterator[Model]:
        """Iterate over all models by name; pages are fetched as they are needed."""
        seconds = self._endpoints.seconds(timeout)
        return self._pages(lambda token: registry_calls.list_models(token, seconds))

    def versions(
        self,
        model: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        platform: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        expiring_before: date | None = None,
        deleted: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> Iterator[Version]:
        """Iterate over versions, newest first: of a model, or of all of them by name.

        Only those that meet every condition: that have all `labels`; of which each signature was
        exported for `platform`; that were published at `created_from` or later and before
        `created_before`; of which a signature expires before the day `expiring_before`. Deleted
        versions come too where `deleted`. Raises `NotFound` at the first step.
        """
        seconds = self._endpoints.seconds(timeout)
        request = registry_calls.versions_request(
            model, labels, platform, created_from, created_before, expiring_before, deleted
        )
        return self._pages(lambda token: registry_calls.list_versions(request, token, seconds))

    def model(self, name: str, *, timeout: Timeout = DEFAULT) -> Model:
        """Get a model; raises `NotFound`."""
        return self._perform(registry_calls.get_model(name, self._endpoints.seconds(timeout)))

    def version(self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT) -> Version:
        """Get a version with its signatures and weights; raises `NotFound`."""
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.get_version(reference, seconds))

    def pull(
        self,
        reference: str | ModelReference,
        destination: FilePath,
        *,
        signature: str = DEFAULT_SIGNATURE,
        weights: FilePath | None = None,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """Fetch a version's program into the file `destination`, as `download` does.

        Where `weights` names a directory, the version's weights are fetched into it as
        `model.safetensors`, or as `model-00001-of-00002.safetensors` and so on. Raises `NotFound`
        where there is no such version or signature, or where it has no weights.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(
            registry_calls.pull(
                reference,
                destination,
                signature,
                weights,
                seconds,
                progress,
            )
        )

    def download(
        self,
        blob: Blob,
        destination: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Path:
        """Fetch a blob into a file, which appears, or is replaced, once it is whole and verified.

        Until then the bytes are in `<destination>.part`; a part that is there already is continued.
        Two downloads must not share a destination. Raises `DataLoss` where the bytes do not match
        the digest (the part is deleted), `NotFound`, and `FileError` where the file cannot be
        written.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(transfers.download(blob, destination, seconds, progress))

    def read_blob(self, blob: Blob, *, timeout: Timeout = DEFAULT) -> bytes:
        """Fetch a blob into memory; raises `DataLoss` where the bytes do not match the digest."""
        return self._perform(transfers.read_blob(blob, self._endpoints.seconds(timeout)))

    def set_alias(
        self,
        model: str,
        alias: str,
        version: int,
        *,
        expected_version: int | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Model:
        """Point an alias to a version.

        With `expected_version` only if the alias points there now, or with 0 only if it does not
        exist; raises `Conflict` otherwise.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(
            registry_calls.set_alias(model, alias, version, expected_version, seconds)
        )

    def delete_alias(self, model: str, alias: str, *, timeout: Timeout = DEFAULT) -> Model:
        """Remove an alias; raises `NotFound`."""
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.delete_alias(model, alias, seconds))

    def delete_version(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> Version:
        """Delete the version that `name:3` names; the number is never given again.

        Until it is collected, `undelete_version` brings it back. Raises `FailedPrecondition` while
        an alias points to it.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.delete_version(reference, seconds))

    def undelete_version(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> Version:
        """Bring the deleted version that `name:3` names back; raises `NotFound`."""
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.undelete_version(reference, seconds))

    def copy_version(
        self,
        reference: str | ModelReference,
        destination: str,
        *,
        aliases: Iterable[str] = (),
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """Make a new version of the model `destination` that has what `reference` has.

        No bytes are copied. Raises `NotFound`.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(registry_calls.copy_version(reference, destination, aliases, seconds))

    def add_encoding(
        self,
        reference: str | ModelReference,
        program: Content,
        *,
        signature: str = DEFAULT_SIGNATURE,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Version:
        """Add a program that other releases of JAX load to that of an existing signature.

        `program` is what another release of JAX made of the same function, or what
        `servax.hlo.retarget` made of the program. A worker takes the first that its JAX reads.
        Adding the same one again changes nothing. Raises `NotFound`, and `InvalidArgument` where it
        has other inputs, outputs, platforms or devices.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(
            registry_calls.add_encoding(reference, program, signature, seconds, progress)
        )

    def changes(
        self,
        model: str | None = None,
        alias: str | None = None,
        *,
        since: int = 0,
        timeout: Timeout = DEFAULT,
    ) -> Iterator[Change]:
        """Iterate over what changed, in order: of all models, or of one, or of one's alias.

        Only what has a higher revision than `since`. The iterator ends with the newest change; go
        on with the last one's revision.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._pages(
            lambda token: registry_calls.list_changes(model, alias, token or str(since), seconds)
        )

    def export_versions(
        self,
        references: Iterable[str | ModelReference],
        directory: FilePath,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> list[Version]:
        """Write versions into a directory, for `import_versions` of another registry.

        The directory is an OCI image layout, in which every version is an image manifest, so that
        tools for container images can carry it. What it holds already, of an export that was
        broken off or of earlier ones, is verified and stays. Raises `NotFound`, `FileError`, and
        `DataLoss` where bytes do not match their digest.

            client.export_versions(["mnist@production", "lm:3"], "models")
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(layouts.export_versions(references, directory, seconds, progress))

    def import_versions(
        self,
        directory: FilePath,
        *,
        aliases: bool = False,
        progress: ProgressCallback | None = None,
        timeout: Timeout = DEFAULT,
    ) -> dict[str, Version]:
        """Publish all versions of a directory, and give them by the names that they had: `lm:3`.

        Each gets the next number of its model here; with `aliases`, the aliases that it had point
        to it. What the registry has already is not sent, and a version that was imported before is
        found again instead of published twice. Raises `InvalidArgument` where the directory holds
        none, `FileError`, and `DataLoss`, before any of it is sent, for a file that is not what its
        digest says.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(layouts.import_versions(directory, aliases, seconds, progress))

    def predict(
        self,
        reference: str | ModelReference,
        inputs: Mapping[str, ArrayLike],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Iterable[str] = (),
        request_id: str = "",
        timeout: Timeout = DEFAULT,
    ) -> dict[str, NDArray[Any]]:
        """Call a model on a worker and give its results by name, as read-only arrays.

        `inputs` are arrays, or what numpy makes arrays of; their dtypes are never changed. With
        `outputs`, only those are returned. What does not fit one message travels in parts: answers
        may have any size, requests the one that the worker allows. `request_id` is what the
        worker's log is to call the request.

            client.predict("lm", {"tokens": np.zeros((1, 256), np.int32)})["logits"]

        Raises `NotFound` where the worker does not serve it, `InvalidArgument` where the inputs do
        not fit the signature, and `Unavailable` where the model is not ready.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(
            worker_calls.predict(reference, inputs, signature, outputs, seconds, request_id)
        )

    def status(self, model: str | None = None, *, timeout: Timeout = DEFAULT) -> WorkerStatus:
        """Ask what the worker serves and in which state it is: one model, or all."""
        return self._perform(worker_calls.status(model or "", self._endpoints.seconds(timeout)))

    def statistics(
        self, model: str | None = None, *, timeout: Timeout = DEFAULT
    ) -> tuple[VersionStatistics, ...]:
        """Ask how often the versions of one model, or of all, were called and how long that took.

        It counts from the start of the worker's process on.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(worker_calls.statistics(model or "", seconds))

    def wait_until_ready(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> ServedVersion:
        """Wait until the worker, which may still be starting, serves a version.

        Raises `DeadlineExceeded` with the state after `timeout` seconds in all,
        `FailedPrecondition` with the reason where loading failed, and `NotFound` where the worker
        was not told to serve the model.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(worker_calls.wait_until_ready(reference, seconds))

    def load(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> tuple[ServedVersion, ...]:
        """Have the worker serve a model from now on; gives what is there under this reference.

        An alias, or a name alone, is followed wherever it moves. Loading takes its time: see
        `wait_until_ready`. Repeating it does no harm; what has FAILED is tried once more. Raises
        `PermissionDenied` where the worker does not allow it.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(worker_calls.load(reference, seconds))

    def unload(
        self, reference: str | ModelReference, *, timeout: Timeout = DEFAULT
    ) -> tuple[ServedVersion, ...]:
        """Have the worker serve a model no more, and wait until its memory is given back.

        `reference` is the one that it was loaded by. Calls in flight are finished. Gives what was
        there: nothing where it was not served. Raises `PermissionDenied` where the worker does not
        allow it.
        """
        seconds = self._endpoints.seconds(timeout)
        return self._perform(worker_calls.unload(reference, seconds))

    def _pages(self, page: Callable[[str], Steps[tuple[list[T], str]]]) -> Iterator[T]:
        items, token = self._perform(page(""))
        yield from items
        while token:
            items, token = self._perform(page(token))
            yield from items

    def _perform(self, steps: Steps[T]) -> T:
        """Run a call: perform each of its steps and give it the result, or the error."""
        try:
            step = next(steps)
            while True:
                try:
                    result = self._step(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def _step(self, step: Step) -> Any:
        match step:
            case Sleep(seconds):
                time.sleep(seconds)
            case Work(function):
                return function()
            case Call():
                return self._channels.call(step)
