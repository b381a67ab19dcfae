"""How relayed requests end when their callers leave: what was paid for is kept, what runs is stopped, the books are right."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from calls.test_relay import a_request, calls, keyed
from stage import Stage, set_stage

from headgate import wiring
from headgate.core import events
from headgate.core.errors import Draining
from headgate.core.messages import Usage
from headgate.core.wire import WireAnswer, WireRequest
from headgate.planner import virtual
from headgate.planner.virtual import World

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
COUNT = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}\n\n'
DONE = b"data: [DONE]\n\n"


class Lingering:
    """Speaks OpenAI's format, and keeps its connection for a while after the end."""

    most_inputs = 1

    def __init__(self, world: World) -> None:
        self._world = world

    async def relay(self, request: WireRequest) -> WireAnswer:
        assert bytes(request.fields["n"]) == b"2"
        return WireAnswer(body=b"as it came", usage=Usage(1, 1))

    async def relay_stream(self, request: WireRequest) -> AsyncIterator[bytes]:
        for piece in (WORD, COUNT, DONE):
            yield piece
        await self._world.clock.sleep(60)

    async def aclose(self) -> None:
        """Nothing to close."""


def lingering(world: World, **model: Any) -> Stage:
    stage = set_stage(world, {}, keep_events=True, **model)
    stage.gateway.routes.find("m").upstreams[0].provider = Lingering(world)  # type: ignore[assignment]
    return stage


def test_who_leaves_with_the_end_in_hand_has_had_the_whole_answer() -> None:
    """OpenAI's clients do: they close at [DONE], before the upstream does."""

    async def main(world: World) -> None:
        stage = lingering(world)
        stream = stage.gateway.wire.stream(a_request(stream=True))
        async with stream:
            async for piece in stream:
                if piece == DONE:
                    break
        assert stream.usage == Usage(7, 9)
        told = [event for event in stage.events if isinstance(event, events.Responded | events.Cancelled)]
        assert [type(event) for event in told] == [events.Responded]
        assert stage.all_free
        assert world.clock.now() < 1

    virtual.run(main)


def test_an_answer_that_is_being_stored_is_stored_although_its_caller_left(tmp_path: Path) -> None:
    """It was paid for: the next one with the key must not pay again."""

    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path)
        store = gateway.durable.store
        finish = store.finish

        async def slowly(*arguments: Any, **options: Any) -> bool:
            await world.clock.sleep(5)
            return await finish(*arguments, **options)

        store.finish = slowly  # type: ignore[method-assign]
        caller = asyncio.create_task(gateway.wire.answer_once(a_request(), "k", b"body"))
        await world.clock.sleep(2)
        caller.cancel()
        await asyncio.wait({caller})
        await world.clock.sleep(10)
        assert (await gateway.wire.answer_once(a_request(), "k", b"body")).replayed
        assert calls(gateway) == 1
        await gateway.aclose()

    virtual.run(main)


def test_the_end_of_a_keyed_stream_comes_only_when_it_is_whole(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path)
        gateway.routes.find("m").upstreams[0].provider = Lingering(world)  # type: ignore[assignment]
        stream = await gateway.wire.stream_once(a_request(stream=True), "k", b"body")
        async with stream:
            came = [(piece, world.clock.now()) async for piece in stream]
        assert b"".join(piece for piece, _ in came) == WORD + COUNT + DONE
        assert [at for piece, at in came if piece == DONE] == [pytest.approx(1.0)]
        await gateway.aclose()

    virtual.run(main)


def test_gathering_does_not_touch_what_passes_through() -> None:
    async def main(world: World) -> None:
        stage = lingering(world, gather={"size": 5, "wait_ms": 50})
        reply = await stage.gateway.wire.answer(a_request(messages=[{"role": "user"}], n=2))
        assert reply.body == b"as it came"

    virtual.run(main)


def test_leaving_a_translated_stream_stops_the_provider_at_once() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "chunks": 5, "chunk_gap_s": 10})
        stream = stage.gateway.wire.stream(a_request(stream=True))
        async with stream:
            await anext(stream)
            assert stage.provider.in_flight == 1
        assert stage.provider.in_flight == 0
        assert stage.provider.cancelled == 1

    virtual.run(main)


def test_those_who_wait_at_a_gate_that_a_reload_replaced_are_dismissed_too() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60, "slots": 1})
        waiting = [asyncio.create_task(stage.gateway.wire.answer(a_request())) for _ in range(2)]
        await world.clock.sleep(1)
        other = {"upstreams": [{"provider": "simulated", "latency_s": 1}]}
        stage.gateway.reload(wiring.read_settings({"models": {"m": other}}, env={}))
        assert stage.gateway.status().rt_queue == 1
        stage.gateway.routes.close()
        with pytest.raises(Draining):
            await waiting[1]
        assert (await waiting[0]).body
        assert stage.gateway.status().rt_queue == 0

    virtual.run(main)


def test_a_stream_that_says_why_it_is_empty_is_an_answer() -> None:
    """Its tokens were used up in thinking: the caller is told so, once, and pays once."""
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'

    class Thinker(Lingering):
        async def relay_stream(self, request: WireRequest) -> AsyncIterator[bytes]:
            for piece in (end, DONE):
                yield piece

    async def main(world: World) -> None:
        stage = lingering(world)
        stage.gateway.routes.find("m").upstreams[0].provider = Thinker(world)  # type: ignore[assignment]
        stream = stage.gateway.wire.stream(a_request(stream=True))
        async with stream:
            assert b"".join([piece async for piece in stream]) == end + DONE
        assert stream.attempts == 1

    virtual.run(main)
