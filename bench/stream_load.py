"""Readers of many streams at once: how late each chunk is, and what the measured process needs meanwhile.

The upstream writes into each chunk when it was sent; monotonic time is the same in all processes.
"""

import asyncio
import time
from typing import NamedTuple

import uvloop
from http_load import percentiles_ms
from processes import processor_s, resident_bytes

STAMP = b'"@'
STAMP_CHARS = 17
END = b"data: [DONE]"
START_SHARE = 0.5
"""The streams start spread over so much of the whole; what is read meanwhile counts as well."""


class Delays(NamedTuple):
    """`per_s` is counted while all streams were open."""

    per_s: float
    p50_ms: float
    p99_ms: float
    whole: int
    """Streams that came to their end."""
    core_us: float
    """Processor time of the measured process for each chunk."""
    bytes_each: float
    """What it grew by for each stream."""


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes, delays_s: list[float]) -> None:
        self._request = request
        self._delays_s = delays_s
        self.whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        at = data.find(STAMP)
        while at >= 0:
            self._delays_s.append(now - float(data[at + 2 : at + 2 + STAMP_CHARS]))
            at = data.find(STAMP, at + STAMP_CHARS)
        if END in data:
            self.whole = True


def stream_load(port: int, pid: int, request: bytes, streams: int, lasts_s: float) -> Delays:
    """So many streams, each about `lasts_s` long."""
    return uvloop.run(_read(port, pid, request, streams, lasts_s))


async def _read(port: int, pid: int, request: bytes, streams: int, lasts_s: float) -> Delays:
    loop = asyncio.get_running_loop()
    delays_s: list[float] = []
    readers: list[_Reader] = []
    before_bytes = resident_bytes(pid)
    started = time.monotonic()
    for number in range(streams):
        await asyncio.sleep(started + lasts_s * START_SHARE * number / streams - time.monotonic())
        made = await loop.create_connection(lambda: _Reader(request, delays_s), "127.0.0.1", port)
        readers.append(made[1])
    counted, spent_s, all_open = len(delays_s), processor_s(pid), time.monotonic()
    # The first of them ends soon after this.
    await asyncio.sleep(started + lasts_s - all_open - 0.2)
    per_s = (len(delays_s) - counted) / (time.monotonic() - all_open)
    core_us = (processor_s(pid) - spent_s) / (len(delays_s) - counted) * 1e6
    grown_bytes = resident_bytes(pid) - before_bytes
    await asyncio.sleep(lasts_s * START_SHARE + 1.2)
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0)
    whole = sum(reader.whole for reader in readers)
    return Delays(per_s, *percentiles_ms(delays_s), whole, core_us, grown_bytes / streams)
