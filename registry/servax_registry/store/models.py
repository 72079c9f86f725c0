"""The tables. Invariants are constraints, so that no bug of ours can store what breaks them."""

from datetime import datetime
from typing import Annotated

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from servax_registry.artifact import Program, StoredTensor, TensorSpec
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
    type_annotation_map = {int: _BigInt, datetime: UTCDateTime}  # noqa: RUF012


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
    """What one version of our reader found in a program. Never changed: versions refer to it."""

    __tablename__ = "inspections"
    __table_args__ = (UniqueConstraint("blob_id", "reader_version"),)

    id: Mapped[Key]
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    reader_version: Mapped[int]
    program: Mapped[Program] = mapped_column(Document(Program))

    blob: Mapped[BlobRow] = relationship(lazy="raise")


class ModelRow(Base):
    """A model; `last_number` is the highest version number that was ever given."""

    __tablename__ = "models"
    __table_args__ = (CheckConstraint("last_number >= 0", "last_number"),)

    id: Mapped[Key]
    name: Mapped[Name] = mapped_column(unique=True)
    last_number: Mapped[int]
    create_time: Mapped[datetime]


class VersionRow(Base):
    """A version of a model."""

    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        CheckConstraint("number >= 1", "number"),
    )

    id: Mapped[Key]
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    number: Mapped[int]
    description: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(128), unique=True)
    create_time: Mapped[datetime]

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
    __table_args__ = (UniqueConstraint("version_id", "key"),)

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
