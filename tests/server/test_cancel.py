"""A client that leaves is never worked for: its upstream call ends, and everything it held is free at once.

Every window of a request's life, every inference route, every provider; again and again, by both ways of leaving.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from conftest import Figure
from contracts.provider_stage import Part
from providers.stubs.openai import OpenAIStub, error
from server.http.front_stage import Play, Wire
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ask,
    asking,
    connected,
    front_of,
    one_model,
    openai_upstream,
    stub_of,
    until,
    upstream_of,
)

ROUNDS: Final = 20
LONGEST_S: Final = 1.0
"""From the client's leaving to the upstream's noticing."""
REMOTE: Final = ("openai", "anthropic", "ollama", "bedrock")


def every_way() -> list[Any]:
    """(provider, path, streamed, part): each route that the provider has, in each window."""
    windows = [
        ("before_first_byte", True, Part.SILENT),
        ("mid_stream", True, Part.STALLING_STREAM),
        ("whole", False, Part.SILENT),
    ]
    return [
        pytest.param(provider, path, streamed, part, id=f"{provider}-{path.split('/')[2]}-{window}")
        for provider in REMOTE
        for path in (CHAT, COMPLETIONS, EMBEDDINGS)
        for window, streamed, part in windows
        if path != EMBEDDINGS or (provider in {"openai", "ollama"} and not streamed)
    ]


@asynccontextmanager
async def house_before(provider: str, part: Part) -> AsyncIterator[tuple[House, Any]]:
    """Pacing that would be used up after a few rounds, were it not given back."""
    async with stub_of(provider, part) as stub:
        upstream = upstream_of(provider, stub, part, slots=2, tokens_per_minute=2000)
        async with opened(one_model(upstream)) as house:
            yield house, stub


def leave(wire: Wire, number: int) -> None:
    """By a reset, or politely."""
    if number % 2:
        wire.reset()
    else:
        wire.writer.close()


def everything_is_free(house: House) -> bool:
    [upstream] = house.gateway.routes.find("m").upstreams
    pacing = upstream.gate.admission.pacing
    return (
        house.all_free
        and not upstream.visitors
        and upstream.budget.left == upstream.budget.capacity
        and not round(pacing._tokens)
        and not house.gateway.requests._in_flight
        and not front_of(house).running
    )


@pytest.mark.parametrize(("provider", "path", "streamed", "part"), every_way())
def test_the_upstream_sees_the_client_leave(
    play: Play, figure: Figure, provider: str, path: str, streamed: bool, part: Part
) -> None:
    took: list[float] = []

    async def scene() -> None:
        async with house_before(provider, part) as (house, stub):
            for number in range(ROUNDS):
                stub.left.clear()
                wire = await connected(house)
                await wire.send(asking(path, stream=streamed))
                await until(lambda number=number: stub.calls == number + 1)  # type: ignore[misc]
                if part is Part.STALLING_STREAM:
                    assert (await wire.head())[0] == 200
                left_at = time.monotonic()
                leave(wire, number)
                await asyncio.wait_for(stub.left.wait(), LONGEST_S)
                took.append(time.monotonic() - left_at)
                await until(lambda: everything_is_free(house), LONGEST_S)

    play(scene)
    if (provider, path) == ("openai", CHAT):
        what = "mid-stream" if part is Part.STALLING_STREAM else "streamed" if streamed else "whole"
        figure(
            f"cancel, {what}: upstream sees it",
            f"{max(took) * 1000:.1f} ms at most (≤ 1000), {ROUNDS}/{ROUNDS}",
        )


@pytest.mark.parametrize(
    ("path", "streamed"),
    [(CHAT, False), (CHAT, True), (COMPLETIONS, False), (COMPLETIONS, True), (EMBEDDINGS, False)],
)
def test_who_leaves_the_queue_is_never_sent(play: Play, path: str, streamed: bool) -> None:
    async def scene() -> None:
        async with (
            stub_of("openai", Part.SILENT) as stub,
            opened(one_model(upstream_of("openai", stub, Part.SILENT, slots=1, depth=5))) as house,
        ):
            holder = await connected(house)
            await holder.send(asking(path, stream=streamed))
            await until(lambda: stub.calls == 1)
            for number in range(ROUNDS):
                wires = [await connected(house) for _ in range(3)]
                for wire in wires:
                    await wire.send(asking(path, stream=streamed))
                await until(lambda: house.gateway.status().rt_queue == 3)
                for wire in wires:
                    leave(wire, number)
                await until(lambda: house.gateway.status().rt_queue == 0, LONGEST_S)
            assert stub.calls == 1
            holder.reset()
            await until(lambda: everything_is_free(house), LONGEST_S)

    play(scene)


@pytest.mark.parametrize("streamed", [False, True])
def test_who_leaves_between_attempts_gets_its_retry_back(play: Play, streamed: bool) -> None:
    """A retry that was paid for and never sent costs nothing."""

    async def scene() -> None:
        async with OpenAIStub(error(500)) as stub:
            upstream = openai_upstream(stub, breaker=False)
            settings = one_model(upstream, retry={"first_wait_s": 30, "longest_wait_s": 60, "jitter": "none"})
            async with opened(settings) as house:
                for number in range(ROUNDS):
                    wire = await connected(house)
                    await wire.send(asking(CHAT, stream=streamed))
                    await until(lambda number=number: stub.calls == number + 1)  # type: ignore[misc]
                    await asyncio.sleep(0.01)
                    leave(wire, number)
                    await until(lambda: everything_is_free(house), LONGEST_S)
                assert stub.calls == ROUNDS

    play(scene)


@pytest.mark.parametrize(
    ("part", "streamed"), [(Part.SILENT, False), (Part.SILENT, True), (Part.STALLING_STREAM, True)]
)
def test_the_last_sharer_of_a_key_ends_the_call(play: Play, part: Part, streamed: bool) -> None:
    """While one of those who brought the key still waits, the call goes on; when the last leaves, it ends."""

    async def scene() -> None:
        async with house_before("openai", part) as (house, stub):
            for number in range(ROUNDS):
                stub.left.clear()
                key = f"Idempotency-Key: round-{number}"
                wires = [await connected(house) for _ in range(3)]
                for wire in wires:
                    await wire.send(asking(CHAT, key, stream=streamed))
                await until(lambda number=number: stub.calls == number + 1)  # type: ignore[misc]
                await asyncio.sleep(0.005)
                for wire in wires[:2]:
                    leave(wire, number)
                await asyncio.sleep(0.02)
                assert not stub.left.is_set()
                leave(wires[2], number)
                await asyncio.wait_for(stub.left.wait(), LONGEST_S)
                await until(lambda: everything_is_free(house), LONGEST_S)
                assert not house.gateway.keyed._live

    play(scene)


def test_who_leaves_while_its_body_comes_leaves_nothing(play: Play) -> None:
    async def scene() -> None:
        async with house_before("openai", Part.SILENT) as (house, stub):
            for number in range(ROUNDS):
                wire = await connected(house)
                await wire.send(asking(CHAT)[:-10])
                await until(lambda: len(front_of(house).running) == 1)
                leave(wire, number)
                await until(lambda: everything_is_free(house), LONGEST_S)
            assert stub.calls == 0

    play(scene)


def test_who_leaves_gives_its_keys_place_back(play: Play) -> None:
    """A key that may have one request at a time can go on at once."""

    async def scene() -> None:
        async with keyed_door() as door, stub_of("openai", Part.SILENT) as stub:
            key = f"Authorization: Bearer {await door.key(parallel=1)}"
            settings = one_model(upstream_of("openai", stub, Part.SILENT))
            async with opened(settings, access=door.access) as house:
                for number in range(ROUNDS):
                    wire = await connected(house)
                    await wire.send(asking(CHAT, key, stream=bool(number % 2)))
                    await until(lambda number=number: stub.calls == number + 1)  # type: ignore[misc]
                    refused = await ask(house, CHAT, key)
                    assert (refused.status, refused.code) == (429, "rate_limited")
                    leave(wire, number)
                    await until(lambda: everything_is_free(house), LONGEST_S)

    play(scene)


@pytest.mark.parametrize("provider", ["simulated", "ollama"])
def test_leaving_at_any_instant_loses_nothing(play: Play, provider: str) -> None:
    """Hundreds of clients on few slots, whole and streamed, with shared keys and without; half of them leave at some moment."""
    chance = random.Random(4)

    async def visit(house: House, number: int) -> bool:
        headers = (f"Idempotency-Key: {number % 40}",) if number % 3 == 0 else ()
        streamed = number % 40 % 2 == 0
        wire = await connected(house)
        await asyncio.sleep(chance.uniform(0, 0.3))
        await wire.send(asking(CHAT, *headers, stream=streamed))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.05))
            leave(wire, number)
            return False
        answer = await asyncio.wait_for(wire.answer(), 20)
        wire.writer.close()
        assert answer.status == 200, answer
        assert not streamed or answer.body.endswith(b"data: [DONE]\n\n")
        return True

    async def scene() -> None:
        part = Part.STREAM
        async with stub_of(provider, part) as whole_stub:
            upstream = upstream_of(provider, whole_stub, part, slots=3, depth=0)
            if provider == "simulated":
                upstream = {
                    "provider": "simulated",
                    "latency_s": 0.005,
                    "chunk_gap_s": 0.001,
                    "slots": 3,
                    "depth": 0,
                }
            async with opened(one_model(upstream)) as house:
                served = await asyncio.gather(*(visit(house, number) for number in range(400)))
                assert 100 < sum(served) < 300
                await until(lambda: everything_is_free(house), LONGEST_S)
                assert not house.gateway.keyed._live
                assert not house.gateway._once._running

    play(scene)
