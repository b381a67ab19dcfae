"""Requests in OpenAI's format from end to end: retried like any other, byte-faithful, and honest."""

import asyncio
import json
from typing import Any

import pytest
from calls.bodies import CHAT, Passing, a_stream, answer, bytes_of, put, text_of
from stage import set_stage

from headgate.core.answer import Answer, Usage
from headgate.core.call import Format
from headgate.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    OutputInvalid,
    QueueFull,
    StreamCut,
)
from headgate.planner import virtual
from headgate.planner.virtual import World

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}


def run(main: Any) -> None:
    virtual.run(main)


def test_an_answer_has_openais_shape_and_its_story() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 2.0, "script": [503, "ok"]}, retry=NO_JITTER)
        reply = await answer(stage.gateway)
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
        reply = await answer(stage.gateway, Format.COMPLETIONS, prompt="Once upon")
        body = json.loads(reply.body)
        assert body["object"] == "text_completion"
        assert body["choices"][0]["text"]
        stream = a_stream(stage.gateway, Format.COMPLETIONS, prompt=["Once upon"])
        first, *_, end = (await bytes_of(stream)).removesuffix(b"\n\n").split(b"\n\n")
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["text"]
        assert end == b"data: [DONE]"
        with pytest.raises(InvalidRequest, match="prompt must be one text"):
            await answer(stage.gateway, Format.COMPLETIONS, prompt=["one", "two"])

    run(main)


def test_embeddings_are_translated() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        reply = await answer(stage.gateway, Format.EMBEDDINGS, input=["one", "two"])
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
            await answer(stage.gateway, **fields)
        assert refused.value.param == param
        assert stage.provider.calls == 0

    run(main)


def test_an_answer_that_is_written_here_says_when() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        now = int(world.clock.utc().timestamp())
        for wanted, fields in ((Format.CHAT, CHAT), (Format.COMPLETIONS, {"prompt": "Once upon"})):
            assert (await answer(stage.gateway, wanted, **fields)).json()["created"] == now

    run(main)


@pytest.mark.parametrize(
    ("wanted", "fields", "param"),
    [
        (Format.CHAT, {"messages": "hello"}, "messages"),
        (Format.CHAT, {}, "messages"),
        (Format.EMBEDDINGS, {"input": ["a", ""]}, "input[1]"),
        (Format.EMBEDDINGS, {}, "input"),
    ],
)
def test_values_of_the_library_are_checked_for_every_provider(
    wanted: Format, fields: dict[str, Any], param: str
) -> None:
    """Bodies were checked as far as that is needed where they came in."""

    async def main(world: World) -> None:
        stage = set_stage(world, {})
        provider = Passing(world)
        put(stage, provider)
        with pytest.raises(InvalidRequest) as rejected:
            stage.gateway.requests.begin("r1", "m", fields, wanted=wanted)
        assert rejected.value.param == param
        assert not provider.seen

    run(main)


def test_several_prompts_are_for_upstreams_that_take_them() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        fields = {"prompt": ["one", "two"]}
        with pytest.raises(InvalidRequest, match="prompt must be one text"):
            stage.gateway.requests.begin("r1", "m", fields, wanted=Format.COMPLETIONS)
        provider = Passing(world)
        put(stage, provider)
        call = stage.gateway.requests.begin("r2", "m", fields, wanted=Format.COMPLETIONS)
        await stage.gateway.requests.answer(call)
        assert provider.seen[0].fields == fields

    run(main)


def test_an_answer_without_a_usage_gets_an_estimate_from_both_bodies() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        provider = Passing(world)
        provider.answer = Answer(body=b"x" * 700)
        put(stage, provider)
        reply = await answer(stage.gateway)
        assert reply.usage == Usage(25, 100, estimated=True)
        assert reply.body == provider.answer.body

    run(main)


def test_a_blank_answer_is_generated_anew_and_never_passed_on() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": ["blank", "ok"]}, retry=NO_JITTER)
        assert (await answer(stage.gateway)).attempts == 2
        stage = set_stage(world, {"latency_s": 0, "outcome": "blank"}, retry=NO_JITTER)
        with pytest.raises(OutputInvalid):
            await answer(stage.gateway)

    run(main)


def test_a_stream_is_the_answer_in_pieces() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"chunks": 5, "chunk_gap_s": 0.1})
        whole = json.loads((await answer(stage.gateway)).body)
        stream = a_stream(stage.gateway)
        assert await text_of(stream) == whole["choices"][0]["message"]["content"]
        assert stream.usage is not None
        assert stage.all_free

    run(main)


def test_usage_is_told_in_a_stream_when_it_was_asked_for() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0})
        wish = {"include_usage": True}
        stream = a_stream(stage.gateway, **CHAT, stream_options=wish)
        *_, last, end = (await bytes_of(stream)).removesuffix(b"\n\n").split(b"\n\n")
        told = json.loads(last.removeprefix(b"data: "))
        assert end == b"data: [DONE]"
        assert told["choices"] == []
        assert stream.usage is not None
        assert told["usage"]["total_tokens"] == stream.usage.total_tokens

    run(main)


def test_a_stream_is_retried_until_its_first_content_and_cut_after_it() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [503, "blank", "ok"]}, retry=NO_JITTER)
        stream = a_stream(stage.gateway)
        assert await text_of(stream)
        assert stream.attempts == 3

        stage = set_stage(world, {"latency_s": 0, "chunks": 5, "script": ["cut"]}, retry=NO_JITTER)
        stream = a_stream(stage.gateway)
        with pytest.raises(StreamCut, match="events"):
            await text_of(stream)
        assert stage.provider.calls == 1
        assert stage.all_free

    run(main)


def test_refusals_and_deadlines_are_those_of_any_call() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60, "slots": 1, "depth": 1})
        busy = [asyncio.create_task(answer(stage.gateway)) for _ in range(2)]
        await world.clock.sleep(1)
        with pytest.raises(QueueFull):
            await answer(stage.gateway)
        with pytest.raises(QueueFull):
            await text_of(a_stream(stage.gateway))
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
        with pytest.raises(DeadlineExceeded):
            await answer(stage.gateway, deadline_s=5)
        assert stage.all_free
        assert stage.provider.cancelled == 2

    run(main)


def test_a_model_that_gathers_does_so_over_http_too() -> None:
    """Ten callers, two calls to the provider, and everybody gets the answer to their own question."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 5, "latency_s": 1.0}, gather={"size": 5, "wait_ms": 50})
        questions = [[{"role": "user", "content": f"question {number}"}] for number in range(10)]
        asked = [answer(stage.gateway, messages=question) for question in questions]
        replies = await asyncio.gather(*asked)
        said = [json.loads(reply.body)["choices"][0]["message"]["content"] for reply in replies]
        assert [f"question {number}" in text for number, text in enumerate(said)] == [True] * 10
        assert stage.provider.calls == 2
        assert stage.all_free

    run(main)
