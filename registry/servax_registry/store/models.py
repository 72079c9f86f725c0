"""The tables. Invariants are constraints, so that no bug of ours can store what breaks them."""

from datetime import datetime
from typing import Annotated

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, foreign, mapped_column, relationship, remote

from servax_registry.artifact import Batching, Program, StoredTensor, TensorSpec, Trial
from servax_registry.store.types import Document, UTCDateTime

# SQLite numbers rows by itself only where the type is exactly INTEGER.
_BigInt = BigInteger().with_variant(Integer, "sqlite")

Key = Annotated[int, mapped_column(_BigInt, primary_key=True)]
BlobKey = Annotated[int, mapped_column(ForeignKey("blobs.id"), index=True)]
VersionKey = Annotated[int, mapped_column(ForeignKey("versions.id", ondelete="CASCADE"))]
# Names are listed in the order of their characters, whatever the language of the database.
_NameString = String(128).with_variant(String(128, collation="C"), "postgresql")
Name = Annotated[str, mapped_column(_NameString)]


class Base(DeclarativeBase):
    """The declarative base; every constraint has a name, so that migrations can refer to it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {int: _BigInt, float: Double, datetime: UTCDateTime}  # noqa: RUF012


class BlobRow(Base):
    """A blob, from the first byte of its upload on.

    While `complete_time` is null it is an upload that `committed_size` bytes of are kept. A null
    `digest` marks what was discarded and waits for being swept. Keys are never given again, so
    that a stream can tell the upload it began from one that replaced it. The bytes are chunks, or
    segments where there is a `folder`, which is the blob's own.
    """

    __tablename__ = "blobs"
    __table_args__ = (
        CheckConstraint("digest LIKE 'sha256:%' AND length(digest) = 71", "digest_form"),
        CheckConstraint("committed_size >= 0 AND committed_size <= size", "committed_size"),
        CheckConstraint("complete_time IS NULL OR committed_size = size", "complete"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Key]
    digest: Mapped[str | None] = mapped_column(String(71), unique=True)
    size: Mapped[int]
    committed_size: Mapped[int]
    update_time: Mapped[datetime]
    complete_time: Mapped[datetime | None]
    folder: Mapped[str | None] = mapped_column(String(128))


class ChunkRow(Base):
    """A run of a blob's bytes, beginning at byte `position`."""

    __tablename__ = "chunks"
    __table_args__ = (UniqueConstraint("blob_id", "position"),)

    id: Mapped[Key]
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"))
    position: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)


class SegmentRow(Base):
    """A run of a blob's bytes, `size` of them from byte `position` on, kept as an object `name`."""

    __tablename__ = "segments"
    __table_args__ = (UniqueConstraint("blob_id", "position"),)

    id: Mapped[Key]
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"))
    position: Mapped[int]
    size: Mapped[int]
    name: Mapped[str] = mapped_column(String(256))


class InspectionRow(Base):
    """What one version of our reader found in a program. Never changed: versions refer to it.

    `written_in` is what decides which releases of JAX load the program: its versions of StableHLO,
    serialization and calling convention, and JAX, with a slash between them. `platforms` has a
    comma before and after each of the program's.
    """

    __tablename__ = "inspections"
    __table_args__ = (UniqueConstraint("blob_id", "reader_version"),)

    id: Mapped[Key]
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    reader_version: Mapped[int]
    program: Mapped[Program] = mapped_column(Document(Program))
    written_in: Mapped[str] = mapped_column(Text, index=True, server_default="")
    platforms: Mapped[str] = mapped_column(Text, server_default="")

    blob: Mapped[BlobRow] = relationship(lazy="raise")
    trial: Mapped["TrialRow | None"] = relationship(
        primaryjoin=lambda: foreign(InspectionRow.blob_id) == remote(TrialRow.blob_id),
        lazy="raise",
        viewonly=True,
    )


class TrialRow(Base):
    """What came of trying a program on the registry's machine."""

    __tablename__ = "trials"

    id: Mapped[Key]
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), unique=True)
    trial: Mapped[Trial] = mapped_column(Document(Trial))


class ModelRow(Base):
    """A model; `last_number` is the highest version number that was ever given."""

    __tablename__ = "models"
    __table_args__ = (CheckConstraint("last_number >= 0", "last_number"),)

    id: Mapped[Key]
    name: Mapped[Name] = mapped_column(unique=True)
    last_number: Mapped[int]
    create_time: Mapped[datetime]


class VersionRow(Base):
    """A version of a model; one with a `delete_time` can be undeleted until it is collected.

    `copied_model` and `copied_number` name the version that it is a copy of, if it is one.
    """

    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        CheckConstraint("number >= 1", "number"),
        # Of what was deleted alone: SQLite would find all the others with it, and sort them.
        Index(
            "ix_versions_delete_time",
            "delete_time",
            sqlite_where=text("delete_time IS NOT NULL"),
            postgresql_where=text("delete_time IS NOT NULL"),
        ),
    )

    id: Mapped[Key]
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    number: Mapped[int]
    description: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(128), unique=True)
    create_time: Mapped[datetime]
    creator: Mapped[str] = mapped_column(String(256), server_default="")
    source_revision: Mapped[str] = mapped_column(String(1024), server_default="")
    copied_model: Mapped[str | None] = mapped_column(String(128))
    copied_number: Mapped[int | None]
    delete_time: Mapped[datetime | None]

    model: Mapped[ModelRow] = relationship(lazy="raise")
    signatures: Mapped[list["SignatureRow"]] = relationship(
        lazy="raise", order_by="SignatureRow.position"
    )
    shards: Mapped[list["ShardRow"]] = relationship(lazy="raise", order_by="ShardRow.position")
    labels: Mapped[list["LabelRow"]] = relationship(lazy="raise", order_by="LabelRow.key")


class SignatureRow(Base):
    """A callable program of a version; `position` is its place among the version's signatures."""

    __tablename__ = "signatures"
    __table_args__ = (
        UniqueConstraint("version_id", "position"),
        UniqueConstraint("version_id", "name"),
    )

    id: Mapped[Key]
    version_id: Mapped[VersionKey]
    position: Mapped[int]
    name: Mapped[Name]
    inspection_id: Mapped[int] = mapped_column(ForeignKey("inspections.id"), index=True)
    inputs: Mapped[tuple[TensorSpec, ...]] = mapped_column(Document(tuple[TensorSpec, ...]))
    weights: Mapped[tuple[TensorSpec, ...]] = mapped_column(Document(tuple[TensorSpec, ...]))
    outputs: Mapped[tuple[TensorSpec, ...]] = mapped_column(Document(tuple[TensorSpec, ...]))
    batching: Mapped[Batching | None] = mapped_column(Document(Batching))

    inspection: Mapped[InspectionRow] = relationship(lazy="raise")
    golden: Mapped["GoldenRow | None"] = relationship(lazy="raise")
    encodings: Mapped[list["EncodingRow"]] = relationship(lazy="raise", order_by="EncodingRow.id")


class GoldenRow(Base):
    """The golden example of a signature."""

    __tablename__ = "golden_examples"

    id: Mapped[Key]
    signature_id: Mapped[int] = mapped_column(
        ForeignKey("signatures.id", ondelete="CASCADE"), unique=True
    )
    blob_id: Mapped[BlobKey]
    rtol: Mapped[float]
    atol: Mapped[float]
    tensors: Mapped[tuple[StoredTensor, ...]] = mapped_column(Document(tuple[StoredTensor, ...]))

    blob: Mapped[BlobRow] = relationship(lazy="raise")


class EncodingRow(Base):
    """Another encoding of a signature's program."""

    __tablename__ = "encodings"
    __table_args__ = (UniqueConstraint("signature_id", "inspection_id"),)

    id: Mapped[Key]
    signature_id: Mapped[int] = mapped_column(ForeignKey("signatures.id", ondelete="CASCADE"))
    inspection_id: Mapped[int] = mapped_column(ForeignKey("inspections.id"), index=True)
    create_time: Mapped[datetime]

    inspection: Mapped[InspectionRow] = relationship(lazy="raise")


class ShardRow(Base):
    """One safetensors blob of a version's weights; `position` is its place among them."""

    __tablename__ = "shards"
    __table_args__ = (UniqueConstraint("version_id", "position"),)

    id: Mapped[Key]
    version_id: Mapped[VersionKey]
    position: Mapped[int]
    blob_id: Mapped[BlobKey]
    tensors: Mapped[tuple[StoredTensor, ...]] = mapped_column(Document(tuple[StoredTensor, ...]))

    blob: Mapped[BlobRow] = relationship(lazy="raise")


class LabelRow(Base):
    """A free key-value pair of a version."""

    __tablename__ = "labels"
    __table_args__ = (
        UniqueConstraint("version_id", "key"),
        Index("ix_labels_key_value", "key", "value"),
    )

    id: Mapped[Key]
    version_id: Mapped[VersionKey]
    key: Mapped[Name]
    value: Mapped[str] = mapped_column(String(1024))


class AliasRow(Base):
    """A name that points to a version of its model, which cannot be deleted meanwhile."""

    __tablename__ = "aliases"
    __table_args__ = (
        UniqueConstraint("model_id", "name"),
        ForeignKeyConstraint(["model_id", "number"], ["versions.model_id", "versions.number"]),
    )

    id: Mapped[Key]
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    name: Mapped[Name]
    number: Mapped[int]


class ChangeRow(Base):
    """One thing that changed; the key is the revision.

    Names rather than references: it outlives what it tells of.
    """

    __tablename__ = "changes"
    __table_args__ = (
        Index("ix_changes_model_id", "model", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Key]
    time: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(256))
    action: Mapped[str] = mapped_column(String(32))
    model: Mapped[Name]
    version: Mapped[int]
    alias: Mapped[Name]
    previous_version: Mapped[int]
    detail: Mapped[str] = mapped_column(String(1024))


class WebhookRow(Base):
    """An address that is told of changes, signed with `secret`.

    `revision` is the last change that it was told of. After `failures` in a row it is not asked
    before `next_time`, which also keeps other processes away while one is asking.
    """

    __tablename__ = "webhooks"

    id: Mapped[Key]
    url: Mapped[str] = mapped_column(String(2048), unique=True)
    secret: Mapped[str] = mapped_column(String(256))
    revision: Mapped[int]
    failures: Mapped[int]
    next_time: Mapped[datetime]
    problem: Mapped[str] = mapped_column(String(1024))
