"""Upstreams that lie, never end, or say what no server says: the caller gets an error that says so, and the slot is free.

What single layers do with such bytes is in `transport/test_answers.py`; here they go through a served gateway.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
from attacks.tenants import message_of
from contracts.provider_stage import KEY, Part
from providers.stubs import openai
from server.http.front_stage import Answer, Play
from server.stage import House, opened
from server.upstreams import CHAT, ask, one_model, until, upstream_of
from transport.wire_stage import Peer, Script, serving

MIB: Final = 1024 * 1024
MAX_READ_BYTES: Final = 8 * MIB
"""An attempt, with what the sockets between hold."""
MAX_BODY_READ_BYTES: Final = 80 * MIB
"""The same for a body, of which 64 MiB may be true."""
START: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE: Final = openai.completion().body
BROKEN: Final = {502, 503, 504}
TIMEOUT: Final = "X-Headgate-Timeout: 5"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def once(*pieces: bytes) -> Script:
    """One request a connection, these bytes, the end."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)

    return script


def endless(start: bytes, piece: bytes) -> Script:
    piece *= max(1, 65536 // len(piece))

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        while True:
            await peer.send(piece)

    return script


def trickle(start: bytes, piece: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        while True:
            await peer.send(piece)
            await asyncio.sleep(0.05)

    return script


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


def sized(body: bytes, *, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    kind = b"Content-Type: application/json\r\n" if b"Content-Type" not in headers else b""
    return b"HTTP/1.1 %b\r\n%b%bContent-Length: %d\r\n\r\n%b" % (status, kind, headers, len(body), body)


BOMB: Final = gzip.compress(bytes(50 * MIB))
CONTENT: Final = openai.event({"content": "x" * 60_000})

ENDLESS: Final[dict[str, tuple[Script, int]]] = {
    "body": (endless(START + b"\r\n", b"x"), MAX_BODY_READ_BYTES),
    "chunks": (
        endless(START + b"Transfer-Encoding: chunked\r\n\r\n", chunk(b" " * 65536)),
        MAX_BODY_READ_BYTES,
    ),
    "small chunks": (
        endless(START + b"Transfer-Encoding: chunked\r\n\r\n", chunk(b"[")),
        16 * MAX_BODY_READ_BYTES,
    ),
    "body of ten gigabytes": (
        endless(START + b"Content-Length: 10000000000\r\n\r\n", b"["),
        MAX_BODY_READ_BYTES,
    ),
    "headers": (endless(START, b"X: y\r\n"), MAX_READ_BYTES),
    "header": (endless(START + b"X: ", b"y"), MAX_READ_BYTES),
    "status line": (endless(b"HTTP/1.1 200 ", b"O"), MAX_READ_BYTES),
    "interim answers": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), MAX_READ_BYTES),
    "interim headers": (endless(b"HTTP/1.1 103 Early\r\n", b"Link: x\r\n"), MAX_READ_BYTES),
    "trailers": (endless(START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"), MAX_READ_BYTES),
    "chunk extension": (endless(START + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x"), MAX_READ_BYTES),
    "chunk size": (endless(START + b"Transfer-Encoding: chunked\r\n\r\n", b"0"), MAX_READ_BYTES),
    "error": (endless(b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n", b"no "), MAX_READ_BYTES),
    "error of ten gigabytes": (
        endless(
            b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n", b"["
        ),
        MAX_READ_BYTES,
    ),
    "line": (endless(EVENTS, chunk(b"data: " + b"x" * 65536)), MAX_BODY_READ_BYTES),
    "noise": (endless(b"", b"\x00\xff"), MAX_READ_BYTES),
}
NO_ANSWERS: Final[dict[str, bytes]] = {
    "nothing": b"",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a status of letters": b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nhi",
    "status 0": b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nhi",
    "status 999": b"HTTP/1.1 999 X\r\nContent-Length: 2\r\n\r\nhi",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "two lengths": START + b"Content-Length: 2\r\nContent-Length: 300\r\n\r\n{}",
    "a length and chunks": START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": START + b"Content-Length: -1\r\n\r\n" + WHOLE,
    "a length beyond all numbers": START + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n" + WHOLE,
    "too great a length": START + b"Content-Length: %d\r\n\r\n" % (len(WHOLE) + 9) + WHOLE,
    "too small a length": START + b"Content-Length: 9\r\n\r\n" + WHOLE,
    "a gzip bomb": sized(BOMB, headers=b"Content-Encoding: gzip\r\n"),
    "a gzip bomb in chunks": START
    + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(BOMB)
    + b"0\r\n\r\n",
    "a gzip bomb as transfer": START
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
    + chunk(BOMB)
    + b"0\r\n\r\n",
    "lists in lists": sized(b"[" * MIB),
    "whole lists in lists": sized(b"[" * 100_000 + b"]" * 100_000),
    "choices in lists": sized(b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "an error in lists": sized(b'{"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a number without end": sized(b'{"choices":[' + b"7" * MIB + b"]}"),
    "NaN": sized(b'{"choices":[NaN]}'),
    "half a character": sized(b'{"choices":[{"message":{"content":"\\ud800"}}]}'),
    "bytes of no text": sized(b'{"choices":[{"message":{"content":"\xff\xfe"}}]}'),
    "null": sized(b"null"),
    "a list": sized(b"[]"),
    "an empty object": sized(b"{}"),
    "no choices": sized(b'{"choices":[]}'),
    "choices that are none": sized(b'{"choices":{"0":1}}'),
    "a page": sized(b"<html>log in</html>", headers=b"Content-Type: text/html\r\n"),
    "a null byte in a header": START + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    "a folded header": START + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
}
PASSED_ON: Final = {"half a character", "bytes of no text"}
"""The text of an answer is not read; it is for the caller to decode."""
WAITS: Final = (
    "1e18",
    "NaN",
    "-5",
    "inf",
    "9" * 400,
    "1e999",
    "0x10",
    "",
    "Thu, 01 Jan 9999 00:00:00 GMT",
    "\xff",
)


def play_with(
    play: Play, script: Script, act: Callable[[House, Any], Awaitable[None]], **upstream: Any
) -> None:
    """A gateway whose only upstream is this one. In the end its slots are free, whatever happened."""

    async def scene() -> None:
        async with serving(script) as server:
            stub = SimpleNamespace(url=server.url("/v1"))
            async with opened(one_model(upstream_of("openai", stub, Part.ANSWER, **upstream))) as house:
                await act(house, server)
                await until(lambda: house.all_free)

    play(scene)


def check_error(answer: Answer, statuses: set[int]) -> None:
    assert answer.status in statuses, answer.body[:500]
    assert len(answer.body) < 20_000
    error = json.loads(answer.body)["error"]
    assert error["message"]
    assert error["code"]
    assert KEY not in answer.body.decode()
    assert all(char.isprintable() for char in error["message"]), error["message"][:500]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_left_after_a_bounded_number_of_bytes(play: Play, what: str, stream: bool) -> None:
    script, max_bytes = ENDLESS[what]

    async def act(house: House, server: Any) -> None:
        answer = await ask(house, CHAT, TIMEOUT, stream=stream)
        check_error(answer, BROKEN | {400})
        await until(lambda: all(peer.ended for peer in server.peers))
        assert max(peer.sent_bytes for peer in server.peers) <= max_bytes

    play_with(play, script, act)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", NO_ANSWERS)
def test_what_is_no_answer_is_an_error_that_says_so(play: Play, what: str, stream: bool) -> None:
    async def act(house: House, _: Any) -> None:
        answer = await ask(house, CHAT, TIMEOUT, stream=stream)
        if what in PASSED_ON and answer.status == 200:
            assert answer.body == NO_ANSWERS[what].partition(b"\r\n\r\n")[2]
            return
        check_error(answer, BROKEN)

    play_with(play, once(NO_ANSWERS[what]), act)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        silent,
        trickle(START + b"\r\n", b" "),
        trickle(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        trickle(EVENTS, chunk(b": wait\n\n")),
        trickle(b"HTTP/1.1 500 No\r\n\r\n", b"n"),
    ],
    ids=["silence", "body", "head", "comments", "error"],
)
def test_a_trickle_ends_with_the_time_of_the_call(play: Play, script: Script, stream: bool) -> None:
    async def act(house: House, _: Any) -> None:
        check_error(await ask(house, CHAT, "X-Headgate-Timeout: 0.5", stream=stream), {502, 503, 504})

    play_with(play, script, act)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_our_key_goes_nowhere(play: Play, status: int) -> None:
    async def scene() -> None:
        async with serving(once(sized(WHOLE))) as other:
            away = b"HTTP/1.1 %d Away\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n"
            script = once(away % (status, other.url("/v1/chat/completions").encode()))
            async with serving(script) as server:
                stub = SimpleNamespace(url=server.url("/v1"))
                async with opened(one_model(upstream_of("openai", stub, Part.ANSWER))) as house:
                    check_error(await ask(house, CHAT, TIMEOUT), BROKEN)
                    assert other.peers == []
                    assert house.all_free

    play(scene)


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("status", [b"429 Slow", b"503 Away"])
def test_a_retry_after_that_is_none_is_bounded(play: Play, wait: str, status: bytes) -> None:
    """And the caller is told a wait that it can parse, and live to see the end of."""
    header = b"Retry-After: %b\r\n" % wait.encode("latin-1")

    async def act(house: House, _: Any) -> None:
        answer = await ask(house, CHAT, "X-Headgate-Timeout: 1")
        check_error(answer, {429} | BROKEN)
        told = answer.headers.get("retry-after", "1")
        assert 0 <= int(told) <= 86400

    play_with(play, once(sized(b"{}", status=status, headers=header)), act)


def test_control_characters_in_an_error_reach_neither_headers_nor_terminals(play: Play) -> None:
    said = 'no\r\nX-Evil: 1\r\n\r\n\u001b[31m\u0000\u009b\u202e"'
    body = json.dumps({"error": {"message": said, "code": "a\r\nb\u001b", "type": "\u0000"}}).encode()

    async def act(house: House, _: Any) -> None:
        for stream in (False, True):
            answer = await ask(house, CHAT, TIMEOUT, stream=stream)
            assert answer.status == 400
            assert "x-evil" not in answer.headers
            assert message_of(answer).isprintable(), repr(message_of(answer))

    play_with(play, once(sized(body, status=b"400 No")), act)


def test_cookies_and_headers_of_an_upstream_are_not_passed_on(play: Play) -> None:
    headers = (
        b"Set-Cookie: headgate_session=evil; Path=/\r\nAccess-Control-Allow-Origin: *\r\nLocation: //evil\r\n"
        b"Content-Security-Policy: none\r\nClear-Site-Data: *\r\nRefresh: 0\r\nX-Headgate-Upstream: evil/evil\r\n"
    )

    async def act(house: House, _: Any) -> None:
        answer = await ask(house, CHAT, TIMEOUT)
        assert answer.status == 200
        assert json.loads(answer.body) == {**json.loads(WHOLE), "model": json.loads(answer.body)["model"]}
        foreign = {"set-cookie", "access-control-allow-origin", "location", "clear-site-data", "refresh"}
        assert foreign & set(answer.headers) == set()
        assert "evil" not in json.dumps(dict(answer.headers))

    play_with(play, once(sized(WHOLE, headers=headers)), act)


def test_content_without_end_under_a_key_stops_at_what_may_be_kept(play: Play) -> None:
    async def act(house: House, server: Any) -> None:
        answer = await asyncio.wait_for(ask(house, CHAT, "Idempotency-Key: k", stream=True), 60)
        assert answer.status in BROKEN | {200}
        assert b'"error"' in answer.body[-2000:]
        assert len(answer.body) <= MAX_BODY_READ_BYTES
        await until(lambda: all(peer.ended for peer in server.peers))
        assert server.peers[0].sent_bytes <= MAX_BODY_READ_BYTES

    play_with(play, endless(EVENTS, chunk(CONTENT)), act)


def test_content_without_end_ends_with_its_caller(play: Play) -> None:
    async def act(house: House, server: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(house, CHAT, stream=True), 1)
        await until(lambda: all(peer.ended for peer in server.peers))

    play_with(play, trickle(EVENTS, chunk(openai.event({"content": "x"}))), act)
