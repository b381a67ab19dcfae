"""Answers on the wire: framed by length or in chunks, with or without a body, and never a half one that looks whole."""

import asyncio
from collections.abc import Sequence
from email.utils import parsedate_to_datetime

import pytest
from server.http.front_stage import GET, Play, respond, serving

from headgate.server.http.answer import Answer
from headgate.server.http.asgi import App, Receive, Scope, Send

HEAD = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"


def app_saying(*bodies: bytes, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body"})

    return app


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"hello")


def test_a_whole_body_has_a_length(play: Play) -> None:
    async def scene() -> None:
        async with serving(whole) as house, house.wire() as wire:
            answer = await wire.ask(GET)
            assert (answer.status, answer.body) == (200, b"hello")
            assert answer.headers["content-length"] == "5"
            assert parsedate_to_datetime(answer.headers["date"]).tzinfo is not None
            assert (await wire.ask(GET)).body == b"hello"

    play(scene)


def test_a_stream_has_chunks_and_each_leaves_at_once(play: Play) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(GET)
            _, headers = await wire.head()
            assert headers["transfer-encoding"] == "chunked"
            chunks = wire.chunks()
            assert await anext(chunks) == b"one"
            go.set()
            assert [chunk async for chunk in chunks] == [b"two"]
            assert (await wire.ask(GET)).body == b"onetwo"

    play(scene)


@pytest.mark.parametrize("status", [200, 204, 304])
def test_answers_without_a_body_have_none(play: Play, status: int) -> None:
    """To HEAD, and by their status; the next answer must begin where the client expects it."""
    app = app_saying(b"hello", status=status, headers=[(b"content-length", b"5")])

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(HEAD)
            answer = await wire.answer(to_head=True)
            assert answer.status == status
            assert answer.headers.get("content-length") == (None if status == 204 else "5")
            assert "transfer-encoding" not in answer.headers
            assert (await wire.ask(GET)).status == status
            await wire.send(HEAD)
            assert (await wire.answer(to_head=True)).status == status

    play(scene)


def test_head_and_body_are_one_piece() -> None:
    data = Answer(200, [(b"X-A", b"b")], to_head=False).first(
        b"hello", more=False, date=b"date: now", closes=False
    )
    assert data == b"HTTP/1.1 200 OK\r\ndate: now\r\nX-A: b\r\ncontent-length: 5\r\n\r\nhello"


def test_framing_is_the_servers_and_never_doubled() -> None:
    headers = [(b"Transfer-Encoding", b"chunked"), (b"Connection", b"keep-alive"), (b"Date", b"then")]
    answer = Answer(200, headers, to_head=False)
    data = answer.first(b"hello", more=True, date=b"date: now", closes=True)
    assert (
        data
        == b"HTTP/1.1 200 OK\r\ndate: now\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    assert answer.next(b"", more=False) == b"0\r\n\r\n"


def test_the_client_or_the_application_may_close(play: Play) -> None:
    async def scene() -> None:
        async with serving(whole) as house, house.wire() as wire:
            answer = await wire.ask(
                b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: Close\r\n\r\n"
            )
            assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
            assert await wire.closed()
        async with (
            serving(app_saying(b"hi", headers=[(b"connection", b"close")])) as house,
            house.wire() as wire,
        ):
            assert (await wire.ask(GET)).body == b"hi"
            assert await wire.closed()

    play(scene)


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Returns without a word."""


async def crashing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("secret")


FAILING: dict[str, App] = {
    "crashes": crashing,
    "says nothing": silent,
    "breaks a line in a header": app_saying(b"", headers=[(b"x", b"a\r\nset-cookie: b")]),
    "puts NUL into a header": app_saying(b"", headers=[(b"x", b"a\0b")]),
    "has no such status": app_saying(b"", status=101),
    "says too much": app_saying(b"hello", headers=[(b"content-length", b"2")]),
}


@pytest.mark.provokes_internal_error
@pytest.mark.parametrize("app", FAILING.values(), ids=FAILING)
def test_an_application_that_fails_before_its_answer_is_a_500(
    play: Play, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            answer = await wire.ask(GET)
            assert (answer.status, answer.code) == (500, "internal")
            assert answer.headers["x-should-retry"] == "false"
            assert b"secret" not in answer.body
            assert await wire.closed()
        assert "the application failed on GET /" in caplog.text
        caplog.clear()

    play(scene)


@pytest.mark.provokes_internal_error
@pytest.mark.parametrize("length", [[], [(b"content-length", b"10")]], ids=["chunked", "sized"])
def test_an_application_that_fails_in_its_answer_leaves_it_visibly_cut(
    play: Play, length: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        await asyncio.sleep(0.05)
        raise ValueError

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.send(GET)
            await wire.head()
            rest = await wire.rest()
            assert b"hello" in rest
            assert b"0\r\n\r\n" not in rest
        caplog.clear()

    play(scene)
