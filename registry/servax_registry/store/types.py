"""Column types: instants in UTC, and the domain's values as JSON documents."""

from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from sqlalchemy import JSON, DateTime, Dialect
from sqlalchemy.types import TypeDecorator


class UTCDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC; SQLite itself would forget the time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Restore the time zone where the database did not keep it."""
        return None if value is None else value.replace(tzinfo=value.tzinfo or UTC)


class Document(TypeDecorator[Any]):
    """A frozen dataclass, or a tuple of them, as JSON; None is null.

    The fields may be strings, numbers, booleans, dataclasses, and tuples of these. Fields can be
    added later if they have defaults; the stored documents are never rewritten.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Turn dataclasses into dictionaries."""
        if value is None:
            return None
        return asdict(value) if is_dataclass(value) else [asdict(item) for item in value]  # type: ignore[arg-type]

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Build the values again."""
        return None if value is None else _build(self.kind, value)


def _build(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        kinds = _field_types(cast(type, kind))
        return cast(type, kind)(**{name: _build(kinds[name], item) for name, item in value.items()})
    if get_origin(kind) is tuple:
        item_kind = get_args(kind)[0]
        return tuple(_build(item_kind, item) for item in value)
    return value


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
