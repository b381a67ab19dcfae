"""Keeps open pages fresh. All who look at the same page with the same eyes share one rendering; nobody looks, nothing runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from typing import Final, TypeAlias

import msgspec

from headgate.core.errors import HeadgateError, QueueFull
from headgate.core.ports.clock import Clock
from headgate.server.dashboard.html import group
from headgate.server.errors import going_away, log_error, read_error

Sections: TypeAlias = Mapping[str, str]
Render: TypeAlias = Callable[[], Awaitable[Sections]]
BEAT_S: Final = 5.0
"""So often a viewer hears something, and is asked whether they may stay."""
MOST_CHANNELS: Final = 50
"""Different pages that are open: of one tenant, and of all operators."""
REST_FACTOR: Final = 10
LONGEST_REST_S: Final = 60.0
"""A page that takes long to make is made less often: it rests ten times as long as it took, up to this."""
TROUBLE: Final = "trouble"
"""The part of every page that says why it is not fresh."""
_HELLO: Final = b"retry: 2000\n\n"
_HERE: Final = b": here\n\n"
LEAVE: Final = b"event: leave\ndata: \n\n"
"""The page is to be asked for again: its viewer may not stay."""


class Live:
    """The open pages of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._channels: dict[Hashable, _Channel] = {}
        self.closed = False

    def close(self) -> None:
        """The process goes away: every stream ends, and browsers come back to whoever is there then."""
        self.closed = True
        for channel in self._channels.values():
            channel.stop()

    def check_room(self, key: Hashable, whose: str | None) -> None:
        """Raises when this page cannot be followed now."""
        if self.closed:
            raise going_away()
        own = sum(channel.whose == whose for channel in self._channels.values())
        if key not in self._channels and own >= MOST_CHANNELS:
            raise QueueFull(
                f"{MOST_CHANNELS} different pages are open already; close some", retry_after_s=10.0
            )

    async def follow(
        self, key: Hashable, whose: str | None, render: Render, refresh_s: float, stays: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """What changes on a page, as server-sent events. `key` names the page and the eyes it is seen with."""
        if self.closed:
            return  # Since there was room: this begins when the head of the answer is out.
        channel = self._join(key, whose, render, refresh_s)
        sent: dict[str, str] = {}
        try:
            yield _HELLO
            while not channel.over and stays():
                # Taken before looking: what changes while a piece is on its way rings this one.
                bell = channel.bell
                # The same object: not made anew since it was sent.
                news = {name: text for name, text in channel.sections.items() if sent.get(name) is not text}
                sent |= news
                yield b"data: %b\n\n" % msgspec.json.encode(news) if news else _HERE
                await bell.wait()
            if not channel.over:
                yield LEAVE
        finally:
            self._leave(key, channel)

    def _join(self, key: Hashable, whose: str | None, render: Render, refresh_s: float) -> "_Channel":
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(whose, render, refresh_s, self._clock)
        channel.viewers += 1
        return channel

    def _leave(self, key: Hashable, channel: "_Channel") -> None:
        channel.viewers -= 1
        if channel.viewers == 0:
            channel.stop()
            del self._channels[key]


class _Channel:
    """One page as it is now."""

    def __init__(self, whose: str | None, render: Render, refresh_s: float, clock: Clock) -> None:
        self.whose = whose
        self.sections: dict[str, str] = {TROUBLE: ""}
        self.viewers = 0
        self.over = False
        self._render = render
        self._refresh_s = refresh_s
        self._clock = clock
        self.bell = asyncio.Event()
        """Rings once, at the next news or beat; then there is another."""
        self._task = asyncio.create_task(self._run(), name="headgate dashboard page")

    def stop(self) -> None:
        self.over = True
        self._task.cancel()
        self._ring()

    async def _run(self) -> None:
        beat_at = self._clock.now() + BEAT_S
        while True:
            began_at = self._clock.now()
            changed = self._take(await self._made())
            ended_at = self._clock.now()
            if changed or ended_at >= beat_at:
                beat_at = ended_at + BEAT_S
                self._ring()
            rest_s = min(LONGEST_REST_S, (ended_at - began_at) * REST_FACTOR)
            await self._rest(max(self._refresh_s, rest_s))

    async def _rest(self, rest_s: float) -> None:
        while rest_s > BEAT_S:
            await self._clock.sleep(BEAT_S)
            self._ring()
            rest_s -= BEAT_S
        await self._clock.sleep(rest_s)

    async def _made(self) -> Sections:
        try:
            return {**await self._render(), TROUBLE: ""}
        except Exception as error:  # noqa: BLE001 - whatever a page meets, those who look at it are told
            if not isinstance(error, HeadgateError):
                log_error("the dashboard", error)
            return {TROUBLE: str(group(read_error(error).message))}

    def _take(self, made: Sections) -> bool:
        news = {name: text for name, text in made.items() if self.sections.get(name) != text}
        self.sections |= news
        return bool(news)

    def _ring(self) -> None:
        bell, self.bell = self.bell, asyncio.Event()
        bell.set()
