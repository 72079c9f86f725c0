"""Models, their versions and aliases: every query on them, within the caller's unit of work."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload, selectinload

from servax_registry.artifact import (
    Blob,
    Encoding,
    GoldenExample,
    Model,
    Program,
    Selection,
    Signature,
    Trial,
    Version,
    VersionName,
    WeightsShard,
)
from servax_registry.errors import BlobsNotStored
from servax_registry.store.models import (
    AliasRow,
    BlobRow,
    EncodingRow,
    GoldenRow,
    InspectionRow,
    LabelRow,
    ModelRow,
    ShardRow,
    SignatureRow,
    VersionRow,
)
from servax_registry.store.search import conditions

# How many rows a listing reads at once. Some versions take megabytes each, so that they are
# searched for by key, and read a few at a time.
_MODEL_BATCH = 25
_KEY_BATCH = 128
_VERSION_BATCH = 4

_WHOLE_INSPECTION = (joinedload(InspectionRow.blob), joinedload(InspectionRow.trial))
_WHOLE_VERSION = (
    joinedload(VersionRow.model),
    selectinload(VersionRow.labels),
    selectinload(VersionRow.signatures).options(
        joinedload(SignatureRow.inspection).options(*_WHOLE_INSPECTION),
        joinedload(SignatureRow.golden).joinedload(GoldenRow.blob),
        selectinload(SignatureRow.encodings)
        .joinedload(EncodingRow.inspection)
        .options(*_WHOLE_INSPECTION),
    ),
    selectinload(VersionRow.shards).joinedload(ShardRow.blob),
)


class Versions:
    """A repository over one session. Lookups give None for what does not exist."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def model(self, name: str) -> Model | None:
        """Get one model."""
        row = self._session.scalar(select(ModelRow).where(ModelRow.name == name))
        return self._models([row])[0] if row else None

    def models(self, after: str | None) -> Iterator[Model]:
        """Yield models by name, those behind `after`."""
        while True:
            query = select(ModelRow).order_by(ModelRow.name).limit(_MODEL_BATCH)
            if after is not None:
                query = query.where(ModelRow.name > after)
            rows = self._session.scalars(query).all()
            yield from self._models(rows)
            if len(rows) < _MODEL_BATCH:
                return
            after = rows[-1].name

    def model_names(self, limit: int) -> Sequence[str]:
        """Give names of models, by age."""
        return self._session.scalars(select(ModelRow.name).order_by(ModelRow.id).limit(limit)).all()

    def version(self, model: str, number: int) -> Version | None:
        """Get one version by number, deleted or not."""
        query = (
            select(VersionRow)
            .join(VersionRow.model)
            .where(ModelRow.name == model, VersionRow.number == number)
        )
        rows = self._session.scalars(query.options(*_WHOLE_VERSION)).all()
        return next(iter(self._versions(rows)), None)

    def versions(
        self,
        selection: Selection,
        expiring: Collection[str] = (),
        after: VersionName | None = None,
    ) -> Iterator[Version]:
        """Yield versions by model, newest first, those behind `after`; see search.conditions."""
        order = (ModelRow.name, VersionRow.number.desc())
        query = (
            select(VersionRow.id, ModelRow.name, VersionRow.number)
            .join(VersionRow.model)
            .where(*conditions(selection, expiring))
            .order_by(*order)
            .limit(_KEY_BATCH)
        )
        while True:
            some = query if after is None else query.where(*_behind(after))
            rows = self._session.execute(some).all()
            keys = [row.id for row in rows]
            for begin in range(0, len(keys), _VERSION_BATCH):
                few = VersionRow.id.in_(keys[begin : begin + _VERSION_BATCH])
                whole = select(VersionRow).join(VersionRow.model).where(few).order_by(*order)
                yield from self._versions(
                    self._session.scalars(whole.options(*_WHOLE_VERSION)).all()
                )
                self._session.expunge_all()
            if len(rows) < _KEY_BATCH:
                return
            after = VersionName(rows[-1].name, rows[-1].number)

    def numbers(self, model: str, limit: int) -> Sequence[int]:
        """Give numbers of versions that are not deleted, newest first."""
        query = (
            select(VersionRow.number)
            .join(VersionRow.model)
            .where(ModelRow.name == model, VersionRow.delete_time.is_(None))
        )
        return self._session.scalars(query.order_by(VersionRow.number.desc()).limit(limit)).all()

    def requested(self, request_id: str) -> Version | None:
        """Get the version that was published with this request id."""
        query = select(VersionRow).where(VersionRow.request_id == request_id)
        rows = self._session.scalars(query.options(*_WHOLE_VERSION)).all()
        return next(iter(self._versions(rows)), None)

    def next_number(self, model: str, now: datetime) -> int:
        """Take the next version number, which nobody gets again; creates the model."""
        if self._session.scalar(select(ModelRow.id).where(ModelRow.name == model)) is None:
            try:
                with self._session.begin_nested():
                    self._session.add(ModelRow(name=model, last_number=0, create_time=now))
            except IntegrityError:
                pass  # Another transaction created it meanwhile.
        number: int | None = self._session.scalar(
            update(ModelRow)
            .where(ModelRow.name == model)
            .values(last_number=ModelRow.last_number + 1)
            .returning(ModelRow.last_number)
        )
        assert number is not None
        return number

    def add(self, version: Version, request_id: str | None) -> None:
        """Insert a version of an existing model, and point its aliases to it.

        Raises BlobsNotStored where a blob was collected meanwhile.
        """
        source = version.copied_from
        row = VersionRow(
            model_id=self._model_id(version.model),
            number=version.number,
            description=version.description,
            request_id=request_id,
            create_time=version.create_time,
            creator=version.creator,
            source_revision=version.source_revision,
            copied_model=source.model if source else None,
            copied_number=source.number if source else None,
            labels=[LabelRow(key=key, value=value) for key, value in version.labels.items()],
            signatures=[
                self._signature_row(position, signature)
                for position, signature in enumerate(version.signatures)
            ],
            shards=[
                ShardRow(
                    position=position,
                    blob_id=self._blob_id(shard.blob.digest),
                    tensors=shard.tensors,
                )
                for position, shard in enumerate(version.weights)
            ],
        )
        self._session.add(row)
        self._session.flush()
        for alias in version.aliases:
            self.point(version.model, alias, version.number)

    def add_encoding(self, version: Version, signature: str, encoding: Encoding) -> None:
        """Insert an encoding of the program of an existing version's signature.

        Raises BlobsNotStored where the blob was collected meanwhile.
        """
        key = self._session.scalars(
            select(SignatureRow.id)
            .join(VersionRow, SignatureRow.version_id == VersionRow.id)
            .where(
                VersionRow.model_id == self._model_id(version.model),
                VersionRow.number == version.number,
                SignatureRow.name == signature,
            )
        ).one()
        row = self._encoding_row(encoding)
        row.signature_id = key
        self._session.add(row)
        self._session.flush()
        # The version is read anew.
        self._session.expunge_all()

    def mark_deleted(self, model: str, number: int, time: datetime | None) -> None:
        """Delete a version that no alias points to, or undelete it where `time` is None."""
        self._session.execute(
            update(VersionRow)
            .where(VersionRow.model_id == self._model_id(model), VersionRow.number == number)
            .values(delete_time=time)
        )

    def aliases(self, model: str) -> Mapping[str, int]:
        """Give all aliases of a model and the numbers that they point to, by name."""
        rows = self._session.execute(
            select(AliasRow.name, AliasRow.number)
            .join(ModelRow, AliasRow.model_id == ModelRow.id)
            .where(ModelRow.name == model)
            .order_by(AliasRow.name)
        )
        return {name: number for name, number in rows}

    def point(self, model: str, alias: str, number: int) -> None:
        """Point an alias to an existing version."""
        model_id = self._model_id(model)
        moved = self._session.scalar(
            update(AliasRow)
            .where(AliasRow.model_id == model_id, AliasRow.name == alias)
            .values(number=number)
            .returning(AliasRow.id)
        )
        if moved is None:
            self._session.add(AliasRow(model_id=model_id, name=alias, number=number))
            self._session.flush()

    def delete_alias(self, model: str, alias: str) -> None:
        """Delete an alias."""
        model_id = select(ModelRow.id).where(ModelRow.name == model).scalar_subquery()
        self._session.execute(
            delete(AliasRow).where(AliasRow.model_id == model_id, AliasRow.name == alias)
        )

    def _signature_row(self, position: int, signature: Signature) -> SignatureRow:
        golden = signature.golden
        return SignatureRow(
            position=position,
            name=signature.name,
            inspection_id=self._inspection_id(signature.program.digest, signature.inspected),
            inputs=signature.inputs,
            weights=signature.weights,
            outputs=signature.outputs,
            batching=signature.batching,
            golden=golden
            and GoldenRow(
                blob_id=self._blob_id(golden.blob.digest),
                rtol=golden.rtol,
                atol=golden.atol,
                tensors=golden.tensors,
            ),
            encodings=[self._encoding_row(encoding) for encoding in signature.encodings],
        )

    def _encoding_row(self, encoding: Encoding) -> EncodingRow:
        return EncodingRow(
            inspection_id=self._inspection_id(encoding.program.digest, encoding.inspected),
            create_time=encoding.create_time,
        )

    def _model_id(self, model: str) -> int:
        return self._session.scalars(select(ModelRow.id).where(ModelRow.name == model)).one()

    def _blob_id(self, digest: str) -> int:
        found = self._session.scalar(select(BlobRow.id).where(BlobRow.digest == digest))
        if found is None:
            raise _collected(digest)
        return found

    def _inspection_id(self, digest: str, program: Program) -> int:
        rows = self._session.scalars(
            select(InspectionRow).join(InspectionRow.blob).where(BlobRow.digest == digest)
        )
        found = next((row.id for row in rows if row.program == program), None)
        if found is None:
            raise _collected(digest)
        return found

    def _models(self, rows: Sequence[ModelRow]) -> list[Model]:
        keys = [row.id for row in rows]
        counts = {
            key: (latest, count)
            for key, latest, count in self._session.execute(
                select(VersionRow.model_id, func.max(VersionRow.number), func.count())
                .where(VersionRow.model_id.in_(keys), VersionRow.delete_time.is_(None))
                .group_by(VersionRow.model_id)
            )
        }
        aliases: dict[int, dict[str, int]] = {key: {} for key in keys}
        for alias in self._session.scalars(
            select(AliasRow).where(AliasRow.model_id.in_(keys)).order_by(AliasRow.name)
        ):
            aliases[alias.model_id][alias.name] = alias.number
        return [
            Model(row.name, row.create_time, *counts.get(row.id, (0, 0)), aliases=aliases[row.id])
            for row in rows
        ]

    def _versions(self, rows: Sequence[VersionRow]) -> list[Version]:
        aliases: dict[tuple[int, int], list[str]] = {}
        for alias in self._session.scalars(
            select(AliasRow)
            .where(AliasRow.model_id.in_({row.model_id for row in rows}))
            .order_by(AliasRow.name)
        ):
            aliases.setdefault((alias.model_id, alias.number), []).append(alias.name)
        return [_version(row, aliases.get((row.model_id, row.number), [])) for row in rows]


def _behind(version: VersionName) -> tuple[ColumnElement[bool], ...]:
    """Give what holds of the versions that a listing has behind this one."""
    # The first alone would do for the database to find where they begin, the second is exact.
    return (
        ModelRow.name >= version.model,
        (ModelRow.name > version.model) | (VersionRow.number < version.number),
    )


def _collected(digest: str) -> BlobsNotStored:
    return BlobsNotStored(
        f"blob {digest} was collected while the version was published; upload it once more"
    )


def _version(row: VersionRow, aliases: Sequence[str]) -> Version:
    return Version(
        model=row.model.name,
        number=row.number,
        signatures=tuple(map(_signature, row.signatures)),
        weights=tuple(WeightsShard(_blob(shard.blob), shard.tensors) for shard in row.shards),
        description=row.description,
        labels={label.key: label.value for label in row.labels},
        create_time=row.create_time,
        aliases=tuple(aliases),
        creator=row.creator,
        source_revision=row.source_revision,
        copied_from=(
            VersionName(row.copied_model, row.copied_number)
            if row.copied_model and row.copied_number
            else None
        ),
        delete_time=row.delete_time,
    )


def _signature(row: SignatureRow) -> Signature:
    golden = row.golden
    return Signature(
        name=row.name,
        program=_blob(row.inspection.blob),
        inspected=row.inspection.program,
        inputs=row.inputs,
        weights=row.weights,
        outputs=row.outputs,
        batching=row.batching,
        golden=_golden(golden) if golden else None,
        encodings=tuple(
            Encoding(
                _blob(encoding.inspection.blob),
                encoding.inspection.program,
                encoding.create_time,
                _trial(encoding.inspection),
            )
            for encoding in row.encodings
        ),
        trial=_trial(row.inspection),
    )


def _golden(row: GoldenRow) -> GoldenExample:
    return GoldenExample(_blob(row.blob), row.rtol, row.atol, row.tensors)


def _trial(row: InspectionRow) -> Trial | None:
    return row.trial.trial if row.trial else None


def _blob(row: BlobRow) -> Blob:
    assert row.digest is not None, "a blob that a version names is never discarded"
    return Blob(row.digest, row.size)
