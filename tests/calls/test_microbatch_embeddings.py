"""Embeddings gathered from single requests: one call with all inputs, and to each caller its own vectors."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from calls.bodies import a_call, answer, put
from loops import Run, World
from providers.stubs import openai
from providers.stubs.openai import OpenAIStub
from stage import USER, Stage, set_stage

from headgate import wiring
from headgate.core import events
from headgate.core.answer import Answer, Reply, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import (
    DeadlineExceeded,
    Draining,
    HeadgateError,
    InvalidRequest,
    OutputInvalid,
    ProviderFailure,
    RequestRejected,
    UpstreamBroken,
    UpstreamUnavailable,
)
from headgate.core.failures import Failure, FailureKind
from headgate.core.retry import RetryPolicy
from headgate.formats import embeddings
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.planner import virtual

GATHER = {"size": 8, "wait_ms": 50}
QUICK = {"max_attempts": 3, "first_wait_s": 0.01, "jitter": "none"}


def _vector(text: str) -> list[float]:
    """What `_Lengths` makes of a text."""
    return [float(len(text)), float(ord(text[0]))]


class _Lengths:
    """Says how long each text is and how it begins; rejects those with a `!`, for all that came with them."""

    formats = frozenset({Format.EMBEDDINGS})
    reads = True

    def __init__(self, *, counts: bool = True) -> None:
        self.seen: list[tuple[str, ...]] = []
        self._counts = counts

    async def send(self, call: Call) -> Answer:
        texts = embeddings.read_request(call).texts
        self.seen.append(texts)
        if any("!" in text for text in texts):
            raise ProviderFailure(Failure(kind=FailureKind.REJECTED, status=400))
        usage = Usage(sum(map(len, texts)), 0) if self._counts else None
        return embeddings.write_answer(call, [_vector(text) for text in texts], usage)

    def stream(self, call: Call) -> AsyncIterator[bytes]:
        raise NotImplementedError(call)

    async def aclose(self) -> None:
        """Nothing to close."""


def _measured(world: World, *, counts: bool = True, **model: Any) -> tuple[Stage, _Lengths]:
    stage = set_stage(world, {}, keep_events=True, **{"gather": GATHER, "retry": QUICK, **model})
    provider = _Lengths(counts=counts)
    put(stage, provider)
    return stage, provider


def _asks(stage: Stage, *inputs: str | Sequence[str], **options: Any) -> list[asyncio.Task[Reply]]:
    return [asyncio.create_task(stage.gateway.embed(model="m", input=texts, **options)) for texts in inputs]


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def _nothing_left(stage: Stage) -> bool:
    requests = stage.gateway.requests
    return (
        stage.all_free
        and not stage.gateway.router.pending
        and not requests.gatherers._by_key
        and not requests._in_flight
    )


# ---- Together -------------------------------------------------------------------------------------------------


def test_several_callers_share_one_call_and_each_gets_its_own_vectors_in_order(run: Run) -> None:
    inputs: list[str | list[str]] = ["apple", ["pear", "apple"], "fig", ["kiwi", "date", "plum"]]

    async def main(world: World) -> None:
        alone = set_stage(world, {"latency_s": 0.01})
        expected = [await alone.gateway.embed(model="m", input=texts, dimensions=8) for texts in inputs]
        stage = set_stage(world, {"latency_s": 0.01}, gather=GATHER, keep_events=True)
        replies = await asyncio.gather(*_asks(stage, *inputs, dimensions=8))

        assert stage.provider.calls == 1
        assert [reply.vectors for reply in replies] == [reply.vectors for reply in expected]
        assert [[item["index"] for item in reply.json()["data"]] for reply in replies] == [
            [0],
            [0, 1],
            [0],
            [0, 1, 2],
        ]
        assert {(reply.attempts, reply.upstream, reply.model) for reply in replies} == {(1, "simulated", "m")}
        assert len({reply.request_id for reply in replies}) == len(inputs)
        assert len(_of(stage, events.AttemptEnded)) == 1
        assert len(_of(stage, events.Responded)) == len(inputs)
        assert _nothing_left(stage)

    run(main)


def test_usage_and_its_cost_are_shared_out_and_nothing_is_lost() -> None:
    async def main(world: World) -> None:
        stage, provider = _measured(world)
        [upstream] = stage.gateway.routes.find("m").upstreams
        upstream.price = lambda usage: usage.input_tokens / 1000
        inputs = ["x" * 40, "x" * 120, ["x" * 8, "x" * 32]]
        replies = await asyncio.gather(*_asks(stage, *inputs))

        assert len(provider.seen) == 1
        assert [reply.usage for reply in replies] == [Usage(40, 0), Usage(120, 0), Usage(40, 0)]
        assert [reply.json()["usage"]["total_tokens"] for reply in replies] == [40, 120, 40]
        assert [reply.cost_usd for reply in replies] == pytest.approx([0.04, 0.12, 0.04])
        ended = _of(stage, events.Responded)
        assert [(event.usage, event.cost_usd) for event in ended] == [
            (reply.usage, reply.cost_usd) for reply in replies
        ]
        assert [event.usage for event in _of(stage, events.AttemptEnded)] == [Usage(200, 0)]

    virtual.run(main)


def test_where_the_provider_does_not_count_each_gets_its_own_estimate() -> None:
    async def main(world: World) -> None:
        stage, provider = _measured(world, counts=False)
        replies = await asyncio.gather(*_asks(stage, "x" * 40, "x"))
        assert len(provider.seen) == 1
        assert [reply.usage for reply in replies] == [
            Usage(10, 0, estimated=True),
            Usage(1, 0, estimated=True),
        ]
        assert [reply.json()["usage"]["estimated"] for reply in replies] == [True, True]

    virtual.run(main)


def test_requests_that_come_over_http_are_gathered_among_themselves(run: Run) -> None:
    """What is still JSON does not mix with a library caller's values."""

    async def main(world: World) -> None:
        stage, provider = _measured(world)
        inputs: list[Any] = ["ab", ["c"], ["de", "f"]]
        over_http = [
            asyncio.create_task(answer(stage.gateway, Format.EMBEDDINGS, input=texts, user="u"))
            for texts in inputs
        ]
        replies = await asyncio.gather(*over_http, *_asks(stage, ["ghi"], user="u"))

        assert sorted(provider.seen) == [("ab", "c", "de", "f"), ("ghi",)]
        assert [reply.vectors for reply in replies] == [
            [_vector("ab")],
            [_vector("c")],
            [_vector("de"), _vector("f")],
            [_vector("ghi")],
        ]
        assert replies[2].json()["object"] == "list"
        assert _nothing_left(stage)

    run(main)


def test_the_time_with_the_provider_is_each_caller_s_own() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 2.0}, gather={"size": 8, "wait_ms": 500})
        replies = await asyncio.gather(*_asks(stage, "a", "b"))
        assert [reply.latency_ms for reply in replies] == pytest.approx([2500, 2500])
        assert [reply.upstream_ms for reply in replies] == pytest.approx([2000, 2000])

    virtual.run(main)


# ---- How many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "calls", "took_s"),
    [
        ([["a"]] * 3, 1, 11.0),
        ([["a"]] * 4, 1, 1.0),
        ([["a"]] * 8, 2, 1.0),
        ([["a", "b"]] * 2, 1, 1.0),
        ([["a", "b", "c"], ["d"]], 1, 1.0),
        ([["a", "b", "c"], ["d", "e"]], 2, 11.0),
        ([["a", "b", "c"], ["d", "e", "f"], ["g"]], 2, 1.0),
        ([["a", "b", "c", "d"]], 1, 1.0),
        ([["a", "b", "c", "d", "e"]], 1, 1.0),
        ([["a"], ["b", "c", "d", "e"]], 2, 11.0),
    ],
    ids=lambda value: "-".join(str(len(texts)) for texts in value) if isinstance(value, list) else "",
)
def test_a_batch_leaves_when_it_has_as_many_inputs_as_it_may_or_is_old_enough(
    inputs: list[list[str]], calls: int, took_s: float
) -> None:
    """It counts inputs, not callers. One who brings as many alone goes alone, and at once."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1.0, "slots": 8}, gather={"size": 4, "wait_ms": 10_000})
        replies = await asyncio.gather(*_asks(stage, *inputs))
        assert [len(reply.vectors) for reply in replies] == [len(texts) for texts in inputs]
        assert stage.provider.calls == calls
        assert stage.now == pytest.approx(took_s)
        assert _nothing_left(stage)

    virtual.run(main)


@pytest.mark.parametrize(
    ("texts", "alone"), [("one", False), (["a", "b", "c"], False), (["a", "b", "c", "d"], True)]
)
def test_the_inputs_of_a_body_are_counted_without_reading_it(texts: Any, alone: bool) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1.0}, gather={"size": 4, "wait_ms": 10_000})
        await answer(stage.gateway, Format.EMBEDDINGS, input=texts)
        assert stage.now == pytest.approx(1.0 if alone else 11.0)

    virtual.run(main)


def test_a_caller_in_a_hurry_takes_its_batch_along_early() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1}, gather={"size": 8, "wait_ms": 3000})
        await asyncio.gather(*_asks(stage, "a"), *_asks(stage, "b", deadline_s=1))
        assert stage.now == pytest.approx(0.6)
        assert stage.provider.calls == 1

    virtual.run(main)


# ---- Who does not meet ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"dimensions": 4}, {"dimensions": 8}),
        ({}, {"dimensions": 8}),
        ({"encoding_format": "float"}, {"encoding_format": "base64"}),
        ({"user": "a"}, {"user": "b"}),
        ({"lane": "interactive"}, {"lane": "batch"}),
        ({"tenant": "a"}, {"tenant": "b"}),
        ({}, {"retry": RetryPolicy(max_attempts=1)}),
    ],
    ids=str,
)
def test_requests_that_differ_in_more_than_their_inputs_do_not_meet(
    run: Run, one: dict[str, Any], other: dict[str, Any]
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.01}, gather=GATHER)
        replies = await asyncio.gather(*_asks(stage, "a", "b", **one), *_asks(stage, "a", "b", **other))
        assert stage.provider.calls == 2
        wanted = [options.get("dimensions") for options in (one, one, other, other)]
        lengths = [len(reply.vectors[0]) for reply in replies]
        assert all(wish in (None, length) for wish, length in zip(wanted, lengths, strict=True))
        assert _nothing_left(stage)

    run(main)


def test_the_order_of_its_fields_makes_no_difference() -> None:
    async def main(world: World) -> None:
        stage, provider = _measured(world)
        one, other = {"dimensions": 2, "user": "u"}, {"user": "u", "dimensions": 2}
        await asyncio.gather(*_asks(stage, "a", **one), *_asks(stage, "b", **other))
        assert provider.seen == [("a", "b")]

    virtual.run(main)


def test_embeddings_and_chats_do_not_meet(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.01, "many_inputs": 8}, gather=GATHER)
        chats = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(2)]
        replies = await asyncio.gather(*_asks(stage, "a", "b"))
        assert all(reply.content for reply in await asyncio.gather(*chats))
        assert all(len(reply.vectors) == 1 for reply in replies)
        assert stage.provider.calls == 2
        assert _nothing_left(stage)

    run(main)


def test_a_model_that_does_not_gather_sends_each_at_once() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1.0, "many_inputs": 8})
        await asyncio.gather(*_asks(stage, "a", "b"))
        assert stage.provider.calls == 2
        assert stage.now == pytest.approx(1.0)

    virtual.run(main)


def test_a_call_that_must_be_alone_is() -> None:
    """A job's, or one under an idempotency key: its crash must be its own."""

    async def main(world: World) -> None:
        stage, provider = _measured(world)
        calls = [a_call(stage.gateway, Format.EMBEDDINGS, input=text) for text in ("a", "b")]
        for call in calls:
            call.alone = True
        await asyncio.gather(*map(stage.gateway.requests.answer, calls))
        assert provider.seen == [("a",), ("b",)]
        assert world.clock.now() == pytest.approx(0.0)

    virtual.run(main)


def test_bad_input_is_rejected_before_it_joins_others(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.01}, gather=GATHER)
        fine, *bad = _asks(stage, "a", "", ["b", ""], [])
        for call in bad:
            with pytest.raises(InvalidRequest):
                await call
        assert len((await fine).vectors) == 1
        assert stage.provider.calls == 1
        assert _nothing_left(stage)

    run(main)


# ---- Going wrong ----------------------------------------------------------------------------------------------


def test_a_rejected_batch_is_taken_apart_and_only_the_bad_one_fails(run: Run) -> None:
    async def main(world: World) -> None:
        stage, provider = _measured(world)
        calls = _asks(stage, "a", ["bb", "bad!"], "cc", ["d", "ee"])
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], RequestRejected)
        good = [result.vectors for result in results if isinstance(result, Reply)]
        assert good == [[_vector("a")], [_vector("cc")], [_vector("d"), _vector("ee")]]
        assert provider.seen[0] == ("a", "bb", "bad!", "cc", "d", "ee")
        assert sorted(provider.seen[1:]) == [("a",), ("bb", "bad!"), ("cc",), ("d", "ee")]
        assert not _of(stage, events.RetryScheduled)
        assert len(_of(stage, events.Responded)) == 4
        assert _nothing_left(stage)

    run(main)


def test_one_that_was_rejected_alone_is_not_asked_again(run: Run) -> None:
    async def main(world: World) -> None:
        stage, provider = _measured(world)
        [call] = _asks(stage, "bad!")
        with pytest.raises(RequestRejected):
            await call
        assert provider.seen == [("bad!",)]
        assert _nothing_left(stage)

    run(main)


@pytest.mark.parametrize("failure", [503, "cut", "blank", "repeat", "bad_json"])
def test_a_batch_that_fails_as_a_whole_is_retried_as_a_whole(run: Run, failure: int | str) -> None:
    """An answer that lacks a vector, too: which text it belongs to cannot be known."""

    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0.01, "script": [failure]}, gather=GATHER, retry=QUICK, keep_events=True
        )
        replies = await asyncio.gather(*_asks(stage, *"abcde"))
        assert stage.provider.calls == 2
        assert [reply.attempts for reply in replies] == [2] * 5
        assert [len(event.request_ids) for event in _of(stage, events.RetryScheduled)] == [5]
        assert _nothing_left(stage)

    run(main)


@pytest.mark.parametrize(
    ("script", "error"), [([503] * 9, UpstreamUnavailable), (["blank"] * 9, OutputInvalid)], ids=str
)
def test_one_that_stays_broken_fails_each_of_its_callers(
    run: Run, script: list[Any], error: type[HeadgateError]
) -> None:
    async def main(world: World) -> None:
        upstream = {"latency_s": 0.01, "script": script, "breaker": False}
        stage = set_stage(world, upstream, gather=GATHER, retry=QUICK, keep_events=True)
        results = await asyncio.gather(*_asks(stage, *"abcd"), return_exceptions=True)
        assert [type(result) for result in results] == [error] * 4
        assert stage.provider.calls == 3
        assert len(_of(stage, events.Responded)) == 4
        assert _nothing_left(stage)

    run(main)


def test_the_next_upstream_takes_the_whole_batch(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0.01, "script": [401]},
            {"latency_s": 0.01, "model": "instant"},
            gather=GATHER,
            retry=QUICK,
        )
        replies = await asyncio.gather(*_asks(stage, "a", ["b", "c"]))
        assert [reply.upstream for reply in replies] == ["simulated/instant"] * 2
        assert [len(reply.vectors) for reply in replies] == [1, 2]
        assert [provider.calls for provider in stage.providers] == [1, 1]
        assert _nothing_left(stage)

    run(main)


class _Strange(_Lengths):
    """Answers with a body of its own making."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    async def send(self, call: Call) -> Answer:
        self.seen.append(embeddings.read_request(call).texts)
        return Answer(body=self._body, usage=Usage(1, 0))


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"data":[]}', b'{"data":[{"embedding":[1]}]}'])
def test_an_answer_that_cannot_be_shared_out_fails_all_of_its_callers_at_once(run: Run, body: bytes) -> None:
    """No caller waits until its deadline, and none gets the vector of another."""

    async def main(world: World) -> None:
        stage = set_stage(world, {}, gather=GATHER, keep_events=True)
        provider = _Strange(body)
        put(stage, provider)
        results = await asyncio.gather(*_asks(stage, "a", "b"), return_exceptions=True)
        assert [type(result) for result in results] == [UpstreamBroken] * 2
        assert provider.seen == [("a", "b")]
        assert len(_of(stage, events.Responded)) == 2
        assert _nothing_left(stage)

    run(main)


# ---- Callers that leave ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [0.0, 0.005, 0.1, 0.25])
def test_callers_that_leave_take_only_their_own_inputs_along(run: Run, when: float) -> None:
    """Before the batch leaves they are not sent; after it their vectors are dropped."""

    async def main(world: World) -> None:
        alone = set_stage(world, {"latency_s": 0.01})
        expected = [(await alone.gateway.embed(model="m", input=text)).vectors for text in "bdf"]
        stage = set_stage(
            world, {"latency_s": 0.3}, gather={"size": 10, "wait_ms": 50}, retry=QUICK, keep_events=True
        )
        calls = _asks(stage, *"abcdef")
        await asyncio.sleep(when)
        for call in calls[::2]:
            call.cancel()
        replies = await asyncio.gather(*calls[1::2])
        await asyncio.gather(*calls, return_exceptions=True)
        assert [reply.vectors for reply in replies] == expected
        assert stage.provider.calls == 1
        assert len(_of(stage, events.Cancelled)) == 3
        assert len(_of(stage, events.Responded)) == 3
        assert not _of(stage, events.StrayAnswer)
        assert _nothing_left(stage)

    run(main)


def test_when_the_last_caller_leaves_the_call_is_cancelled_at_the_provider(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60.0}, gather={"size": 10, "wait_ms": 10})
        calls = _asks(stage, *"abc")
        await asyncio.sleep(0.2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert (stage.provider.cancelled, stage.provider.in_flight) == (1, 0)
        assert _nothing_left(stage)

    run(main)


def test_each_caller_keeps_its_own_deadline() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 5.0}, gather={"size": 10, "wait_ms": 10})
        [hurried] = _asks(stage, "a", deadline_s=2)
        [patient] = _asks(stage, "b")
        with pytest.raises(DeadlineExceeded):
            await hurried
        assert stage.now == pytest.approx(2.0)
        assert len((await patient).vectors) == 1
        assert stage.provider.calls == 1

    virtual.run(main)


def test_closing_the_gateway_ends_those_who_still_wait(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 60.0}, gather={"size": 10, "wait_ms": 10})
        calls = _asks(stage, "a", "b")
        await asyncio.sleep(0.1)
        await stage.gateway.aclose()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Draining] * 2

    run(main)


# ---- Through a real provider ----------------------------------------------------------------------------------


async def _through_openai(stub: OpenAIStub, asked: Sequence[dict[str, Any]]) -> list[Reply]:
    upstream = {"provider": "openai", "model": "large", "base_url": stub.url, "api_key": "sk-0123456789"}
    settings = wiring.read_settings(
        {"models": {"m": {"upstreams": [upstream], "gather": GATHER, "retry": QUICK}}}, env={}
    )
    gateway: Gateway = wiring.build(settings, clock=SystemClock())
    try:
        return await asyncio.gather(*(answer(gateway, Format.EMBEDDINGS, **fields) for fields in asked))
    finally:
        await gateway.aclose(drain_s=0.0)


def test_bodies_that_pass_through_openai_s_provider_travel_together() -> None:
    """Texts and lists of tokens as they came, and the numbers as the server wrote them."""
    vectors = [[0.30000000000000004, 1e-05], [2], "AACAPw==", [4]]

    async def main() -> None:
        async with OpenAIStub(
            openai.embeddings(vectors, usage={"prompt_tokens": 9, "total_tokens": 9})
        ) as stub:
            asked = [{"input": texts, "user": "u"} for texts in ("a", ["b", "c"], [[7, 8]])]
            replies = await _through_openai(stub, asked)

        [sent] = stub.requests
        body = json.loads(sent.raw)
        assert body == {"model": "large", "user": "u", "input": ["a", "b", "c", [7, 8]]}
        assert [[item["embedding"] for item in reply.json()["data"]] for reply in replies] == [
            vectors[:1],
            vectors[1:3],
            vectors[3:],
        ]
        assert [list(vector) for vector in replies[1].vectors] == [[2.0], [1.0]]
        assert sum(reply.usage.total_tokens for reply in replies) == 9
        assert not any(reply.usage.estimated for reply in replies)

    asyncio.run(main())


def test_a_batch_that_openai_rejects_is_taken_apart_there_too() -> None:
    async def main() -> None:
        rejected = openai.error(400, "'$.input' is too long")
        async with OpenAIStub(rejected, openai.embeddings([[1]]), openai.embeddings([[1]])) as stub:
            replies = await _through_openai(stub, [{"input": "a"}, {"input": ["b"]}])

        first, *others = (json.loads(request.raw)["input"] for request in stub.requests)
        assert first == ["a", "b"]
        assert sorted(others, key=str) == [["b"], "a"]
        assert [reply.vectors for reply in replies] == [[[1.0]], [[1.0]]]

    asyncio.run(main())
