"""A client that leaves is told of at once, whatever the application waits for."""

import asyncio

import pytest
from server.http.front_stage import GET, Play, Wire, echo, eventually, post, respond, serving

from headgate.server.http import HttpLimits
from headgate.server.http.asgi import Receive, Scope, Send


async def _close(wire: Wire) -> None:
    wire.writer.close()


async def _reset(wire: Wire) -> None:
    wire.reset()


async def _half_close(wire: Wire) -> None:
    """Decided as nginx does: who stops sending while an answer is due has left."""
    wire.writer.write_eof()


LEAVING = pytest.mark.parametrize("leave", [_close, _reset, _half_close])


@LEAVING
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "request_", [GET, post(b"hello"), post(b"hello")[:-1]], ids=["get", "post", "mid-body"]
)
def test_the_application_is_cancelled_at_once_if_it_wants_to(
    play: Play, leave: object, streaming: bool, request_: bytes
) -> None:
    ends: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        scope["extensions"]["headgate"].on_disconnect(task.cancel)
        if streaming:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        ends.append("waits")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(request_)
            await eventually(lambda: ends)
            await leave(wire)  # type: ignore[operator]
            await eventually(lambda: ends == ["waits", "cancelled"], 1)
            await eventually(lambda: house.server.connections == 0, 1)

    play(scene)


@LEAVING
def test_receive_tells_too_and_sending_into_the_void_is_no_error(play: Play, leave: object) -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append((await receive())["type"])
        heard.append((await receive())["type"])
        await respond(send, b"nobody reads this")
        heard.append((await receive())["type"])

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(GET)
            await eventually(lambda: heard)
            await leave(wire)  # type: ignore[operator]
            await eventually(lambda: heard == ["http.request", "http.disconnect", "http.disconnect"], 1)

    play(scene)


def test_a_wish_can_be_taken_back_comes_late_or_is_over_with_the_answer(play: Play) -> None:
    calls: list[str] = []
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["extensions"]["headgate"]
        await receive()
        if scope["path"] == "/answered":
            client.on_disconnect(lambda: calls.append("answered"))
            await respond(send, b"ok")
            await left.wait()
            return
        client.on_disconnect(lambda: calls.append("taken back"))
        client.on_disconnect(None)
        await receive()
        client.on_disconnect(lambda: calls.append("late"))

    async def scene() -> None:
        async with serving(app) as house:
            await house.ask(b"GET /answered HTTP/1.1\r\nHost: a\r\n\r\n")
            async with house.wire() as wire:
                await wire.send(GET)
                await asyncio.sleep(0.05)
            await eventually(lambda: calls)
            left.set()
            await asyncio.sleep(0.05)
            assert calls == ["late"]

    play(scene)


def test_clients_that_leave_in_the_middle_of_a_request_leave_nothing_behind(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.request":
            await echo(scope, receive, send)

    async def scene() -> None:
        async with serving(app, HttpLimits(header_timeout_s=30)) as house:
            data = post(b"x" * 20)
            for end in range(len(data)):
                async with house.wire() as wire:
                    await wire.send(data[:end])
            await eventually(lambda: house.server.connections == 0)
            front = house.server._front
            assert front is not None
            await eventually(lambda: not front.running)

    play(scene)
