"""One call through gates and attempts, counted at the provider. The class under test is never patched."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from calls.bodies import put
from loops import Run, World
from stage import USER, Stage, set_stage
from weathers.kinds import Crowd
from weathers.virtual import WeatherProvider

from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.call import Call, Format
from headgate.core.errors import (
    DeadlineExceeded,
    OutputInvalid,
    QueueFull,
    RequestRejected,
    UpstreamBroken,
    UpstreamMisconfigured,
    UpstreamUnavailable,
)
from headgate.core.failures import Failure
from headgate.core.retry import GiveUp, RetryPolicy, Wait
from headgate.planner import virtual

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}
QUICK = {**NO_JITTER, "first_wait_s": 0.01}


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def test_a_call_that_succeeds_is_made_once() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.5}, keep_events=True)
        reply = await stage.gateway.complete(model="m", messages=USER, agent_id="a1", temperature=0.2)

        assert reply.attempts == stage.provider.calls == 1
        assert reply.upstream == "simulated"
        assert reply.latency_ms == pytest.approx(500)
        assert [type(event) for event in stage.events] == [events.AttemptEnded, events.Responded]
        assert stage.events[1].agent_id == "a1"  # type: ignore[union-attr]

    virtual.run(main)


@pytest.mark.parametrize("failure", [503, 500, 502, 504, 408, "cut"])
def test_a_transient_failure_is_retried_after_the_policy_s_wait(failure: int | str) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0, "script": [failure, failure]}, retry=NO_JITTER, keep_events=True
        )
        reply = await stage.gateway.complete(model="m", messages=USER)

        assert reply.attempts == stage.provider.calls == 3
        assert list(stage.provider.starts) == [0.0, 1.0, 3.0]
        assert [event.delay_ms for event in _of(stage, events.RetryScheduled)] == [1000.0, 2000.0]

    virtual.run(main)


def test_the_delay_that_is_told_is_the_delay_that_is_slept() -> None:
    """An earlier system drew the logged delay a second time."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0, "script": [503, 429, 500], "hold_wait_s": 1.0},
            retry={"max_attempts": 4},
            keep_events=True,
        )
        await stage.gateway.complete(model="m", messages=USER)

        starts = list(stage.provider.starts)
        slept = [later - earlier for earlier, later in pairwise(starts)]
        told = [event.delay_ms / 1000 for event in _of(stage, events.RetryScheduled)]
        assert slept == pytest.approx(told)
        assert len(set(told)) == 3

    virtual.run(main, seed=11)


@pytest.mark.parametrize(
    ("script", "error", "calls"),
    [
        ([400], RequestRejected, 1),
        ([404], RequestRejected, 1),
        ([401], UpstreamMisconfigured, 1),
        ([403], UpstreamMisconfigured, 1),
        (["broken"], UpstreamBroken, 1),
        ([503] * 9, UpstreamUnavailable, 3),
        (["blank"] * 9, OutputInvalid, 3),
    ],
)
def test_what_goes_wrong_decides_what_is_raised_and_how_often_it_was_tried(
    run: Run, script: list[Any], error: type[Exception], calls: int
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": script}, retry=QUICK)

        with pytest.raises(error) as caught:
            await stage.gateway.complete(model="m", messages=USER)

        assert stage.provider.calls == calls
        assert "simulated" in str(caught.value), "the error must say which upstream"

    run(main)


def test_an_error_nobody_foresaw_is_the_cause_of_what_is_raised(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"script": ["broken"]})
        with pytest.raises(UpstreamBroken) as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert isinstance(caught.value.__cause__, RuntimeError)

    run(main)


class _BrokenPolicy(RetryPolicy):
    def decide(self, failure: Failure, *, attempt: int, remaining_s: float, chance: float) -> Wait | GiveUp:
        raise ZeroDivisionError


def test_a_retry_policy_that_breaks_means_no_retry_and_the_provider_s_error(
    run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"script": [503]})
        with pytest.raises(UpstreamUnavailable) as caught:
            await stage.gateway.complete(model="m", messages=USER, retry=_BrokenPolicy())
        assert caught.value.failure.status == 503
        assert stage.provider.calls == 1

    with caplog.at_level(logging.ERROR, "headgate"):
        run(main)
    assert "retry policy" in caplog.text


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (0, "m: no answer within 1.0 s (not queued, 1 attempt made)"),
        (1, "m: no answer within 1.0 s (0.4 s in the queue, 1 attempt made)"),
        (2, "m: no answer within 1.0 s (1.0 s in the queue, 0 attempts made)"),
    ],
)
def test_a_missed_deadline_says_where_the_time_went(ahead: int, words: str) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 60, "slots": 1, "script": [{"latency_s": 0.4 if ahead == 1 else 60}]}
        )
        ask = stage.gateway.complete
        holders = [asyncio.create_task(ask(model="m", messages=USER)) for _ in range(min(ahead, 1))]
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded) as caught:
            await ask(model="m", messages=USER, deadline_s=1)
        assert str(caught.value) == words
        for holder in holders:
            holder.cancel()

    virtual.run(main)


def test_one_deadline_covers_waiting_attempts_and_fallbacks() -> None:
    async def main(world: World) -> None:
        slow = {"latency_s": 60.0, "slots": 1}
        stage = set_stage(world, slow, slow)
        with pytest.raises(DeadlineExceeded, match="1 attempt made"):
            await stage.gateway.complete(model="m", messages=USER, deadline_s=7)
        assert stage.now == pytest.approx(7.0)
        assert stage.provider.cancelled == 1
        assert stage.free_slots == 2

    virtual.run(main)


def test_a_long_wait_gives_the_slot_back_and_a_short_one_keeps_it() -> None:
    async def main(world: World, hold_wait_s: float) -> list[float]:
        stage = set_stage(
            world,
            {"slots": 1, "latency_s": 1.0, "script": [503], "hold_wait_s": hold_wait_s},
            retry={**NO_JITTER, "first_wait_s": 5.0},
        )
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(2)))
        return list(stage.provider.starts)

    assert virtual.run(lambda world: main(world, hold_wait_s=10.0)) == [0.0, 6.0, 7.0]
    assert virtual.run(lambda world: main(world, hold_wait_s=2.0)) == [0.0, 1.0, 6.0]


@pytest.mark.parametrize(
    "first",
    [
        {"script": [401]},
        {"script": [503] * 3},
        {"script": ["timeout"]},
        {"script": [{"status": 429, "retry_after_s": 60}]},
    ],
)
def test_the_next_upstream_takes_over(run: Run, first: dict[str, Any]) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0, **first},
            {"latency_s": 0, "model": "instant"},
            retry=QUICK,
            keep_events=True,
        )
        reply = await stage.gateway.complete(model="m", messages=USER)
        assert reply.upstream == "simulated/instant"
        assert [event.next_upstream for event in _of(stage, events.FellBack)] == ["simulated/instant"]

    run(main)


def test_a_request_that_is_wrong_itself_is_not_carried_to_the_next_upstream(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"script": [400]}, {})
        with pytest.raises(RequestRejected):
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.providers[1].calls == 0

    run(main)


@pytest.mark.parametrize("spill", [False, True])
def test_a_full_queue_spills_over_only_when_that_is_asked_for(run: Run, spill: bool) -> None:
    """The next upstream may be the one that costs money."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"slots": 1, "depth": 1, "latency_s": 0.05, "spill": spill},
            {"latency_s": 0.01, "model": "slow"},
        )
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        if spill:
            taken_by = [result.upstream for result in results if isinstance(result, Reply)]
            assert sorted(taken_by) == ["simulated", "simulated", "simulated/slow"]
        else:
            assert sum(isinstance(result, QueueFull) for result in results) == 1

    run(main)


@pytest.mark.parametrize("slots", [2, 8, 64])
def test_calls_that_all_find_a_slot_are_not_refused_for_want_of_room_to_wait(slots: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": slots, "depth": 1, "latency_s": 1.0})
        calls = (stage.gateway.complete(model="m", messages=USER) for _ in range(slots))
        assert len(await asyncio.gather(*calls)) == slots
        assert stage.now < 2

    virtual.run(main)


def test_a_misconfigured_upstream_is_held_and_says_what_to_check() -> None:
    """A wrong key once turned every item of a run into a quiet default."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.01, "script": [401] * 4}, keep_events=True)
        for _ in range(5):
            with pytest.raises(UpstreamMisconfigured, match="check"):
                await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == 3
        assert [event.held for event in _of(stage, events.UpstreamHeld)] == [True]
        await asyncio.sleep(31)
        with pytest.raises(UpstreamMisconfigured):
            await stage.gateway.complete(model="m", messages=USER)
        await asyncio.sleep(61)
        await stage.gateway.complete(model="m", messages=USER)
        assert [event.held for event in _of(stage, events.UpstreamHeld)] == [True, False]

    virtual.run(main)


def test_an_ambiguous_code_is_misconfigured_when_nothing_has_ever_worked(run: Run) -> None:
    async def main(world: World) -> None:
        validation = {"status": 400, "code": "ValidationException"}
        stage = set_stage(world, {"latency_s": 0.01, "script": [validation] * 4})
        for expected in (RequestRejected, RequestRejected, UpstreamMisconfigured, UpstreamMisconfigured):
            with pytest.raises(expected):
                await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == 3

    run(main)


def test_a_check_that_fails_makes_the_model_try_again_with_the_slot_in_hand(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"slots": 1, "latency_s": 0.1, "answers": ["MAYBE", "ACT_NOW"]}, keep_events=True
        )

        def known_label(answer: Any) -> None:
            if answer.content not in {"ACT_NOW", "THINK", "FYI", "IGNORE"}:
                raise ValueError(f"unknown label {answer.content!r}")

        first = asyncio.create_task(stage.gateway.complete(model="m", messages=USER, check=known_label))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        reply = await first
        assert (reply.content, reply.attempts) == ("ACT_NOW", 2)
        assert not second.done(), "the second caller did not get in between"
        await second

    run(main)


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
        call = asyncio.create_task(stage.gateway.complete(model="m", messages=USER, max_tokens=500))
        await asyncio.sleep(2.0)
        assert upstream.gate.admission.pacing._tokens > 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert stage.provider.cancelled == 1
        assert stage.provider.in_flight == 0
        assert stage.free_slots == 1
        assert upstream.gate.admission.pacing._tokens == 0
        assert len(_of(stage, events.Cancelled)) == 1
        assert not _of(stage, events.Responded)

    virtual.run(main)


@pytest.mark.parametrize("adaptive", [True, False])
def test_what_is_learned_of_an_upstream_s_room_is_told_and_shown(adaptive: bool) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"slots": 32, "depth": 0, "adaptive": adaptive},
            timeouts={"total_s": 600},
            keep_events=True,
        )
        crowd = Crowd(most=4, hint_s=None, answer_s=0.4)
        stage.gateway.routes.find("m").upstreams[0].provider = WeatherProvider(crowd, world)  # type: ignore[arg-type]  # virtual here
        asked = [{"role": "user", "content": "size=1"}]
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=asked) for _ in range(400)))
        told = [event.limit for event in _of(stage, events.LimitChanged)]
        gate = stage.gateway.status().upstreams[0]
        assert gate.refused_share > 0
        if adaptive:
            assert any("calls in flight" in words for words in told)
            assert gate.limit_measure == "in_flight"
            assert gate.limit_most is not None
            assert 3 <= gate.limit_most <= 8
            assert gate.limit == told[-1]
        else:
            assert not told
            assert (gate.limit, gate.limit_measure, gate.limit_most) == ("", None, None)

    virtual.run(main, seed=1)


def test_a_hanging_upstream_is_left_when_first_token_s_is_set() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"script": ["stall"]}, {"latency_s": 1.0, "model": "slow"}, timeouts={"first_token_s": 2}
        )
        assert (await stage.gateway.complete(model="m", messages=USER)).upstream == "simulated/slow"
        assert stage.now == pytest.approx(3.0)

    virtual.run(main)


def test_attempts_count_the_calls_to_all_upstreams(run: Run) -> None:
    async def main(world: World) -> None:
        down = {"latency_s": 0.01, "script": [503] * 9, "breaker": False}
        stage = set_stage(world, down, {**down, "model": "slow"}, retry=QUICK)
        with pytest.raises(UpstreamUnavailable, match="6 attempts") as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert caught.value.attempts == 6

    run(main)


@pytest.mark.parametrize("tokens", [10**20, 10**400])
def test_an_absurd_token_count_harms_nobody_else(run: Run, tokens: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.01, "tokens_per_minute": 1000})
        await stage.gateway.complete(model="m", messages=USER, max_tokens=tokens)
        await stage.gateway.complete(model="m", messages=USER)
        assert stage.all_free

    run(main)


def test_a_refusal_knows_of_an_exhausted_minute() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1, "requests_per_minute": 30, "depth": 3})
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(3)))
        for _ in range(27):
            await stage.gateway.complete(model="m", messages=USER)
        with pytest.raises(QueueFull) as caught:
            await stage.gateway.complete(model="m", messages=USER, deadline_s=10)
        assert caught.value.retry_after_s > 40

    virtual.run(main)


def test_no_event_carries_the_provider_s_or_the_check_s_text(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0.01, "answers": ["SECRET", "fine"], "script": [503]},
            retry=QUICK,
            keep_events=True,
        )

        def check(answer: Any) -> None:
            if answer.content == "SECRET":
                raise ValueError(answer.content)

        await stage.gateway.complete(model="m", messages=USER, check=check)
        failures = [event.failure for event in _of(stage, events.AttemptEnded) if event.failure]
        failures += [event.failure for event in _of(stage, events.RetryScheduled)]
        assert len(failures) == 4
        assert all(failure.message == "" for failure in failures)

    run(main)


def test_a_policy_that_answers_nonsense_means_no_retry(run: Run) -> None:
    class Nonsense(RetryPolicy):
        def decide(self, failure: Failure, *, attempt: int, remaining_s: float, chance: float) -> Any:
            return 3

    async def main(world: World) -> None:
        stage = set_stage(world, {"script": [503]})
        with pytest.raises(UpstreamUnavailable):
            await stage.gateway.complete(model="m", messages=USER, retry=Nonsense())
        assert stage.provider.calls == 1

    run(main)


def test_a_gateway_belongs_to_one_event_loop(run: Run) -> None:
    stages: list[Stage] = []

    async def first(world: World) -> None:
        stages.append(set_stage(world, {"latency_s": 0}))
        await stages[0].gateway.complete(model="m", messages=USER)

    async def second(world: World) -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await stages[0].gateway.complete(model="m", messages=USER)

    run(first)
    run(second)


class _Nonsense:
    formats = frozenset({Format.CHAT})
    reads = False

    def __init__(self, answer: Any, max_calls: int = 1) -> None:
        self.calls = 0
        self.max_calls = max_calls
        self._answer = answer

    async def send(self, _: Call) -> Any:
        self.calls += 1
        return self._answer

    async def send_many(self, calls: Sequence[Call]) -> Any:
        self.calls += 1
        return [self._answer for _ in calls]

    async def stream(self, _: Call) -> AsyncIterator[Any]:
        self.calls += 1
        yield self._answer

    async def aclose(self) -> None:
        """Nothing to close."""


NONSENSE: tuple[Any, ...] = (None, b"text", "text", [], [None], {"choices": []})


@pytest.mark.parametrize(
    ("way", "nonsense"),
    [
        (way, nonsense)
        for way in ("whole", "many", "stream")
        for nonsense in NONSENSE
        if way != "stream" or not isinstance(nonsense, bytes)  # Which are what a stream is made of.
    ],
)
def test_a_provider_that_answers_nonsense_is_broken_and_nobody_hangs(
    run: Run, way: str, nonsense: Any
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {}, keep_events=True)
        provider = _Nonsense(nonsense, max_calls=8 if way == "many" else 1)
        put(stage, provider)
        if way == "many":
            results = await stage.gateway.complete_many([{"messages": USER}] * 3, model="m")
            assert [type(result) for result in results] == [UpstreamBroken] * 3
        elif way == "stream":
            with pytest.raises(UpstreamBroken):
                await anext(stage.gateway.stream(model="m", messages=USER))
        else:
            with pytest.raises(UpstreamBroken, match="the provider's send must return an Answer"):
                await stage.gateway.complete(model="m", messages=USER)
        assert provider.calls == 1
        assert len(_of(stage, events.Responded)) == (3 if way == "many" else 1)
        assert stage.all_free

    run(main)
