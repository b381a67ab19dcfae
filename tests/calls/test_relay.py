"""Requests in OpenAI's format from end to end: retried like any other, byte-faithful, honest, once under a key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stage import set_stage

from headgate import wiring
from headgate.calls.relaying import Stream
from headgate.core import events
from headgate.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    KeyMismatch,
    OutputInvalid,
    QueueFull,
    StreamCut,
    UpstreamUnavailable,
)
from headgate.core.wire import Endpoint, WireRequest
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Summarise this."}]}
_ids = iter(range(10**9))


def a_request(endpoint: Endpoint = Endpoint.CHAT, *, stream: bool = False, **fields: Any) -> WireRequest:
    body = fields or CHAT
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    return WireRequest(
        id=f"r{next(_ids)}", endpoint=endpoint, model="m", fields=raw, size_bytes=100, stream=stream
    )


async def text_of(stream: Stream) -> str:
    """What a client makes of the events."""
    async with stream:
        whole = b"".join([piece async for piece in stream])
    *events, end = whole.decode().strip().split("\n\n")
    assert end == "data: [DONE]"
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    return "".join(body["choices"][0]["delta"].get("content", "") for body in bodies if body["choices"])


def run(main: Any) -> None:
    virtual.run(main)


def test_an_answer_has_openais_shape_and_its_story() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 2.0, "script": [503, "ok"]}, retry=NO_JITTER)
        reply = await stage.gateway.wire.answer(a_request())
        body = json.loads(reply.body)
        assert body["object"] == "chat.completion"
        assert body["model"] == "m"
        assert body["choices"][0]["message"]["content"]
        assert body["usage"]["total_tokens"] == reply.usage.total_tokens
        assert (reply.attempts, reply.upstream) == (2, "simulated")
        # Two calls of two seconds and a wait of one: none of it is our own work.
        assert reply.upstream_ms == pytest.approx(reply.latency_ms) == pytest.approx(5000)
        assert stage.all_free

    run(main)


def test_a_completion_of_the_older_kind_is_translated_both_ways() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        reply = await stage.gateway.wire.answer(a_request(Endpoint.COMPLETIONS, prompt="Once upon"))
        body = json.loads(reply.body)
        assert body["object"] == "text_completion"
        assert body["choices"][0]["text"]
        stream = stage.gateway.wire.stream(a_request(Endpoint.COMPLETIONS, stream=True, prompt=["Once upon"]))
        async with stream:
            pieces = [piece async for piece in stream]
        assert json.loads(pieces[0].removeprefix(b"data: "))["choices"][0]["text"]
        assert pieces[-1] == b"data: [DONE]\n\n"
        with pytest.raises(InvalidRequest, match="prompt must be one text"):
            await stage.gateway.wire.answer(a_request(Endpoint.COMPLETIONS, prompt=["one", "two"]))

    run(main)


def test_embeddings_are_translated() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        reply = await stage.gateway.wire.answer(a_request(Endpoint.EMBEDDINGS, input=["one", "two"]))
        body = json.loads(reply.body)
        assert [entry["index"] for entry in body["data"]] == [0, 1]

    run(main)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ],
)
def test_a_body_that_makes_no_request_is_refused_before_it_queues(fields: dict[str, Any], param: str) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        with pytest.raises(InvalidRequest) as refused:
            await stage.gateway.wire.answer(a_request(**fields))
        assert refused.value.param == param
        assert stage.provider.calls == 0

    run(main)


def test_a_blank_answer_is_generated_anew_and_never_passed_on() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": ["blank", "ok"]}, retry=NO_JITTER)
        assert (await stage.gateway.wire.answer(a_request())).attempts == 2
        stage = set_stage(world, {"latency_s": 0, "outcome": "blank"}, retry=NO_JITTER)
        with pytest.raises(OutputInvalid):
            await stage.gateway.wire.answer(a_request())

    run(main)


def test_a_stream_is_the_answer_in_pieces() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"chunks": 5, "chunk_gap_s": 0.1})
        whole = json.loads((await stage.gateway.wire.answer(a_request())).body)
        stream = stage.gateway.wire.stream(a_request(stream=True))
        assert await text_of(stream) == whole["choices"][0]["message"]["content"]
        assert stream.usage is not None
        assert stage.all_free

    run(main)


def test_usage_is_told_in_a_stream_when_it_was_asked_for() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        wish = {"include_usage": True}
        stream = stage.gateway.wire.stream(a_request(stream=True, **CHAT, stream_options=wish))
        async with stream:
            pieces = [piece async for piece in stream]
        told = json.loads(pieces[-2].removeprefix(b"data: "))
        assert told["choices"] == []
        assert stream.usage is not None
        assert told["usage"]["total_tokens"] == stream.usage.total_tokens

    run(main)


def test_a_stream_is_retried_until_its_first_content_and_cut_after_it() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [503, "blank", "ok"]}, retry=NO_JITTER)
        stream = stage.gateway.wire.stream(a_request(stream=True))
        assert await text_of(stream)
        assert stream.attempts == 3

        stage = set_stage(world, {"latency_s": 0, "chunks": 5, "script": ["cut"]}, retry=NO_JITTER)
        stream = stage.gateway.wire.stream(a_request(stream=True))
        with pytest.raises(StreamCut, match="events"):
            await text_of(stream)
        assert stage.provider.calls == 1
        assert stage.all_free

    run(main)


def test_refusals_and_deadlines_are_those_of_any_call() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60, "slots": 1, "depth": 1})
        busy = [asyncio.create_task(stage.gateway.wire.answer(a_request())) for _ in range(2)]
        await world.clock.sleep(1)
        with pytest.raises(QueueFull):
            await stage.gateway.wire.answer(a_request())
        with pytest.raises(QueueFull):
            await text_of(stage.gateway.wire.stream(a_request(stream=True)))
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
        with pytest.raises(DeadlineExceeded):
            await stage.gateway.wire.answer(a_request(), deadline_s=5)
        assert stage.all_free
        assert stage.provider.cancelled == 2

    run(main)


# ---- Under a key -------------------------------------------------------------------------------------------


def keyed(world: World, folder: Path, **upstream: Any) -> Gateway:
    settings = wiring.read_settings(
        {
            "data_dir": str(folder),
            "jobs": {"lease_s": 3600},
            "models": {"m": {"upstreams": [{"provider": "simulated", "latency_s": 1.0, **upstream}]}},
        },
        env={},
    )
    return wiring.build(settings, clock=world.clock, chance=world.chance)


def calls(gateway: Gateway) -> int:
    made: int = gateway.routes.find("m").upstreams[0].provider.calls  # type: ignore[attr-defined]
    return made


def test_the_same_key_gets_the_same_bytes_and_one_call(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path)
        first = await gateway.wire.answer_once(a_request(), "k", b"body")
        again = await gateway.wire.answer_once(a_request(), "k", b"body")
        assert again.body == first.body
        assert (first.replayed, again.replayed) == (False, True)
        with pytest.raises(KeyMismatch):
            await gateway.wire.answer_once(a_request(), "k", b"another")
        assert calls(gateway) == 1
        await gateway.aclose()
        later = keyed(world, tmp_path)
        assert (await later.wire.answer_once(a_request(), "k", b"body")).body == first.body
        assert calls(later) == 0
        await later.aclose()

    run(main)


async def bytes_of(stream: Stream) -> bytes:
    async with stream:
        return b"".join([piece async for piece in stream])


def test_a_stream_under_a_key_is_written_once_and_read_by_all(tmp_path: Path) -> None:
    """Also by those who come in the middle, and by those who come a day later."""

    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, chunk_gap_s=1.0)

        async def read() -> bytes:
            return await bytes_of(await gateway.wire.stream_once(a_request(stream=True), "k", b"body"))

        early = asyncio.create_task(read())
        await world.clock.sleep(3)
        late = asyncio.create_task(read())
        whole = await early
        assert await late == whole
        stream = await gateway.wire.stream_once(a_request(stream=True), "k", b"body")
        assert await bytes_of(stream) == whole
        assert stream.replayed
        assert calls(gateway) == 1
        with pytest.raises(KeyMismatch):
            await bytes_of(await gateway.wire.stream_once(a_request(stream=True), "k", b"another"))
        await gateway.aclose()

    run(main)


def test_a_keyed_stream_goes_on_while_one_reader_stays_and_stops_with_the_last(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, chunk_gap_s=1.0)
        first = await gateway.wire.stream_once(a_request(stream=True), "k", b"body")
        second = await gateway.wire.stream_once(a_request(stream=True), "k", b"body")
        async with first:
            await anext(first)
        whole = await bytes_of(second)
        assert whole.endswith(b"data: [DONE]\n\n")
        assert calls(gateway) == 1

        lone = await gateway.wire.stream_once(a_request(stream=True), "l", b"body")
        async with lone:
            await anext(lone)
        assert gateway.status().available_slots == gateway.status().total_slots
        assert await bytes_of(await gateway.wire.stream_once(a_request(stream=True), "l", b"body"))
        assert calls(gateway) == 3
        await gateway.aclose()

    run(main)


def test_a_keyed_stream_that_was_cut_is_not_kept(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, script=["cut", "ok"])
        with pytest.raises(StreamCut):
            await bytes_of(await gateway.wire.stream_once(a_request(stream=True), "k", b"body"))
        assert await bytes_of(await gateway.wire.stream_once(a_request(stream=True), "k", b"body"))
        assert calls(gateway) == 2
        await gateway.aclose()

    run(main)


def test_a_failure_frees_the_key(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, script=[503, 503, 503, "ok"])
        with pytest.raises(UpstreamUnavailable):
            await gateway.wire.answer_once(a_request(), "k", b"body")
        assert (await gateway.wire.answer_once(a_request(), "k", b"body")).attempts == 1
        await gateway.aclose()

    run(main)


# ---- Rescue --------------------------------------------------------------------------------------------------

ALIKE = {
    "answers": {"Summarise this.": "one two three four five six"},
    "latency_s": 0.1,
    "chunks": 6,
    "chunk_gap_s": 0.1,
}


def test_a_broken_stream_goes_on_at_the_next_upstream() -> None:
    """The client reads the whole text once; the books know two calls, one of them failed, and one answer."""

    async def main(world: World) -> None:
        first, second = {**ALIKE, "script": ["cut"]}, {**ALIKE, "chunks": 4}
        stage = set_stage(world, first, second, keep_events=True, stream_rescue=True)
        stream = stage.gateway.wire.stream(a_request(stream=True))
        text = await text_of(stream)
        whole = json.loads((await stage.gateway.wire.answer(a_request())).body)
        assert text == whole["choices"][0]["message"]["content"]
        assert stream.attempts == 2
        assert stream.upstream == "simulated#2"
        assert [provider.calls for provider in stage.providers] == [2, 1]
        ends = [event.error for event in stage.events if isinstance(event, events.Responded)]
        assert ends == [None, None]
        assert stage.all_free

    run(main)


@pytest.mark.parametrize(
    ("upstreams", "switch"),
    [
        ([{**ALIKE, "script": ["cut"]}], True),
        (
            [{**ALIKE, "script": ["cut"]}, {**ALIKE, "answers": {"Summarise this.": "quite another story"}}],
            True,
        ),
        ([{**ALIKE, "script": ["cut"]}, {**ALIKE, "outcome": "transient"}], True),
        ([{**ALIKE, "script": ["cut"]}, ALIKE], False),
    ],
)
def test_where_there_is_nothing_to_join_the_stream_is_cut(
    upstreams: list[dict[str, Any]], switch: bool
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, *upstreams, keep_events=True, stream_rescue=switch, retry={"max_attempts": 1}
        )
        with pytest.raises(StreamCut):
            await text_of(stage.gateway.wire.stream(a_request(stream=True)))
        ends = [event for event in stage.events if isinstance(event, events.Responded)]
        assert len(ends) == 1
        assert ends[0].error is not None
        assert stage.all_free

    run(main)


def test_a_reader_that_leaves_during_the_rescue_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {**ALIKE, "script": ["cut"]}, {**ALIKE, "latency_s": 60}, stream_rescue=True)
        reader = asyncio.create_task(text_of(stage.gateway.wire.stream(a_request(stream=True))))
        await world.clock.sleep(10)
        assert stage.free_slots < stage.gateway.status().total_slots
        reader.cancel()
        await asyncio.wait({reader})
        assert stage.all_free
        assert await text_of(stage.gateway.wire.stream(a_request(stream=True)))

    run(main)


def test_a_model_that_gathers_does_so_over_http_too() -> None:
    """Ten callers, two calls to the provider, and everybody gets the answer to their own question."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 5, "latency_s": 1.0}, gather={"size": 5, "wait_ms": 50})
        questions = [[{"role": "user", "content": f"question {number}"}] for number in range(10)]
        asked = [stage.gateway.wire.answer(a_request(messages=question)) for question in questions]
        replies = await asyncio.gather(*asked)
        said = [json.loads(reply.body)["choices"][0]["message"]["content"] for reply in replies]
        assert [f"question {number}" in text for number, text in enumerate(said)] == [True] * 10
        assert stage.provider.calls == 2
        assert stage.all_free

    run(main)
