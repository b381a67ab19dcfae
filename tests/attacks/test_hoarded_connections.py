"""Connections that are opened and kept, without a key or with one: clients of other tenants must always get in.

The cap is small here, and real connections are counted; the gateway and its keys are real.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from server.http.front_stage import Play, Wire, eventually
from server.locked_stage import Locked, locked
from server.stage import opened

from headgate.server.http import HttpLimits
from headgate.server.http.limits import STRANGER_IDLE_S

CAP: Final = 20
ROOM: Final = CAP - CAP // 10
"""What those without a key may have."""
LIMITS: Final = HttpLimits(connections=CAP)
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW_FORM: Final = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 900\r\n\r\nkey="
)


@asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    one = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield one
    finally:
        one.writer.close()
        with contextlib.suppress(ConnectionError):
            await one.writer.wait_closed()


def models(key: str) -> bytes:
    return f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\n\r\n".encode()


async def served(stack: AsyncExitStack, gateway: Locked, request: bytes) -> tuple[Wire, int]:
    """A connection that stays open, and the answer to its first request."""
    one = await stack.enter_async_context(wire(gateway.house.port))
    async with asyncio.timeout(10):
        return one, (await one.ask(request)).status


async def _keep_busy(stack: AsyncExitStack, gateway: Locked) -> None:
    """As many as may be served without a key, each with a form that never ends."""
    for _ in range(ROOM):
        one = await stack.enter_async_context(wire(gateway.house.port))
        await one.send(SLOW_FORM)
    front = gateway.house.serving.server._front
    assert front is not None
    await eventually(lambda: len(front.running) == ROOM)


async def open_now(*wires: Wire) -> int:
    """How many of them the gateway has not closed."""
    await asyncio.sleep(0.05)
    return sum(not one.reader.at_eof() and one.reader.exception() is None for one in wires)


def test_idle_connections_without_a_key_make_room(play: Play) -> None:
    """As many as there may be, each after one open request; then as many clients of two tenants, who all are served."""

    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            keys = [await gateway.key(tenant=tenant) for tenant in ("a", "b")]
            strangers = [(await served(stack, gateway, HEALTH))[0] for _ in range(CAP)]
            assert await open_now(*strangers) == ROOM
            known = []
            for number in range(1, CAP + 1):
                one, status = await served(stack, gateway, models(keys[number % 2]))
                assert status == 200, number
                known.append(one)
            assert await open_now(*strangers) == 0
            assert await open_now(*known) == CAP
            # A tenant that has no more than half keeps what it has.
            late = await stack.enter_async_context(wire(gateway.house.port))
            answer = await late.answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert await open_now(*known) == CAP
            assert all([(await one.ask(models(keys[0]))).status == 200 for one in known])

    play(scene)


def test_one_tenant_keeps_at_most_half_while_others_want_in(play: Play) -> None:
    """Its longest idle connections are closed, those that it opened for the others too. Alone it has more."""

    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            greedy = await gateway.key(tenant="greedy", role="read")
            other = await gateway.key(tenant="other", role="read")
            many = []
            for number in range(2 * CAP):
                one, status = await served(stack, gateway, models(greedy))
                assert status == 200, number
                many.append(one)
            assert await open_now(*many) == await open_now(*many[-ROOM:]) == ROOM
            few = []
            for number in range(CAP // 2):
                one, status = await served(stack, gateway, models(other))
                assert status == 200, number
                few.append(one)
            assert await open_now(*many) == await open_now(*many[-CAP // 2 :]) == CAP // 2
            for _ in range(CAP):
                one = await stack.enter_async_context(wire(gateway.house.port))
                await one.send(models(greedy))
            assert await open_now(*few) == CAP // 2
            assert all([(await one.ask(models(other))).status == 200 for one in few])

    play(scene)


def test_busy_connections_of_one_tenant_never_get_the_last_tenth(play: Play) -> None:
    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            greedy, other = await gateway.key(tenant="greedy"), await gateway.key(tenant="other")
            slow = [
                b"POST /v1/jobs HTTP/1.1",
                b"Host: a",
                b"Content-Length: 500",
                b"x-api-key: %b",
                b"",
                b"{",
            ]
            for _ in range(ROOM):
                one = await stack.enter_async_context(wire(gateway.house.port))
                await one.send(b"\r\n".join(slow) % greedy.encode())
            front = gateway.house.serving.server._front
            assert front is not None
            await eventually(lambda: len(front.running) == ROOM)
            assert (await served(stack, gateway, models(greedy)))[1] == 503
            for number in range(CAP // 10):
                assert (await served(stack, gateway, models(other)))[1] == 200, number

    play(scene)


def test_the_longest_idle_goes_first(play: Play) -> None:
    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            key = await gateway.key()
            strangers = [(await served(stack, gateway, HEALTH))[0] for _ in range(ROOM)]
            for one in strangers[:5]:
                assert (await one.ask(HEALTH)).status == 200
            for _ in range(CAP - 5):
                assert (await served(stack, gateway, models(key)))[1] == 200
            assert await open_now(*strangers[:5]) == 5
            assert await open_now(*strangers[5:]) == 0

    play(scene)


def test_silent_and_unfinished_connections_make_room_too(play: Play) -> None:
    """One byte of a request, or none, is no request."""

    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            key = await gateway.key()
            for number in range(CAP):
                one = await stack.enter_async_context(wire(gateway.house.port))
                await one.send(b"GET /heal" if number % 2 else b"")
            await eventually(lambda: gateway.house.serving.server.connections == CAP)
            for number in range(CAP):
                assert (await served(stack, gateway, models(key)))[1] == 200, number

    play(scene)


def test_busy_connections_without_a_key_never_get_the_last_tenth(play: Play) -> None:
    """A login that is never finished is a request, and is served for a minute. Those with keys have places that it cannot take."""

    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            key = await gateway.key()
            await _keep_busy(stack, gateway)
            for request in (HEALTH, SLOW_FORM, models("hg_nobody"), models(key + "x")):
                one = await stack.enter_async_context(wire(gateway.house.port))
                answer = await one.ask(request)
                assert (answer.status, answer.code) == (503, "too_many_connections")
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            for number in range(CAP // 10):
                assert (await served(stack, gateway, models(key)))[1] == 200, number

    play(scene)


def test_an_answered_client_that_goes_on_sending_makes_room(play: Play) -> None:
    """Its request was refused for want of a key; the rest of its body, which never comes, does not keep its place."""

    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            key = await gateway.key()
            head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{"
            for _ in range(CAP):
                assert (await served(stack, gateway, head))[1] == 401
            for number in range(CAP):
                assert (await served(stack, gateway, models(key)))[1] == 200, number

    play(scene)


def test_somebody_who_has_logged_in_is_no_stranger(play: Play) -> None:
    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            body = f"key={await gateway.key(role='operate')}".encode()
            form = ["Content-Type: application/x-www-form-urlencoded", "Sec-Fetch-Site: same-origin"]
            cookie = (await gateway.post("/login", body, *form)).headers["set-cookie"].partition(";")[0]
            await _keep_busy(stack, gateway)
            page = f"GET /models HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode()
            assert (await served(stack, gateway, page))[1] == 200
            assert (await served(stack, gateway, page.replace(b"session=", b"session=x")))[1] == 503

    play(scene)


def test_without_a_key_a_connection_is_idle_for_five_seconds_only(play: Play) -> None:
    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway, AsyncExitStack() as stack:
            known, _ = await served(stack, gateway, models(await gateway.key()))
            stranger, _ = await served(stack, gateway, HEALTH)
            silent = await stack.enter_async_context(wire(gateway.house.port))
            async with asyncio.timeout(2 * STRANGER_IDLE_S):
                assert await stranger.rest() == await silent.rest() == b""
            assert await open_now(known) == 1

    play(scene)


def test_without_keys_nothing_changes(play: Play) -> None:
    """Nobody is a stranger on a machine of one's own: the cap is the cap, and idle connections stay."""

    async def scene() -> None:
        async with opened({}, limits=LIMITS) as house, AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(wire(house.port)) for _ in range(CAP)]
            for one in wires:
                assert (await one.ask(HEALTH)).status == 200
            late = await stack.enter_async_context(wire(house.port))
            answer = await late.answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert await open_now(*wires) == CAP
            assert all([(await one.ask(HEALTH)).status == 200 for one in wires])

    play(scene)


def test_places_come_back_whoever_had_them(play: Play) -> None:
    async def scene() -> None:
        async with locked(limits=LIMITS) as gateway:
            key, server = await gateway.key(), gateway.house.serving.server
            for _ in range(3):
                async with AsyncExitStack() as stack:
                    for request in [HEALTH, models(key), b"GET /x", models("hg_nobody")] * CAP:
                        one = await stack.enter_async_context(wire(gateway.house.port))
                        with contextlib.suppress(ConnectionError):
                            await one.send(request)
                await eventually(lambda: server.connections == 0)
                front = server._front
                assert front is not None
                assert (front.known, front.shares, front.strangers) == (0, {}, {})

    play(scene)
