"""Slow calls get a second attempt: when and where, which answer wins, and what becomes of the other."""

import asyncio
from typing import Any

import pytest
from calls.hedge_stage import (
    FIRST,
    SECOND,
    ask,
    asking,
    calls,
    ends,
    hedge,
    hedged_stage,
    idle,
    read,
    told,
)
from jobstage import JobStages, on_job_stages
from loops import Run, World, until
from observe.metrics_stage import page
from stage import USER, set_stage

from headgate.core import events
from headgate.core.errors import DeadlineExceeded, RequestRejected, UpstreamUnavailable
from headgate.core.failures import Failure, FailureKind
from headgate.core.hedging import BURST, ENOUGH
from headgate.core.ticket import CHAT
from headgate.observe.metrics import Metrics
from headgate.planner import virtual

SOON = 0.02
"""`after` where the test also runs on real loops."""
QUICK = {"latency_s": 0.001}
STUCK = {"script": ["stall"] * 9}
ONCE = {"max_attempts": 1}
STEADY = {"max_attempts": 3, "first_wait_s": 0.5, "jitter": "none"}


def _slow(*latencies_s: float) -> dict[str, Any]:
    return {"script": [{"latency_s": latency_s} for latency_s in latencies_s]}


def _failing(*after_s: float, status: int = 503) -> dict[str, Any]:
    return {"script": [{"status": status, "latency_s": latency_s} for latency_s in after_s]}


# ---- When ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.02, 0.25, 2.0])
def test_the_second_attempt_begins_exactly_after_the_fixed_time(after: float) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(30.0), {}, after=after)
        reply = await ask(stage)
        assert (reply.upstream, reply.attempts) == (SECOND, 2)
        assert stage.providers[1].starts[0] == pytest.approx(after)
        assert stage.now == pytest.approx(after + 1.0)

    virtual.run(main)


def test_a_call_that_is_answered_in_time_stays_alone(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, QUICK, QUICK, after=30.0)
        for _ in range(20):
            assert (await ask(stage)).attempts == 1
        assert calls(stage) == [20, 0]
        assert not told(stage, events.Hedged)
        assert idle(stage)

    run(main)


def test_a_quantile_is_learned_from_the_answers_before() -> None:
    async def main(world: World) -> None:
        learned = [0.1 * number for number in range(1, ENOUGH + 5)]
        stage = set_stage(
            world,
            {"latency_s": 0.5, "model": "instant", **_slow(50.0, *learned, 50.0)},
            {"latency_s": 0.5, "model": "slow"},
            keep_events=True,
            hedge={"after": "p90"},
        )
        assert (await ask(stage)).attempts == 1
        assert stage.now == pytest.approx(50.0), "nothing was known yet"
        for _ in learned:
            await ask(stage)
        assert calls(stage) == [1 + len(learned), 0]
        asked_at = stage.now
        assert (await ask(stage)).upstream == SECOND
        assert stage.providers[1].starts[0] - asked_at == pytest.approx(1.4), "the second slowest"

    virtual.run(main)


def test_quick_failures_do_not_make_answers_look_quick() -> None:
    """An upstream that throttles refuses within milliseconds. Those are no answers: else every call would be slow."""

    async def main(world: World) -> None:
        script = {"script": ["ok"] * 50 + [{"status": 429, "retry_after_s": 0.1}, 503, "ok"] * 100}
        stage = hedged_stage(world, script, after="p50", retry={**STEADY, "first_wait_s": 0.1})
        for _ in range(80):
            await ask(stage)
        hedging = stage.gateway.routes.find("m").hedging
        assert hedging is not None
        assert hedging.after_s(streamed=False) == pytest.approx(1.0)

    virtual.run(main)


def test_callers_that_leave_early_do_not_make_answers_look_quick() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {}, after="p50")
        for _ in range(50):
            await ask(stage)
        for _ in range(300):
            call = asking(stage)
            await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        hedging = stage.gateway.routes.find("m").hedging
        assert hedging is not None
        assert hedging.after_s(streamed=False) == pytest.approx(1.0)

    virtual.run(main)


def test_attempts_that_were_overtaken_count_as_slow_ones() -> None:
    """Else an upstream that has become slow would look quick for ever."""

    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(*[1.0] * 20, *[50.0] * 100), {}, after="p90", patience_s=300)
        for _ in range(80):
            await ask(stage)
        assert calls(stage)[0] == 80
        hedging = stage.gateway.routes.find("m").hedging
        assert hedging is not None
        after_s = hedging.after_s(streamed=False)
        assert after_s is not None
        assert after_s >= 2.0

    virtual.run(main)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_share_bounds_the_second_attempts(share: float) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"latency_s": 5.0}, {"latency_s": 60.0}, share=share, patience_s=300)
        for _ in range(200):
            assert (await ask(stage)).upstream == FIRST
        count = len(told(stage, events.Hedged))
        assert 200 * share <= count <= 200 * share + BURST
        assert calls(stage) == [200, count]
        assert idle(stage)

    virtual.run(main)


@on_job_stages
async def test_the_calls_of_jobs_get_no_second_attempt(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 9.0})
    hedge(stage.gateway, 2.0)
    asked: dict[str, Any] = {"model": "m", "messages": USER}
    await stage.ended("chat", asked)
    assert stage.provider.calls == 1
    await stage.gateway.complete(**asked)
    assert stage.provider.calls == 3


# ---- Where --------------------------------------------------------------------------------------------------------


def test_the_other_upstream_is_preferred() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(30.0), {})
        assert (await ask(stage)).upstream == SECOND
        assert calls(stage) == [1, 1]

    virtual.run(main)


def test_where_there_is_no_other_the_same_upstream_is_called_again(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, "script": ["stall"]}, after=SOON)
        reply = await ask(stage)
        assert (reply.upstream, reply.attempts) == (FIRST, 2)
        assert stage.provider.cancelled == 1
        assert idle(stage)

    run(main)


@pytest.mark.parametrize("state", ["full", "closed", "held", "paused", "used up"])
def test_an_upstream_that_takes_no_call_now_is_passed_over(state: str) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(30.0), {"slots": 1})
        upstream = stage.gateway.routes.find("m").upstreams[1]
        admission = upstream.gate.admission
        match state:
            case "full":
                admission.held = 1
            case "closed":
                admission.intake.until = 1000.0
            case "held":
                for _ in range(3):
                    admission.holds.record(
                        Failure(kind=FailureKind.MISCONFIGURED), CHAT, "local", probe=False, now=1000.0
                    )
            case "paused":
                upstream.gate.close()
            case _:
                admission.intake._last_at = 0.0
                admission.intake._ramp(2.0, 0.0)
                admission.intake.in_flight = 5
        reply = await ask(stage)
        assert reply.upstream == FIRST
        assert stage.now == pytest.approx(3.0)
        assert calls(stage) == [2, 0]

    virtual.run(main)


def test_an_upstream_that_asked_this_call_to_wait_is_not_asked_before() -> None:
    async def main(world: World) -> None:
        throttling = {"script": [{"status": 429, "retry_after_s": 60.0}]}
        stage = hedged_stage(world, throttling, _slow(30.0))
        reply = await ask(stage)
        assert (reply.upstream, reply.attempts) == (SECOND, 3)
        assert calls(stage) == [1, 2]
        assert stage.now == pytest.approx(3.0)

    virtual.run(main)


def test_an_upstream_that_has_failed_this_call_for_good_is_not_asked_again() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _failing(0.0), _slow(30.0), retry=ONCE)
        assert (await ask(stage)).upstream == SECOND
        assert calls(stage) == [1, 2]

    virtual.run(main)


def test_without_a_place_it_looks_again_until_there_is_one() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"slots": 1, **_slow(30.0)}, {"slots": 1}, after=2.0)
        admission = stage.gateway.routes.find("m").upstreams[1].gate.admission
        admission.held = 1
        call = asking(stage)
        await asyncio.sleep(7.0)
        assert calls(stage) == [1, 0]
        admission.held = 0
        assert (await call).upstream == SECOND
        assert 8.0 <= stage.now <= 8.2
        assert idle(stage)

    virtual.run(main)


def test_a_second_attempt_never_takes_a_slot_from_those_who_wait() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"slots": 1, "latency_s": 10.0})
        waiting = [asking(stage) for _ in range(4)]
        await asyncio.gather(*waiting)
        assert stage.provider.calls == 4
        assert stage.provider.most_in_flight == 1
        assert not told(stage, events.Hedged)

    virtual.run(main)


def test_a_paced_upstream_takes_it_when_its_pacing_allows() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"interval_s": 5.0, **_slow(30.0)})
        assert (await ask(stage)).attempts == 2
        assert stage.provider.starts[1] == pytest.approx(5.0, abs=0.11)
        third = asking(stage)
        await until(lambda: stage.provider.calls == 3)
        assert stage.provider.starts[2] - stage.provider.starts[1] >= 5.0, "it counts as a start"
        await third
        assert idle(stage)

    virtual.run(main)


def test_too_little_time_for_a_usual_answer_at_a_paced_upstream_breaks_nothing() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"interval_s": 0.001, "script": ["ok"] * 8 + ["stall"] * 9})
        for _ in range(8):
            await ask(stage)
        with pytest.raises(DeadlineExceeded):
            await ask(stage, deadline_s=2.5)
        assert idle(stage)

    virtual.run(main)


# ---- Which wins ---------------------------------------------------------------------------------------------------


def test_the_first_answer_wins_and_the_other_attempt_is_over_at_once(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **STUCK}, QUICK, after=SOON)
        reply = await ask(stage)
        assert idle(stage), "before anybody else has run"
        assert (reply.upstream, reply.attempts) == (SECOND, 2)
        assert [provider.cancelled for provider in stage.providers] == [1, 0]
        assert sorted(ends(stage), key=str) == [(FIRST, "cancelled"), (SECOND, None)]
        [told_once] = told(stage, events.Hedged)
        assert (told_once.upstream, told_once.second_upstream, told_once.won) == (FIRST, SECOND, True)
        [responded] = told(stage, events.Responded)
        assert (responded.upstream, responded.attempts, responded.error) == (SECOND, 2, None)

    run(main)


def test_the_first_attempt_may_win_as_well(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **_slow(0.1)}, {**QUICK, **STUCK}, after=SOON)
        reply = await ask(stage)
        assert idle(stage)
        assert (reply.upstream, reply.attempts) == (FIRST, 2)
        assert sorted(ends(stage), key=str) == [(FIRST, None), (SECOND, "cancelled")]
        assert [event.won for event in told(stage, events.Hedged)] == [False]

    run(main)


@pytest.mark.parametrize("second", [None, {}], ids=["same upstream", "another"])
def test_a_second_attempt_is_counted_as_a_hedge_and_not_as_a_retry(second: dict[str, Any] | None) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(30.0), second)
        metrics = Metrics(models=lambda: ["m"], status=stage.gateway.status)
        stage.gateway.listen(metrics)
        await ask(stage)
        assert [event.attempt for event in told(stage, events.AttemptEnded)] == [1, 1]
        counted = page(metrics)
        where = FIRST if second is None else SECOND
        assert counted("headgate_hedges_total", model="m", upstream=where, won="true") == 1
        assert counted("headgate_hedges_total") == 1
        assert counted("headgate_attempts_total") == 2
        assert counted("headgate_retries_total") == counted("headgate_retries_scheduled_total") == 0

    virtual.run(main)


def test_the_time_of_a_race_is_counted_once() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(30.0), {"latency_s": 4.0})
        await ask(stage)
        [responded] = told(stage, events.Responded)
        assert responded.latency_ms == pytest.approx(6000)
        assert responded.upstream_ms == pytest.approx(6000)
        assert responded.queue_ms == 0

    virtual.run(main)


def test_a_failure_waits_for_the_second_attempt() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _failing(3.0), {"latency_s": 5.0}, retry=STEADY)
        reply = await ask(stage)
        assert (reply.upstream, reply.attempts) == (SECOND, 2)
        assert stage.now == pytest.approx(7.0)
        assert not told(stage, events.RetryScheduled)
        assert idle(stage)

    virtual.run(main)


def test_a_failed_second_attempt_does_not_end_the_first() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _slow(6.0), _failing(1.0), retry=STEADY)
        reply = await ask(stage)
        assert (reply.upstream, reply.attempts) == (FIRST, 2)
        assert stage.now == pytest.approx(6.0)
        assert ends(stage) == [(SECOND, "transient"), (FIRST, None)]
        assert not told(stage, events.RetryScheduled)

    virtual.run(main)


@pytest.mark.parametrize("second_after_s", [0.5, 5.0], ids=["second fails first", "first fails first"])
def test_if_both_fail_the_first_failure_is_the_call_s(second_after_s: float) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _failing(4.0, status=400), _failing(second_after_s), retry=ONCE)
        with pytest.raises(RequestRejected) as caught:
            await ask(stage)
        assert caught.value.attempts == 2
        assert stage.now == pytest.approx(max(4.0, 2.0 + second_after_s))
        assert sorted(ends(stage)) == [(FIRST, "rejected"), (SECOND, "transient")]
        assert idle(stage)

    virtual.run(main)


def test_two_failures_of_one_race_count_once_against_the_call() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, _failing(4.0, 1.0), retry={**STEADY, "max_attempts": 2})
        reply = await ask(stage)
        assert reply.attempts == 3
        assert len(told(stage, events.RetryScheduled)) == 1
        assert stage.now == pytest.approx(4.0 + 0.5 + 1.0)

    virtual.run(main)


def test_when_the_attempts_are_used_up_the_call_fails_with_all_of_them_counted() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(
            world, {**_failing(*[3.0] * 4), "breaker": False}, retry={**STEADY, "max_attempts": 2}
        )
        with pytest.raises(UpstreamUnavailable) as caught:
            await ask(stage)
        assert caught.value.attempts == stage.provider.calls == 4
        assert idle(stage)

    virtual.run(main)


# ---- Ends in the middle of a race ---------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_ends_both_attempts(run: Run, streamed: bool) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(
            world, {**STUCK, "cut_after_chunks": 0}, {**STUCK, "cut_after_chunks": 0}, after=SOON
        )
        with pytest.raises(DeadlineExceeded) as caught:
            await (read if streamed else ask)(stage, deadline_s=0.2)
        assert idle(stage)
        assert caught.value.attempts == 2
        assert sorted(ends(stage)) == [(FIRST, "expired"), (SECOND, "expired")]
        assert [provider.cancelled for provider in stage.providers] == [1, 1]
        assert [event.won for event in told(stage, events.Hedged)] == [False]

    run(main)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_caller_that_leaves_ends_both_attempts(run: Run, streamed: bool) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(
            world, {**STUCK, "cut_after_chunks": 0}, {**STUCK, "cut_after_chunks": 0}, after=SOON
        )
        call = asyncio.create_task((read if streamed else ask)(stage))
        await until(lambda: calls(stage) == [1, 1])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert idle(stage)
        assert sorted(ends(stage)) == [(FIRST, "cancelled"), (SECOND, "cancelled")]
        assert len(told(stage, events.Cancelled)) == 1

    run(main)
