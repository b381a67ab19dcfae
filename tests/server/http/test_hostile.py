"""Bytes that are meant to confuse: always a prompt 4xx and the end of the connection, and never a second request inside the first."""

import asyncio
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.http.front_stage import GET, LOOPS, House, Play, echo, post, serving

from headgate.server.http import HttpLimits
from headgate.server.http.asgi import Receive, Scope, Send

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = b"Content-Length: 5\r\n"
TE = b"Transfer-Encoding: chunked\r\n"


def get(*lines: bytes, first: bytes = b"GET / HTTP/1.1\r\n", host: bytes = b"Host: a\r\n") -> bytes:
    return first + host + b"".join(lines) + b"\r\n"


def chunked(body: bytes) -> bytes:
    return get(TE, first=b"POST / HTTP/1.1\r\n") + body


MALFORMED: dict[str, bytes] = {
    "length and chunks": get(BODY, TE) + b"0\r\n\r\n",
    "chunks and length": get(TE, BODY) + b"0\r\n\r\n",
    "two lengths": get(BODY, b"Content-Length: 6\r\n") + b"hello",
    "the same length twice": get(BODY, BODY) + b"hello",
    "a list of lengths": get(b"Content-Length: 5, 5\r\n") + b"hello",
    "no length": get(b"Content-Length:\r\n"),
    "negative length": get(b"Content-Length: -5\r\n") + b"hello",
    "length with a plus": get(b"Content-Length: +5\r\n") + b"hello",
    "hexadecimal length": get(b"Content-Length: 0x5\r\n") + b"hello",
    "length with a blank inside": get(b"Content-Length: 1 0\r\n") + b"hello",
    "length with an underscore": get(b"Content-Length: 1_0\r\n") + b"hello",
    "length in other digits": get("Content-Length: ٥\r\n".encode()) + b"hello",
    "a length beyond all bounds": get(b"Content-Length: 18446744073709551621\r\n") + b"hello",
    "two transfer encodings": get(TE, TE) + b"0\r\n\r\n",
    "gzip, chunked": get(b"Transfer-Encoding: gzip, chunked\r\n") + b"0\r\n\r\n",
    "chunked, identity": get(b"Transfer-Encoding: chunked, identity\r\n") + b"0\r\n\r\n",
    "identity": get(b"Transfer-Encoding: identity\r\n"),
    "xchunked": get(b"Transfer-Encoding: xchunked\r\n") + b"0\r\n\r\n",
    "Chunked": get(b"Transfer-Encoding: Chunked\r\n") + b"0\r\n\r\n",
    "chunked behind a tab": get(b"Transfer-Encoding:\x0bchunked\r\n") + b"0\r\n\r\n",
    "quoted chunked": get(b'Transfer-Encoding: "chunked"\r\n') + b"0\r\n\r\n",
    "bare LF everywhere": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF between headers": get(b"X: a\nY: b\r\n"),
    "bare LF behind the request line": get(first=b"GET / HTTP/1.1\n"),
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "bare CR in a value": get(b"X: a\rY: b\r\n"),
    "bare CR between lines": get(b"X: a\r\rY: b\r\n"),
    "CR CR LF": get(b"X: a\r\r\n"),
    "folded header": get(b"X: a\r\n b\r\n"),
    "folded with a tab": get(b"Transfer-Encoding:\r\n\tchunked\r\n") + b"0\r\n\r\n",
    "blank before the first header": get(host=b" Host: a\r\n"),
    "blank before the colon": get(b"Content-Length : 5\r\n") + b"hello",
    "tab before the colon": get(b"Transfer-Encoding\t: chunked\r\n") + b"0\r\n\r\n",
    "blank in a name": get(b"X Y: a\r\n"),
    "no colon": get(b"X\r\n"),
    "no name": get(b": a\r\n"),
    "NUL in a name": get(b"X\0: a\r\n"),
    "NUL in a value": get(b"X: a\0b\r\n"),
    "control character in a value": get(b"X: a\x01b\r\n"),
    "DEL in a value": get(b"X: a\x7fb\r\n"),
    "name that is not ASCII": get("é: a\r\n".encode()),
    "no host": get(host=b""),
    "two hosts": get(b"Host: b\r\n"),
    "the same host twice": get(b"host: a\r\n"),
    "empty host": get(host=b"Host:\r\n"),
    "host with a path": get(host=b"Host: a/b\r\n"),
    "host with a user": get(host=b"Host: a@b\r\n"),
    "host with a blank": get(host=b"Host: a b\r\n"),
    "absolute target": get(first=b"GET http://b/ HTTP/1.1\r\n"),
    "authority target": get(first=b"CONNECT b:443 HTTP/1.1\r\n"),
    "asterisk": get(first=b"OPTIONS * HTTP/1.1\r\n"),
    "relative target": get(first=b"GET smuggled HTTP/1.1\r\n"),
    "fragment": get(first=b"GET /#a HTTP/1.1\r\n"),
    "target that is not ASCII": get(first="GET /é HTTP/1.1\r\n".encode()),
    "NUL in the target": get(first=b"GET /\0 HTTP/1.1\r\n"),
    "blank in the target": get(first=b"GET /a b HTTP/1.1\r\n"),
    "no target": get(first=b"GET HTTP/1.1\r\n"),
    "two blanks": get(first=b"GET  / HTTP/1.1\r\n"),
    "tab for a blank": get(first=b"GET\t/\tHTTP/1.1\r\n"),
    "blank behind the version": get(first=b"GET / HTTP/1.1 \r\n"),
    "small method": get(first=b"get / HTTP/1.1\r\n"),
    "HTTP/1.0": get(first=b"GET / HTTP/1.0\r\n"),
    "HTTP/0.9": b"GET /\r\n",
    "HTTP/0.9 with headers": get(first=b"GET /\r\n"),
    "HTTP/1.2": get(first=b"GET / HTTP/1.2\r\n"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.10": get(first=b"GET / HTTP/1.10\r\n"),
    "http/1.1": get(first=b"GET / http/1.1\r\n"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "only line ends": b"\r\n\r\n\r\n\r\n",
    "chunk extension": chunked(b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    "chunk extension with LF": chunked(b"5;\nxx\r\nhello\r\n0\r\n\r\n"),
    "chunk ends with LF": chunked(b"5\nhello\n0\n\n"),
    "chunk too long": chunked(b"5\r\nhello!!\r\n0\r\n\r\n"),
    "chunk size with 0x": chunked(b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size wraps": chunked(b"100000005\r\nhello\r\n0\r\n\r\n"),
    "negative chunk": chunked(b"-5\r\nhello\r\n0\r\n\r\n"),
    "trailer": chunked(b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "last chunk ends with LF": chunked(b"0\r\n\n"),
}
OTHERWISE: dict[str, tuple[int, bytes]] = {
    "too large": (413, get(b"Content-Length: 999999999\r\n") + b"x" * 5000),
    "chunk too large": (413, chunked(b"ffffffff\r\n")),
    "compressed": (415, get(BODY, b"Content-Encoding: gzip\r\n") + b"hello"),
    "compressed twice": (
        400,
        get(BODY, b"Content-Encoding: gzip\r\n", b"Content-Encoding: identity\r\n") + b"hello",
    ),
    "other expectation": (417, get(BODY, b"Expect: miracle\r\n") + b"hello"),
    "too many headers": (431, get(b"X: a\r\n" * 100)),
    "one header too long": (431, get(b"X: " + b"a" * 70_000 + b"\r\n")),
    "a head without end": (431, b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000),
}
CORPUS = {name: (400, data) for name, data in MALFORMED.items()} | OTHERWISE


class Witness:
    """Remembers what reached the application."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize(("status", "data"), CORPUS.values(), ids=CORPUS)
def test_a_hostile_request_is_refused_and_nothing_behind_it_is_read(
    play: Play, status: int, data: bytes
) -> None:
    async def refused(house: House, *packets: bytes) -> None:
        started = time.monotonic()
        async with house.wire() as wire:
            await wire.ask(GET)  # On a connection in use.
            answer = await wire.ask(*packets)
            assert answer.status == status
            assert answer.headers["connection"] == "close"
            assert answer.code
            assert await wire.closed()
        assert time.monotonic() - started < 2

    async def scene() -> None:
        witness = Witness()
        async with serving(witness) as house:
            await refused(house, data + SMUGGLED)
            await refused(
                house, *(data[at : at + 1] for at in range(min(len(data), 99))), data[99:] + SMUGGLED
            )
        assert set(witness.paths) == {"/"}

    play(scene)


words = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b"/",
        b"/x?y",
        b" HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"Host: a\r\n",
        b": ",
        b" ",
        BODY,
        TE,
        b"Content-Length: 0\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"hello",
        b"\0",
        b"\xff",
        b"Expect: 100-continue\r\n",
    ]
)
noise = st.lists(words | st.binary(max_size=5), max_size=15).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(noise | st.sampled_from([GET, post(b"hello"), get(TE) + b"2\r\nhi\r\n0\r\n\r\n"]), max_size=6),
    st.sampled_from(sorted(LOOPS)),
)
def test_no_noise_makes_a_server_error_or_a_stuck_connection(packets: list[bytes], loop: str) -> None:
    troubles: list[object] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        async with serving(
            Witness(), HttpLimits(header_timeout_s=0.05, body_timeout_s=0.05, idle_s=0.05)
        ) as house:
            async with house.wire() as wire:
                wire.writer.writelines(packets)
                received = await asyncio.wait_for(wire.rest(), 5)
            statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
            assert set(statuses) <= {100, 200, 400, 408, 413, 417, 431}
            assert all(status < 400 for status in statuses[:-1]), "nothing comes behind a refusal"

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scene())
    assert troubles == []


def test_a_gibibyte_is_refused_at_once_and_costs_nothing(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo) as house, house.wire() as wire:
            head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n"
            started = time.monotonic()
            answer = await wire.ask(head)
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert time.monotonic() - started < 0.5

            async def push() -> None:
                while True:
                    await wire.send(b"x" * 65536)

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(push(), 5)

    play(scene)


def test_a_client_that_only_reads_after_it_has_sent_everything_still_reads_why(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo) as house, house.wire() as wire:
            answer = await wire.ask(post(b"x" * 21 * 1024 * 1024))
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.headers["x-should-retry"] == "false"

    play(scene)
