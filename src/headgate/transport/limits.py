"""How long and how much: the bounds of one call. A record only; `connection` and `connecting` keep them."""

from typing import Final

import msgspec

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 200
MAX_BARREN_BYTES: Final = 2 * MAX_HEAD_BYTES
"""Bytes in a row that complete no header and bring no body: a header, trailer or chunk extension without end."""
MAX_INTERIM: Final = 16
"""Answers of the 1xx kind before the real one."""
HIGH_WATER_BYTES: Final = 64 * 1024
"""A reader that lags this far behind stops the sender."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `None` means no bound of this kind; `total_s` counts from `send` and covers everything."""

    connect_s: float = 5.0
    """Name, TCP, proxy and TLS together, and waiting for a free connection where their number is bounded."""
    first_byte_s: float | None = None
    """From the request to the first byte of the body: servers that stream send their headers long before."""
    idle_s: float | None = 30.0
    """Between two pieces of a body that has begun. Time the reader itself takes does not count."""
    total_s: float | None = None
