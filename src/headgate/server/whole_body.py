"""Bodies that are read as a whole: what is being read is counted per tenant, together with the calls that wait."""

import random
from typing import Final

from headgate.core.errors import QueueFull
from headgate.core.waiting import RequestBody
from headgate.server.http import Exchange
from headgate.server.http.head import CHUNKED

BODIES: Final = "headgate.bodies"
"""In the scope of a request: what its body is counted in."""


async def read_whole(exchange: Exchange, beginning: bytes, counted: RequestBody) -> bytes:
    """The body, of which the `beginning` has been read. Without room for it this raises QueueFull at once."""
    length = exchange.head.length
    _count(counted, len(beginning) if length == CHUNKED else length)
    parts = [beginning]
    while exchange.more:
        part = await exchange.piece()
        if length == CHUNKED:
            _count(counted, len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _count(counted: RequestBody, size_bytes: int) -> None:
    if not counted.grow(size_bytes):
        raise QueueFull(
            "the bodies of your unfinished and waiting requests take as much memory as limits.waiting_bytes"
            " leaves you: send this request again when others have ended",
            retry_after_s=random.uniform(1.0, 3.0),  # Soon, but not all at once.
        )
