"""Streams on their way to a client: nothing before the slot is held, comments while it is slow, an honest end."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.calls.keyed_stream import KeyedStream
from headgate.calls.streams import CallStream
from headgate.core.errors import Draining
from headgate.server.errors import Header, log_error, read_error
from headgate.server.http import Exchange

HEARTBEAT_S: Final = 15.0
_CUT_OFF: Final = Draining("this process went away before the answer was whole; ask again", retry_after_s=1.0)
_HEARTBEAT: Final = b": still waiting\n\n"
_SSE: Final = (b"content-type", b"text/event-stream")
_FRESH: Final = (b"cache-control", b"no-cache")


class Delivery:
    """One stream to one client."""

    def __init__(self, exchange: Exchange, story: Callable[[], list[Header]]) -> None:
        self._exchange = exchange
        self._story = story
        self._started = False
        self._beating: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, stream: CallStream | KeyedStream) -> None:
        """Raises only while nothing has been sent; afterwards a failure is told inside the stream."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEARTBEAT_S, self._begin_beating, stream)
        try:
            async with stream:
                await self._stop_beating()
                await self._start()
                await stream.pump(self._exchange.push, self._exchange.caught_up)
        except asyncio.CancelledError:
            await self._stop_beating()
            if self._started:
                # The client is gone and hears nothing, or this process is going and the client should hear of it.
                await self._end_badly(_CUT_OFF)
                await self._exchange.write(b"", more=False)
            raise
        except Exception as error:
            await self._stop_beating()
            if not self._started:
                raise
            log_error(f"request {stream.request_id}", error)
            await self._end_badly(error)
        finally:
            await self._stop_beating()
        if self._started:
            await self._exchange.write(b"", more=False)

    async def _start(self) -> None:
        if not self._started:
            headers = [_SSE, _FRESH, *self._story()]
            await self._exchange.begin(200, headers)
            # Only now: a heartbeat may be stopped while it waits for a slow client.
            self._started = True

    async def _end_badly(self, error: Exception) -> None:
        """An event that every client takes for what it is, and no [DONE]."""
        body = msgspec.json.encode({"error": read_error(error).error})
        event = b"event: error\ndata: %b\n\n" % body
        await self._exchange.write(event)

    # ---- While it is slow --------------------------------------------------------------------------------

    def _begin_beating(self, stream: CallStream | KeyedStream) -> None:
        self._beating = asyncio.get_running_loop().create_task(self._beat(stream), name="headgate heartbeat")

    async def _beat(self, stream: CallStream | KeyedStream) -> None:
        """Comments keep impatient clients and proxies waiting. Not before the slot is held: a refusal needs a status."""
        while True:
            if stream.attempts:
                await self._start()
                await self._exchange.write(_HEARTBEAT)
            await asyncio.sleep(HEARTBEAT_S)

    async def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
