"""Pages of a listing: opaque tokens, and as many items as fit one message."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from servax_registry.errors import InvalidRequest

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

# What the items of one page may take as protobuf, in bytes: gRPC's 4 MB less some slack.
MESSAGE_LIMIT = 7 << 19

Item = TypeVar("Item")
Key = TypeVar("Key", str, int)


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Some items, and the token of the next page; empty on the last one."""

    items: tuple[Item, ...]
    next_page_token: str


def page_limit(page_size: int) -> int:
    """Give how many items a page has at most. Raises InvalidRequest when that is negative."""
    if page_size < 0:
        raise InvalidRequest(f"page_size {page_size} is negative; give 0 for {DEFAULT_PAGE_SIZE}")
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def fill(
    items: Iterable[Item],
    page_size: int,
    size_of: Callable[[Item], int],
    token_after: Callable[[Item], str],
) -> Page[Item]:
    """Take from `items`, lazily, as many as are asked for and fit one message, but one at least.

    Raises InvalidRequest when `page_size` is negative.
    """
    count = page_limit(page_size)
    page: list[Item] = []
    room = MESSAGE_LIMIT
    for item in items:
        room -= size_of(item)
        if page and (len(page) == count or room < 0):
            return Page(tuple(page), token_after(page[-1]))
        page.append(item)
    return Page(tuple(page), "")


def encode_token(listing: str, last: str | int) -> str:
    """Make the token with which `listing` goes on after the item whose key is `last`."""
    return base64.urlsafe_b64encode(json.dumps([listing, last]).encode()).decode()


def decode_token(token: str, listing: str, kind: type[Key]) -> Key | None:
    """Read the key out of a token; None for the first page.

    Raises InvalidRequest when it is not one of this listing.
    """
    if not token:
        return None
    try:
        found, last = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        found, last = None, None
    if found != listing or type(last) is not kind or not _is_key(last):
        raise InvalidRequest(
            f"page_token {token[:40]!a} is not one of this listing; pass next_page_token "
            "unchanged, or nothing for the first page"
        )
    return last


def _is_key(value: str | int) -> bool:
    """Tell whether a listing can have such a key: a model's name, or a version's number."""
    return value.isascii() if isinstance(value, str) else 0 < value < 1 << 63
