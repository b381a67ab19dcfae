"""The end of a server: nothing new, what runs may finish, and after the deadline nobody is waited for."""

import asyncio
import time

import pytest
from server.http.front_stage import GET, Play, echo, eventually, post, respond, serving

from headgate.server.http.asgi import Receive, Scope, Send


def test_idle_connections_go_at_once_and_running_requests_finish(play: Play) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            started.set()
            await go.wait()
        await respond(send, b"done")

    async def scene() -> None:
        async with serving(app) as house, house.wire() as idle, house.wire() as busy, house.wire() as begun:
            await idle.ask(GET)
            await begun.send(GET[:-4])
            await busy.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
            await started.wait()
            draining = asyncio.create_task(house.server.drain(30))
            assert await idle.closed()
            assert (await begun.answer()).code == "draining"
            with pytest.raises(OSError):
                await house.ask(GET)
            assert not draining.done()
            go.set()
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            assert await busy.closed(), "the request behind it is not served any more"
            await asyncio.wait_for(draining, 3)

    play(scene)


def test_after_the_deadline_the_rest_is_cancelled_and_can_still_say_so(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        try:
            await asyncio.sleep(60)
        finally:
            if scope["path"] == "/stream":
                await send({"type": "http.response.body", "body": b"error"})

    async def scene() -> None:
        async with serving(app) as house, house.wire() as plain, house.wire() as stream:
            await plain.send(GET)
            await stream.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            await stream.head()
            started = time.monotonic()
            await house.server.drain(0.2)
            assert 0.15 < time.monotonic() - started < 1.5
            answer = await plain.answer()
            assert (answer.status, answer.code) == (503, "draining")
            assert "retry-after" in answer.headers
            assert [chunk async for chunk in stream.chunks()] == [b"one", b"error"]

    play(scene)


def test_an_application_that_will_not_end_is_left_behind(play: Play) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(GET)
            await asyncio.sleep(0.05)
            started = time.monotonic()
            await house.server.drain(0.1)
            assert time.monotonic() - started < 6
            assert house.server.connections == 0
            go.set()
            await asyncio.sleep(0.01)

    play(scene)


def test_a_second_drain_in_a_hurry_ends_the_first(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(GET)
            await asyncio.sleep(0.05)
            first = asyncio.create_task(house.server.drain(30))
            await asyncio.sleep(0.05)
            await house.server.drain(0)
            await asyncio.wait_for(first, 1)

    play(scene)


def test_a_body_that_is_being_dropped_or_read_does_not_hold_up_the_end(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo) as house, house.wire() as wire:
            await wire.send(post(b"hello")[:-1])
            await eventually(lambda: house.server.connections == 1)
            await asyncio.sleep(0.05)
            started = time.monotonic()
            await house.server.drain(0.1)
            assert time.monotonic() - started < 4
            assert (await wire.answer()).status == 503

    play(scene)
