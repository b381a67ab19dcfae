"""How requests end when their callers leave or their upstreams do: what was paid for is kept, what runs is stopped."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from calls.bodies import (
    COUNT,
    END,
    WORD,
    Passing,
    a_stream,
    answer,
    answer_once,
    bytes_of,
    calls,
    keyed,
    put,
    stream_once,
)
from stage import USER, Stage, set_stage

from headgate import wiring
from headgate.calls.streams import AFTER_END_S
from headgate.core import events
from headgate.core.answer import Usage
from headgate.core.call import Format
from headgate.core.errors import Draining, OutputInvalid, StreamCut
from headgate.planner import virtual
from headgate.planner.virtual import World

LINGERS_S = 60.0


def passing(world: World, *pieces: bytes | float, **model: Any) -> tuple[Stage, Passing]:
    """A model whose upstream passes bodies on, and keeps its connection for a while after the end."""
    stage = set_stage(world, {}, keep_events=True, **model)
    provider = Passing(world, *(pieces or (WORD, COUNT, END)), LINGERS_S)
    put(stage, provider)
    return stage, provider


def ends(stage: Stage) -> list[str | None]:
    """How each request ended, as the listeners hear it."""
    return [
        event.error if isinstance(event, events.Responded) else "cancelled"
        for event in stage.events
        if isinstance(event, events.Responded | events.Cancelled)
    ]


# ---- The end marker, and what comes after it ------------------------------------------------------------------


def test_who_leaves_with_the_end_in_hand_has_had_the_whole_answer() -> None:
    """OpenAI's clients do: they close at [DONE], before the upstream does."""

    async def main(world: World) -> None:
        stage, provider = passing(world)
        stream = a_stream(stage.gateway)
        async with stream:
            async for piece in stream:
                if piece == END:
                    break
        assert stream.usage == Usage(7, 9)
        assert ends(stage) == [None]
        assert stage.all_free
        assert world.clock.now() == pytest.approx(0.0)
        assert provider.closed == 1

    virtual.run(main)


MARKED = {
    "apart": (WORD, COUNT, END),
    "together": (WORD + COUNT + END,),
    "split": (WORD, COUNT + b"data: [DO", b"NE]\n\n"),
    "in lines": (WORD, COUNT, b"data: [DONE]\n", b"\n"),
    "a comment after it": (WORD, COUNT, END, b": keep-alive\n\n", b"\n"),
    "byte by byte": tuple(bytes([byte]) for byte in WORD + COUNT + END),
    "without its line": (WORD, COUNT, b"data: [DONE]"),
}


@pytest.mark.parametrize(
    ("pieces", "rescued"),
    # A stream that can be rescued is handed out in whole events.
    [
        (MARKED[name], rescued)
        for name in MARKED
        for rescued in (False, True)
        if not (rescued and name == "without its line")
    ],
)
def test_a_stream_is_over_within_a_second_of_its_end_marker(pieces: tuple[bytes, ...], rescued: bool) -> None:
    """However long the upstream keeps its connection."""

    async def main(world: World) -> None:
        stage, provider = passing(world, *pieces, stream_rescue=rescued)
        stream = a_stream(stage.gateway)
        assert await bytes_of(stream) == b"".join(pieces)
        assert world.clock.now() <= AFTER_END_S
        assert stream.usage == Usage(7, 9)
        assert (ends(stage), provider.closed) == ([None], 1)
        assert stage.all_free

    virtual.run(main)


def test_so_is_one_that_the_library_reads() -> None:
    async def main(world: World) -> None:
        stage, provider = passing(world)
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            assert "".join([chunk.text async for chunk in stream]) == "hi"
        assert world.clock.now() <= AFTER_END_S
        assert (stream.usage, provider.closed) == (Usage(7, 9), 1)

    virtual.run(main)


def test_a_text_that_speaks_of_the_end_marker_is_not_the_end() -> None:
    """The model pauses after it for as long as any other."""
    spoken = [b'data: {"choices":[{"delta":{"content":"say data: [DONE]"}}]}\n\n', b"data: x [DONE]\n\n"]

    async def main(world: World) -> None:
        for words in spoken:
            stage, _ = passing(world, WORD, words, 20.0, WORD, COUNT, END)
            assert await bytes_of(a_stream(stage.gateway)) == WORD + words + WORD + COUNT + END
            assert ends(stage) == [None]

    virtual.run(main)


def test_an_error_before_the_end_marker_is_the_end_too() -> None:
    """vLLM sends [DONE] even then; its connection may stay open all the same."""
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'

    async def main(world: World) -> None:
        stage, provider = passing(world, WORD, error, END)
        with pytest.raises(StreamCut, match="out of memory"):
            await bytes_of(a_stream(stage.gateway))
        assert world.clock.now() <= AFTER_END_S
        assert (ends(stage), provider.closed) == (["transient 500"], 1)

    virtual.run(main)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_stream_that_says_why_it_is_empty_is_an_answer(reason: str) -> None:
    """Its tokens were used up in thinking: the caller is told so, once, and pays once."""
    said = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()

    async def main(world: World) -> None:
        stage, provider = passing(world, said, END)
        stream = a_stream(stage.gateway)
        assert await bytes_of(stream) == said + END
        assert (stream.attempts, provider.closed) == (1, 1)
        assert world.clock.now() <= AFTER_END_S

    virtual.run(main)


def test_an_empty_stream_is_asked_for_again_as_soon_as_it_ends() -> None:
    async def main(world: World) -> None:
        stage, provider = passing(world, COUNT, END, retry={"max_attempts": 3})
        with pytest.raises(OutputInvalid):
            await bytes_of(a_stream(stage.gateway))
        assert (len(provider.seen), provider.closed) == (3, 3)
        assert world.clock.now() == pytest.approx(0.0)
        assert stage.all_free

    virtual.run(main)


# ---- Callers that leave ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "fields"), [(Format.CHAT, {}), (Format.COMPLETIONS, {"prompt": "Once upon"})]
)
def test_leaving_a_translated_stream_stops_the_provider_at_once(
    wanted: Format, fields: dict[str, Any]
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "chunks": 5, "chunk_gap_s": 10})
        stream = a_stream(stage.gateway, wanted, **fields)
        async with stream:
            await anext(stream)
            assert stage.provider.in_flight == 1
        assert stage.provider.in_flight == 0
        assert stage.provider.cancelled == 1
        assert stage.all_free

    virtual.run(main)


def test_a_completion_s_stream_that_goes_through_chat_is_read_to_its_end() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        provider = Passing(world, WORD, COUNT, END, formats=frozenset({Format.CHAT}))
        put(stage, provider)
        stream = a_stream(
            stage.gateway, Format.COMPLETIONS, prompt="Once upon", stream_options={"include_usage": True}
        )
        whole = await bytes_of(stream)
        first, count = (json.loads(line.removeprefix(b"data: ")) for line in whole.split(b"\n\n")[:2])
        assert (first["object"], first["choices"][0]["text"]) == ("text_completion", "hi")
        assert count["usage"]["total_tokens"] == 16
        assert whole.endswith(END)
        assert (stream.usage, provider.closed) == (Usage(7, 9), 1)
        [asked] = provider.seen
        assert (asked.format, set(asked.fields)) == (Format.CHAT, {"messages", "stream_options"})

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
        caller = asyncio.create_task(answer_once(gateway))
        await world.clock.sleep(2)
        caller.cancel()
        await asyncio.wait({caller})
        await world.clock.sleep(10)
        assert (await answer_once(gateway)).replayed
        assert calls(gateway) == 1
        await gateway.aclose()

    virtual.run(main)


def test_the_end_of_a_keyed_stream_comes_only_when_it_is_whole(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path)
        put(gateway, Passing(world, WORD, COUNT, END, LINGERS_S))
        stream = await stream_once(gateway)
        async with stream:
            came = [(piece, world.clock.now()) async for piece in stream]
        assert b"".join(piece for piece, _ in came) == WORD + COUNT + END
        assert [at for piece, at in came if piece == END] == [pytest.approx(AFTER_END_S)]
        await gateway.aclose()

    virtual.run(main)


# ---- Bodies that pass through ---------------------------------------------------------------------------------


def test_gathering_does_not_touch_what_passes_through() -> None:
    async def main(world: World) -> None:
        stage, provider = passing(world, gather={"size": 5, "wait_ms": 50})
        reply = await answer(stage.gateway, messages=[{"role": "user"}], n=2)
        assert reply.body == b"as it came"
        [asked] = provider.seen
        assert {name: bytes(value) for name, value in asked.fields.items()} == {
            "messages": b'[{"role": "user"}]',
            "n": b"2",
        }
        assert asked.read is None
        assert world.clock.now() == pytest.approx(0.0)

    virtual.run(main)


def test_what_no_upstream_reads_is_not_checked_here() -> None:
    """A server may take more than OpenAI does: prompts in a list, messages of next year."""

    async def main(world: World) -> None:
        stage, provider = passing(world)
        await answer(stage.gateway, messages="next year", stream_options=7)
        await answer(stage.gateway, Format.COMPLETIONS, prompt=["one", "two"])
        await answer(stage.gateway, Format.EMBEDDINGS, input=[[1, 2], [3]])
        assert [asked.format for asked in provider.seen] == [
            Format.CHAT,
            Format.COMPLETIONS,
            Format.EMBEDDINGS,
        ]

    virtual.run(main)


def test_those_who_wait_at_a_gate_that_a_reload_replaced_are_dismissed_too() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60, "slots": 1})
        waiting = [asyncio.create_task(answer(stage.gateway)) for _ in range(2)]
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
