"""Requests as they may arrive: in one packet or in many, one by one or together."""

import asyncio
import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from server.http.front_stage import (
    GET,
    LOOPS,
    House,
    Play,
    echo,
    eventually,
    post,
    read_whole,
    respond,
    serving,
)

from headgate.server.http import HttpLimits
from headgate.server.http.asgi import Receive, Scope, Send

CHUNKED = (
    b"POST /b?q=2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhey\r\n4\r\n you\r\n0\r\n\r\n"
)
CONVERSATION = (GET, post(b"hello", "/a%20b?x=1"), CHUNKED, b"\r\n" + GET, post(b""), post(b"x" * 50))
EXPECTED = [
    ["GET", "/", "", ""],
    ["POST", "/a b", "x=1", "hello"],
    ["POST", "/b", "q=2", "hey you"],
    ["GET", "/", "", ""],
    ["POST", "/", "", ""],
    ["POST", "/", "", "x" * 50],
]


async def _converse(house: House, packets: list[bytes]) -> list[object]:
    async with house.wire() as wire:
        for packet in packets:
            wire.writer.write(packet)
            # The loop that serves is this one: it has read a packet after a few rounds.
            for _ in range(3):
                await asyncio.sleep(0)
        return [json.loads((await wire.answer()).body) for _ in CONVERSATION]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 600), max_size=30), st.sampled_from(sorted(LOOPS)))
def test_any_split_into_packets_gives_the_same_answers_in_order(places: list[int], loop: str) -> None:
    data = b"".join(CONVERSATION)
    cuts = sorted({0, len(data), *(place for place in places if place < len(data))})
    packets = [data[start:end] for start, end in itertools.pairwise(cuts)]

    async def scene() -> None:
        async with serving(echo) as house:
            assert await _converse(house, packets) == EXPECTED

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scene())


def test_a_request_may_come_byte_by_byte(play: Play) -> None:
    data = b"".join(CONVERSATION)

    async def scene() -> None:
        async with serving(echo) as house:
            assert await _converse(house, [data[at : at + 1] for at in range(len(data))]) == EXPECTED

    play(scene)


def test_the_application_sees_what_was_sent(play: Play) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await respond(send, b"")

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            await wire.ask(
                b"PUT /a%2Fb%C3%A9//c?q=%20&r HTTP/1.1\r\nHost: a:80\r\nX-One:  two three \t\r\nX-None:\r\n\r\n"
            )
            scope = seen[0]
            assert (scope["method"], scope["path"], scope["raw_path"]) == (
                "PUT",
                "/a/bé//c",
                b"/a%2Fb%C3%A9//c",
            )
            assert scope["query_string"] == b"q=%20&r"
            assert scope["headers"] == [(b"host", b"a:80"), (b"x-one", b"two three"), (b"x-none", b"")]
            assert scope["client"] == wire.writer.get_extra_info("sockname")
            assert scope["server"] == ("127.0.0.1", house.port)

    play(scene)


def test_pipelined_requests_are_served_one_at_a_time_and_the_flood_is_held_back(play: Play) -> None:
    running = most = 0
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        await respond(send, scope["path"].encode())
        running -= 1

    async def scene() -> None:
        async with serving(app) as house, house.wire() as wire:
            requests = [
                b"GET /%d HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (n, b"x" * 60_000) for n in range(300)
            ]
            sending = asyncio.create_task(wire.send(b"".join(requests)))
            await eventually(lambda: running)
            await asyncio.sleep(0.1)
            assert not sending.done(), "18 MB were read although nobody wanted them"
            go.set()
            for number in range(300):
                assert (await wire.answer()).body == b"/%d" % number
            await sending
            assert most == 1

    play(scene)


def test_a_body_is_only_read_as_fast_as_the_application_takes_it(play: Play) -> None:
    go = asyncio.Event()
    body = b"x" * 15_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await respond(send, b"%d" % len(await read_whole(receive)))

    async def scene() -> None:
        # The wait is longer than the body may take: it is ours, not the client's.
        async with serving(app, HttpLimits(body_timeout_s=0.5)) as house, house.wire() as wire:
            sending = asyncio.create_task(wire.send(post(body)))
            await asyncio.sleep(0.7)
            assert not sending.done()
            go.set()
            assert (await wire.answer()).body == b"15000000"
            await sending

    play(scene)


def test_continue_is_said_only_when_the_application_asks_for_the_body(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = b"" if scope["path"] == "/no" else await read_whole(receive)
        await respond(send, body, 403 if scope["path"] == "/no" else 200)

    async def scene() -> None:
        async with serving(app) as house:
            async with house.wire() as wire:
                head = post(b"hello", "/", "Expect: 100-continue").removesuffix(b"hello")
                assert (await wire.ask(head)).status == 100
                assert (await wire.ask(b"hel", b"lo")).body == b"hello"
                # Who does not wait needs no word.
                assert (await wire.ask(head + b"hello")).body == b"hello"
                assert (await wire.ask(GET)).status == 200
            async with house.wire() as wire:
                refused = await wire.ask(post(b"hello", "/no", "Expect: 100-continue").removesuffix(b"hello"))
                assert (refused.status, refused.headers["connection"]) == (403, "close")
                assert await wire.closed()

    play(scene)


def test_an_answer_may_come_before_the_body(play: Play) -> None:
    """Refused by the headers alone: a short rest is dropped and the connection kept, a long one closes it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"no", 429)

    async def scene() -> None:
        async with serving(app) as house:
            async with house.wire() as wire:
                for _ in range(3):
                    head, body = (
                        post(b"", "/", "X: y").replace(b"Length: 0", b"Length: 200000"),
                        b"x" * 200_000,
                    )
                    assert (await wire.ask(head)).status == 429
                    await wire.send(body[:1000], body[1000:])
                assert "connection" not in (await wire.ask(GET)).headers
            async with house.wire() as wire:
                answer = await wire.ask(post(b"x" * 15_000_000))
                assert (answer.status, answer.headers["connection"]) == (429, "close")
                assert await wire.closed()

    play(scene)
