"""Models, their versions and aliases: every query on them, within the caller's unit of work."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload, selectinload

from servax_registry.artifact import (
    Blob,
    Encoding,
    GoldenExample,
    Model,
    Program,
    Signature,
    Version,
    VersionName,
    WeightsShard,
)
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

# How many rows a listing reads at once. Some versions take megabytes each.
_MODEL_BATCH = 100
_VERSION_BATCH = 4

_WHOLE_VERSION = (
    joinedload(VersionRow.model),
    selectinload(VersionRow.labels),
    selectinload(VersionRow.signatures).options(
        joinedload(SignatureRow.inspection).joinedload(InspectionRow.blob),
        joinedload(SignatureRow.golden).joinedload(GoldenRow.blob),
        selectinload(SignatureRow.encodings)
        .joinedload(EncodingRow.inspection)
        .joinedload(InspectionRow.blob),
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
        """Get one version by number."""
        query = self._of(model).where(VersionRow.number == number)
        return next(iter(self._versions(self._session.scalars(query).all())), None)

    def versions(self, model: str, before: int | None) -> Iterator[Version]:
        """Yield versions of one model, newest first, those below the number `before`."""
        while True:
            query = self._of(model).order_by(VersionRow.number.desc()).limit(_VERSION_BATCH)
            if before is not None:
                query = query.where(VersionRow.number < before)
            rows = self._session.scalars(query).all()
            yield from self._versions(rows)
            if len(rows) < _VERSION_BATCH:
                return
            before = rows[-1].number
            self._session.expunge_all()

    def numbers(self, model: str, limit: int) -> Sequence[int]:
        """Give numbers of existing versions, newest first."""
        query = select(VersionRow.number).join(VersionRow.model).where(ModelRow.name == model)
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

    def add(self, version: Version, request_id: str | None, reader_version: int) -> None:
        """Insert a version of an existing model, and point its aliases to it."""
        model_id = self._session.scalars(
            select(ModelRow.id).where(ModelRow.name == version.model)
        ).one()
        row = VersionRow(
            model_id=model_id,
            number=version.number,
            description=version.description,
            request_id=request_id,
            create_time=version.create_time,
            labels=[LabelRow(key=key, value=value) for key, value in version.labels.items()],
            signatures=[
                SignatureRow(
                    position=position,
                    name=signature.name,
                    inspection_id=self._inspection_id(signature.program.digest, reader_version),
                    inputs=signature.inputs,
                    weights=signature.weights,
                    outputs=signature.outputs,
                )
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

    def delete(self, model: str, number: int) -> None:
        """Delete a version that no alias points to."""
        model_id = select(ModelRow.id).where(ModelRow.name == model).scalar_subquery()
        self._session.execute(
            delete(VersionRow).where(VersionRow.model_id == model_id, VersionRow.number == number)
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
        model_id = self._session.scalars(select(ModelRow.id).where(ModelRow.name == model)).one()
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

    def inspection(self, digest: str, reader_version: int) -> Program | None:
        """Get what this version of the reader found in a program."""
        return self._session.scalar(
            select(InspectionRow.program)
            .join(InspectionRow.blob)
            .where(BlobRow.digest == digest, InspectionRow.reader_version == reader_version)
        )

    def add_inspection(self, digest: str, reader_version: int, program: Program) -> None:
        """Keep what this version of the reader found in a program, unless it is kept already."""
        if self.inspection(digest, reader_version) is None:
            self._session.execute(
                insert(InspectionRow).values(
                    blob_id=self._blob_id(digest),
                    reader_version=reader_version,
                    program=program,
                    written_in=str(program.written_in),
                )
            )

    def _of(self, model: str) -> Select[VersionRow]:
        query = select(VersionRow).join(VersionRow.model).where(ModelRow.name == model)
        return query.options(*_WHOLE_VERSION)

    def _blob_id(self, digest: str) -> int:
        return self._session.scalars(select(BlobRow.id).where(BlobRow.digest == digest)).one()

    def _inspection_id(self, digest: str, reader_version: int) -> int:
        return self._session.scalars(
            select(InspectionRow.id)
            .join(InspectionRow.blob)
            .where(BlobRow.digest == digest, InspectionRow.reader_version == reader_version)
        ).one()

    def _models(self, rows: Sequence[ModelRow]) -> list[Model]:
        keys = [row.id for row in rows]
        counts = {
            key: (latest, count)
            for key, latest, count in self._session.execute(
                select(VersionRow.model_id, func.max(VersionRow.number), func.count())
                .where(VersionRow.model_id.in_(keys))
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
        golden=GoldenExample(_blob(golden.blob), golden.rtol, golden.atol) if golden else None,
        encodings=tuple(
            Encoding(
                _blob(encoding.inspection.blob), encoding.inspection.program, encoding.create_time
            )
            for encoding in row.encodings
        ),
    )


def _blob(row: BlobRow) -> Blob:
    assert row.digest is not None, "a blob that a version names is never discarded"
    return Blob(row.digest, row.size)
