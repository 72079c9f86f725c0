"""Tells a webhook of changes: one signed POST request."""

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx

from servax_registry.artifact import Change

# How many seconds a webhook has to answer, however slowly it sends what.
TIMEOUT = 20.0


class Deliverer:
    """Sends requests; one event loop's, until it is closed by the end of the block."""

    async def __aenter__(self) -> Self:
        # A redirection would send what is signed to an address that no operator chose.
        self._client = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def deliver(self, url: str, secret: str, changes: Sequence[Change]) -> str:
        """Tell of changes, in order; give "", or the problem where the answer is not 2xx."""
        body = json.dumps({"changes": [_document(change) for change in changes]}).encode()
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "servax-registry",
            "X-Servax-Delivery": str(uuid.uuid4()),
            "X-Servax-Revision": str(changes[-1].revision),
            "X-Servax-Timestamp": timestamp,
            "X-Servax-Signature": f"sha256={signature(secret, timestamp, body)}",
        }
        try:
            # The client's own limits are for single steps, of which a webhook may make many.
            async with (
                asyncio.timeout(TIMEOUT),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                answer = response.status_code
        except (TimeoutError, httpx.TimeoutException):
            return f"no answer within {TIMEOUT:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        if 200 <= answer < 300:
            return ""
        redirect = ", and redirects are not followed" if 300 <= answer < 400 else ""
        return f"the answer was {answer}{redirect}"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Give the HMAC-SHA256 of the timestamp, a full stop and the body, in hexadecimal digits."""
    signed = timestamp.encode() + b"." + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _document(change: Change) -> dict[str, object]:
    return {
        "revision": change.revision,
        "time": change.time.isoformat(),
        "actor": change.actor,
        "action": change.action.name,
        "model": change.model,
        "version": change.version,
        "alias": change.alias,
        "previous_version": change.previous_version,
        "detail": change.detail,
    }
