"""Embeddings through gates and attempts, counted at the provider: the same care as for answers."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from calls.bodies import put
from calls.closing import RUN
from stage import USER, Stage, set_stage

from headgate.core import events
from headgate.core.answer import Reply, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import (
    DeadlineExceeded,
    Draining,
    DuplicateRequest,
    InvalidRequest,
    OutputInvalid,
    QueueFull,
    RequestRejected,
    UnknownModel,
    UpstreamBroken,
    UpstreamMisconfigured,
    UpstreamUnavailable,
)
from headgate.core.ports.provider import no_embeddings
from headgate.core.retry import RetryPolicy
from headgate.formats import embeddings
from headgate.planner import virtual
from headgate.planner.virtual import World

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def _embed(stage: Stage, **changes: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(stage.gateway.embed(**{"model": "m", "input": ["a", "b"], **changes}))


class _Answering:
    """A provider that answers every embedding with these vectors, or raises what it was given."""

    formats = frozenset({Format.EMBEDDINGS})
    reads = True

    def __init__(self, vectors: Any) -> None:
        self.calls = 0
        self._vectors = vectors

    async def send(self, call: Call) -> Any:
        self.calls += 1
        if isinstance(self._vectors, Exception):
            raise self._vectors
        return embeddings.write_answer(call, self._vectors, None)

    def stream(self, call: Call) -> AsyncIterator[bytes]:
        raise NotImplementedError(call)

    async def aclose(self) -> None:
        """Nothing to close."""


def _put(stage: Stage, vectors: Any) -> _Answering:
    provider = _Answering(vectors)
    put(stage, provider)
    return provider


# ---- Going well -------------------------------------------------------------------------------------------------


def test_an_embedding_that_succeeds_is_one_call_with_its_story() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.5}, keep_events=True)
        reply = await _embed(stage, input=["a", "b", "a"], agent_id="a1", request_id="r1", dimensions=8)

        assert reply.attempts == stage.provider.calls == 1
        assert (reply.request_id, reply.model, reply.upstream) == ("r1", "m", "simulated")
        assert [len(vector) for vector in reply.vectors] == [8, 8, 8]
        assert reply.vectors[0] == reply.vectors[2] != reply.vectors[1]
        assert reply.usage == Usage(3, 0)
        assert reply.latency_ms == pytest.approx(500)
        assert [type(event) for event in stage.events] == [events.AttemptEnded, events.Responded]
        ended = _of(stage, events.Responded)[0]
        assert (ended.request_id, ended.agent_id, ended.upstream) == ("r1", "a1", "simulated")
        assert (ended.usage, ended.error) == (reply.usage, None)

    virtual.run(main)


def test_one_text_may_come_without_a_list() -> None:
    """It must not be embedded letter by letter."""

    async def main(world: World) -> None:
        stage = set_stage(world, {})
        alone = await _embed(stage, input="some text")
        listed = await _embed(stage, input=["some text"])
        assert alone.vectors == listed.vectors
        assert len(alone.vectors) == 1

    virtual.run(main)


def test_a_provider_that_does_not_count_tokens_gets_an_estimate() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"report_usage": False}, keep_events=True)
        reply = await _embed(stage, input=["x" * 8, "x"])
        assert reply.usage == Usage(3, 0, estimated=True)
        assert _of(stage, events.Responded)[0].usage == reply.usage

    virtual.run(main)


def test_what_is_sent_again_is_what_was_asked_whatever_the_caller_does_to_its_list() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1, "script": [503]}, retry=NO_JITTER)
        texts = ["a", "b"]
        call = _embed(stage, input=texts)
        await asyncio.sleep(0.5)
        texts.append("c")
        assert len((await call).vectors) == 2

    virtual.run(main)


def test_a_provider_that_only_chats_has_no_embeddings() -> None:
    """It is not called for them, and nothing is said against it."""

    async def main(world: World) -> None:
        stage = set_stage(world, {}, keep_events=True)
        provider = _put(stage, [[1.0], [2.0]])
        provider.formats = frozenset({Format.CHAT})
        for _ in range(RUN):
            with pytest.raises(RequestRejected, match="this upstream has no embeddings"):
                await _embed(stage)
        assert provider.calls == 0
        assert not _of(stage, events.BreakerChanged)
        assert stage.all_free

    virtual.run(main)


# ---- Going wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [503, 504, "cut", "blank", "repeat", "bad_json"])
def test_a_failed_or_unusable_answer_is_asked_for_again(failure: int | str) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0, "script": [failure, failure]}, retry=NO_JITTER, keep_events=True
        )
        reply = await _embed(stage, request_id="r1")

        assert reply.attempts == stage.provider.calls == stage.provider.requests_seen["r1"] == 3
        waits = [event.delay_ms for event in _of(stage, events.RetryScheduled)]
        assert waits == ([0.0, 0.0] if failure in {"blank", "repeat", "bad_json"} else [1000.0, 2000.0])
        assert len(_of(stage, events.Responded)) == 1

    virtual.run(main)


@pytest.mark.parametrize(
    ("script", "error", "calls"),
    [
        ([400], RequestRejected, 1),
        ([401], UpstreamMisconfigured, 1),
        (["broken"], UpstreamBroken, 1),
        ([503] * 9, UpstreamUnavailable, 3),
        (["blank"] * 9, OutputInvalid, 3),
        (["repeat"] * 9, OutputInvalid, 3),
        (["bad_json"] * 9, OutputInvalid, 3),
    ],
)
def test_what_goes_wrong_decides_what_is_raised_and_how_often_it_was_tried(
    script: list[Any], error: type[Exception], calls: int
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": script}, retry=NO_JITTER, keep_events=True)
        with pytest.raises(error, match="simulated"):
            await _embed(stage)
        assert stage.provider.calls == calls
        assert stage.all_free
        assert [event.error is not None for event in _of(stage, events.Responded)] == [True]

    virtual.run(main)


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        ([], "vectors in the answer: 0, texts in the request: 2"),
        ([[1.0]], "vectors in the answer: 1, texts in the request: 2"),
        ([[1.0], [1.0], [1.0]], "vectors in the answer: 3, texts in the request: 2"),
        ([[1.0], []], "vector 1 is empty"),
        ([[], [1.0]], "vector 0 is empty"),
    ],
    ids=str,
)
def test_an_answer_that_cannot_be_matched_to_its_texts_never_reaches_the_caller(
    vectors: list[list[float]], says: str
) -> None:
    """A missing vector shifts all that follow: each text would be filed under its neighbour's meaning."""

    async def main(world: World) -> None:
        stage = set_stage(world, {}, retry=NO_JITTER)
        provider = _put(stage, vectors)
        with pytest.raises(OutputInvalid, match=says):
            await _embed(stage)
        assert provider.calls == 3
        assert stage.all_free

    virtual.run(main)


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        "ab",
        ["ab", "cd"],
        [1.0, 2.0],
        [[1.0], None],
    ],
    ids=str,
)
def test_a_provider_that_answers_nonsense_is_broken_and_nobody_hangs(nonsense: Any) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {}, keep_events=True)
        provider = _put(stage, nonsense)
        with pytest.raises(UpstreamBroken, match="must be a list of vectors, each a list of numbers"):
            await _embed(stage)
        assert provider.calls == 1
        assert stage.all_free
        assert len(_of(stage, events.Responded)) == 1

    virtual.run(main)


def test_an_upstream_without_embeddings_says_so_and_is_not_asked_again() -> None:
    """It is the request that does not fit: the upstream stays healthy, and the next one is not tried."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1}, {"latency_s": 0.1}, keep_events=True)
        whole, provider = stage.provider, _put(stage, no_embeddings())
        for _ in range(6):
            with pytest.raises(RequestRejected, match="this upstream has no embeddings") as caught:
                await _embed(stage)
        assert caught.value.failure.code == "no_embeddings"
        assert provider.calls == 6
        assert not _of(stage, events.FellBack) + _of(stage, events.BreakerChanged)
        assert _of(stage, events.Responded)[0].error == "rejected no_embeddings"
        put(stage, whole)
        assert (await stage.gateway.complete(model="m", messages=USER)).upstream == "simulated"

    virtual.run(main)


# ---- Gates, waits and fallbacks ---------------------------------------------------------------------------------


def test_embeddings_and_answers_share_slots_and_queue() -> None:
    """A gate guards the upstream, not one kind of call."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "depth": 1, "latency_s": 1.0})
        answering = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0)
        waiting = _embed(stage)
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as refused:
            await _embed(stage)
        assert refused.value.retry_after_s >= 1
        await answering
        reply = await waiting
        assert (stage.provider.calls, stage.provider.most_in_flight) == (2, 1)
        assert reply.queue_ms == pytest.approx(1000)

    virtual.run(main)


def test_an_upstream_that_refused_embeddings_without_a_gap_is_closed_to_answers_too() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 7, "latency_s": 0.0}
        stage = set_stage(world, {"latency_s": 1.0, "script": [throttled] * RUN}, keep_events=True)
        embeddings = [_embed(stage) for _ in range(RUN)]
        await asyncio.sleep(0.2)
        pause_s = _of(stage, events.GatePaused)[0].pause_s
        answer = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.gather(answer, *embeddings)
        probe_at, *others = list(stage.provider.starts)[RUN:]
        assert probe_at == pytest.approx(pause_s, abs=0.1)
        assert (await answer).attempts == 1, "it was the probe; the others waited for themselves"
        assert len(others) == RUN
        assert all(start >= 7 for start in others)

    virtual.run(main)


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        ({"script": [401]}, 1),
        # The third attempt there would come after 3 s, later than the patience allows.
        ({"script": [503] * 3}, 2),
        ({"script": ["repeat"] * 3}, 3),
        ({"script": ["timeout"]}, 1),
        ({"script": [{"status": 429, "retry_after_s": 60}]}, 1),
    ],
)
def test_the_next_upstream_takes_over(first: dict[str, Any], calls: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0, **first},
            {"latency_s": 0, "model": "instant"},
            retry=NO_JITTER,
            keep_events=True,
        )
        reply = await _embed(stage)
        assert (reply.upstream, reply.attempts) == ("simulated/instant", calls + 1)
        assert [provider.calls for provider in stage.providers] == [calls, 1]
        assert [event.next_upstream for event in _of(stage, events.FellBack)] == ["simulated/instant"]

    virtual.run(main)


def test_a_hanging_upstream_is_left_when_first_token_s_is_set() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"script": ["stall"]}, {"latency_s": 1.0, "model": "slow"}, timeouts={"first_token_s": 2}
        )
        assert (await _embed(stage)).upstream == "simulated/slow"
        assert stage.now == pytest.approx(3.0)
        assert stage.provider.cancelled == 1

    virtual.run(main)


def test_a_batch_embedding_gives_way_to_an_interactive_one_and_runs_again() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 60, "preempt": True})
        batch = _embed(stage, lane="batch", deadline_s=290)
        await asyncio.sleep(10)
        await _embed(stage)
        assert stage.now == pytest.approx(70)
        assert stage.provider.cancelled == 1
        assert (await batch).attempts == 2

    virtual.run(main)


def test_the_caller_s_own_policy_is_used() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [503] * 9})
        with pytest.raises(UpstreamUnavailable):
            await _embed(stage, retry=RetryPolicy(max_attempts=1))
        assert stage.provider.calls == 1

    virtual.run(main)


def test_only_the_texts_are_reserved_of_a_minute_s_tokens() -> None:
    """An answer's expected length would keep most embeddings out of a minute that has room for them."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 10, "latency_s": 1, "tokens_per_minute": 100})
        await asyncio.gather(*(_embed(stage, input=["x" * 40]) for _ in range(10)))
        assert stage.now < 2
        await _embed(stage, input=["x" * 40])
        assert stage.now > 60

    virtual.run(main)


# ---- Ends -------------------------------------------------------------------------------------------------------


def test_cancelling_the_caller_cancels_the_provider_and_frees_everything() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {
                "slots": 1,
                "latency_s": 10,
                "script": [{"status": 503, "latency_s": 0}],
                "tokens_per_minute": 1000,
            },
            retry=NO_JITTER,
            keep_events=True,
        )
        upstream = stage.gateway.routes.find("m").upstreams[0]
        call = _embed(stage, input="x" * 2000, request_id="r1")
        await asyncio.sleep(2.0)
        assert upstream.gate.admission.pacing._tokens > 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (stage.provider.calls, stage.provider.cancelled, stage.provider.in_flight) == (2, 1, 0)
        assert stage.all_free
        assert upstream.gate.admission.pacing._tokens == 0
        assert len(_of(stage, events.Cancelled)) == 1
        assert not _of(stage, events.Responded)
        assert (await _embed(stage, request_id="r1")).attempts == 1, "the id is free again"

    virtual.run(main)


def test_cancelling_a_caller_that_waits_sends_nothing() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 10})
        first, second = _embed(stage), _embed(stage)
        await asyncio.sleep(1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await first
        assert stage.provider.calls == 1
        assert stage.all_free

    virtual.run(main)


def test_one_deadline_covers_waiting_attempts_and_fallbacks() -> None:
    async def main(world: World) -> None:
        slow = {"latency_s": 60.0, "slots": 1}
        stage = set_stage(world, slow, slow, keep_events=True)
        with pytest.raises(DeadlineExceeded, match="1 attempt"):
            await _embed(stage, deadline_s=7)
        assert stage.now == pytest.approx(7.0)
        assert stage.provider.cancelled == 1
        assert stage.all_free
        assert _of(stage, events.Responded)[0].error == "deadline_exceeded"

    virtual.run(main)


def test_an_id_names_one_request_of_either_kind() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1})
        call = _embed(stage, request_id="r1")
        await asyncio.sleep(0.5)
        with pytest.raises(DuplicateRequest):
            await stage.gateway.complete(model="m", messages=USER, request_id="r1")
        with pytest.raises(DuplicateRequest):
            await _embed(stage, request_id="r1")
        await call
        assert stage.provider.calls == 1

    virtual.run(main)


def test_a_closing_gateway_waits_for_embeddings_in_flight_and_refuses_new_ones() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 10})
        call, waiting = _embed(stage), _embed(stage)
        await asyncio.sleep(1)
        await stage.gateway.aclose()
        assert call.done()
        assert len(call.result().vectors) == 2
        for late in (waiting, _embed(stage)):
            with pytest.raises(Draining):
                await late
        assert stage.provider.calls == 1

    virtual.run(main)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": "nobody"}, UnknownModel, "no model is called 'nobody'"),
        ({"model": ""}, InvalidRequest, "model"),
        ({"input": ""}, InvalidRequest, r"input\[0\]"),
        ({"input": []}, InvalidRequest, "at least one text"),
        ({"input": ["a", ""]}, InvalidRequest, r"input\[1\]"),
        ({"input": ["a", 7]}, InvalidRequest, r"input\[1\]"),
        ({"input": None}, InvalidRequest, "a text or a list of texts"),
        ({"input": ["a"] * 2049}, InvalidRequest, "2,049 texts"),
        ({"input": ["x" * 2_500_000] * 2}, InvalidRequest, "5,000,000 characters"),
        ({"lane": "express"}, InvalidRequest, "'interactive' or 'batch'"),
        ({"deadline_s": math.nan}, InvalidRequest, "deadline_s"),
        ({"deadline_s": 0}, InvalidRequest, "deadline_s"),
        ({"retry": 3}, InvalidRequest, "retry"),
        ({"request_id": "a\nb"}, InvalidRequest, "request_id"),
        ({"tenant": ""}, InvalidRequest, "tenant"),
        ({"agent_id": ""}, InvalidRequest, "agent_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_gets_a_clear_typed_error_and_is_never_sent(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {}, keep_events=True)
        with pytest.raises(error, match=says):
            await _embed(stage, **changes)
        assert stage.provider.calls == 0
        assert stage.all_free
        assert stage.events == []

    virtual.run(main)
