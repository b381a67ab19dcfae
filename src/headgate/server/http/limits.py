"""How long and how much a client may take. A record only; the others keep it."""

from collections.abc import Mapping
from typing import Final

import msgspec

HIGH_WATER_BYTES: Final = 256 * 1024
"""A body the application has not read yet may grow to this, then the client is made to wait."""
DISCARD_BYTES: Final = 1024 * 1024
"""The rest of a body nobody wants is read and dropped up to this, to keep the connection; a longer one closes it."""
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled application may still speak, to end its streams honestly."""
STRANGER_IDLE_S: Final = 5.0
"""Where keys exist: between two requests of a client that has shown none, and before its first."""
STRANGER_HEAD_BYTES: Final = 16 * 1024
"""Where keys exist: of a request's headers, on a connection on which no key was shown."""
MAX_CHUNKS: Final = 100_000
"""Chunks of one request: each costs time, however small it is."""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, bytes and counts of one server."""

    head_bytes: int = 64 * 1024
    headers: int = 100
    body_bytes: int = 20 * 1024 * 1024
    larger_bodies: Mapping[str, int] = {}
    """By path, where more bytes are allowed; the time for them grows alike."""
    header_timeout_s: float = 10.0
    """From the first byte of a request to the end of its headers; also for a connection that never says anything."""
    body_timeout_s: float = 60.0
    """For the whole body. Time in which the application does not read does not count."""
    idle_s: float = 75.0
    """Between two requests."""
    write_timeout_s: float = 60.0
    """A client that takes next to nothing of its answer for so long is cut off."""
    linger_s: float = 2.0
    """How long a refused client may go on sending, so that it gets to read why."""
    connections: int = 10_000
    """Where keys exist, the last tenth is for clients that have shown one, of tenants with less than half of them."""

    def most_bytes(self, path: str) -> int:
        return self.larger_bodies.get(path, self.body_bytes)

    def body_within_s(self, path: str) -> float:
        return self.body_timeout_s * max(1.0, self.most_bytes(path) / self.body_bytes)
