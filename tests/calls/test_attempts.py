"""What counts as an attempt, how often a call is sent again, and who pays for it. Counted at the provider."""

import asyncio
from typing import Any

import pytest
from calls.closing import RUN, close, upstream_of
from loops import Run, World, until
from stage import USER, Stage, set_stage

from headgate.core import events
from headgate.core.errors import DeadlineExceeded, HeadgateError, UpstreamThrottled, UpstreamUnavailable
from headgate.core.retry import RetryPolicy, WaitSeries
from headgate.planner import virtual

QUICK = {"max_attempts": 3, "first_wait_s": 0.01, "jitter": "none"}
STEADY = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def _waits_s(stage: Stage) -> list[float]:
    return [event.delay_ms / 1000 for event in _of(stage, events.RetryScheduled)]


# ---- Throttles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [2, 3])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_throttles_cost_no_attempt(max_attempts: int, count: int) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.001}
        stage = set_stage(
            world,
            {"latency_s": 0, "script": [throttled] * count},
            retry={**QUICK, "max_attempts": max_attempts},
        )
        reply = await stage.gateway.complete(model="m", messages=USER)
        assert reply.attempts == stage.provider.calls == count + 1

    virtual.run(main)


@pytest.mark.parametrize("preset", [{"max_attempts": 3, "count_throttles": True}, "web"])
def test_throttles_count_where_the_policy_says_so(preset: Any) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [429] * 9}, retry=preset)
        with pytest.raises(UpstreamThrottled, match="3 attempts") as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == caught.value.attempts == 3

    virtual.run(main)


def test_a_throttled_call_waits_for_the_longer_of_its_hint_and_its_own_backoff() -> None:
    async def main(world: World) -> None:
        hints: list[dict[str, Any]] = [{"status": 429, "retry_after_s": hint} for hint in (7.0, 0.2)]
        stage = set_stage(world, {"latency_s": 0, "script": hints}, retry=STEADY, keep_events=True)
        await stage.gateway.complete(model="m", messages=USER)
        assert _waits_s(stage) == [7.0, 2.0]
        assert list(stage.provider.starts) == pytest.approx([0.0, 7.0, 9.0])

    virtual.run(main)


def test_a_throttled_call_keeps_its_place_in_the_line() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 2.5}
        stage = set_stage(
            world, {"latency_s": 1.0, "slots": 1, "failure_latency_s": 0.0, "script": [throttled]}
        )
        done: list[int] = []

        async def ask(number: int) -> None:
            await stage.gateway.complete(model="m", messages=USER)
            done.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(ask(number))
                await asyncio.sleep(0.01)
        # While it waits for itself the others go on; back in the line it is the oldest.
        assert done == [1, 2, 3, 0, 4, 5]

    virtual.run(main)


def test_only_the_deadline_bounds_the_retries_of_a_throttled_call() -> None:
    """It is told as soon as the next attempt would come too late."""

    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 3.0}
        stage = set_stage(world, {"latency_s": 0, "outcome": throttled}, retry=STEADY)
        with pytest.raises(UpstreamThrottled, match="past the deadline") as caught:
            await stage.gateway.complete(model="m", messages=USER, deadline_s=10)
        assert list(stage.provider.starts)[:3] == pytest.approx([0.0, 3.0, 6.0])
        assert stage.now < 10
        assert caught.value.retry_after_s == 3.0
        assert caught.value.attempts == stage.provider.calls

    virtual.run(main)


def test_throttles_do_not_use_up_the_attempts_that_failures_have() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.01}
        script = [throttled, 503, throttled, 503]
        upstream = {"latency_s": 0, "breaker": False}
        stage = set_stage(world, {**upstream, "script": [*script, "ok"]}, retry=QUICK)
        assert (await stage.gateway.complete(model="m", messages=USER)).attempts == 5
        stage = set_stage(world, {**upstream, "script": [*script, 503]}, retry=QUICK)
        with pytest.raises(UpstreamUnavailable, match="3 of 3 attempts failed"):
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == 5

    virtual.run(main)


@pytest.mark.parametrize(
    "policy", [WaitSeries(waits_s=(0.5,)), RetryPolicy(max_attempts=2), RetryPolicy.bedrock()]
)
def test_a_throttled_call_returns_under_any_policy_that_retries(policy: RetryPolicy) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [429]})
        assert (await stage.gateway.complete(model="m", messages=USER, retry=policy)).attempts == 2

    virtual.run(main)


@pytest.mark.parametrize("policy", [RetryPolicy(max_attempts=1), WaitSeries(waits_s=())])
@pytest.mark.parametrize("failure", [429, 503])
def test_a_policy_of_one_call_is_one_call(policy: RetryPolicy, failure: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [failure]})
        with pytest.raises(HeadgateError, match="1 of 1 attempts failed"):
            await stage.gateway.complete(model="m", messages=USER, retry=policy)
        assert stage.provider.calls == 1

    virtual.run(main)


# ---- Failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_failures_of_an_open_upstream_count(run: Run, max_attempts: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0, "script": [503] * 9}, retry={**QUICK, "max_attempts": max_attempts}
        )
        with pytest.raises(UpstreamUnavailable) as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == caught.value.attempts == max_attempts

    run(main)


def test_failures_of_a_closed_upstream_cost_no_attempt() -> None:
    """They are its probes: a call that happens to be one many times must not be the worse for it."""

    async def main(world: World) -> None:
        upstream = {"latency_s": 0.1, "failure_latency_s": 0.01, "outage": [[0, 40]]}
        stage = set_stage(world, upstream, retry=QUICK)
        first = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(RUN)]
        await until(lambda: upstream_of(stage).closed)
        replies = await asyncio.gather(*first, stage.gateway.complete(model="m", messages=USER))
        assert max(reply.attempts for reply in replies) > 3
        assert sum(reply.attempts for reply in replies) == stage.provider.calls

    virtual.run(main)


def test_a_failure_before_the_closing_still_counts_after_the_opening() -> None:
    async def main(world: World) -> None:
        # The first call's, others that close the upstream, the first call's again as the probe, a probe that passes.
        throttled = {"status": 429, "retry_after_s": 20.0}
        script = [*[503] * RUN, throttled, "ok", 503, 503]
        stage = set_stage(world, {"latency_s": 0, "script": script}, retry={**STEADY, "first_wait_s": 0.5})
        call = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0.1)
        await close(stage)
        await until(lambda: stage.provider.calls == RUN + 1)
        assert upstream_of(stage).closed
        await stage.gateway.complete(model="m", messages=USER)
        assert not upstream_of(stage).closed
        with pytest.raises(UpstreamUnavailable, match="3 of 3 attempts failed") as caught:
            await call
        assert caught.value.attempts == 4

    virtual.run(main)


def test_a_failed_call_that_would_come_too_late_is_told_at_once() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1, "script": [503] * 5}, retry={**STEADY, "first_wait_s": 8})
        with pytest.raises(DeadlineExceeded):
            await stage.gateway.complete(model="m", messages=USER, deadline_s=5)
        assert stage.now == pytest.approx(0.1)

    virtual.run(main)


# ---- Budgets ------------------------------------------------------------------------------------------------------


def test_by_default_there_are_two_retries_for_each_call() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": ["ok", 503, 503, "ok", "ok"]}, retry=QUICK)
        budget, ask = upstream_of(stage).budget, stage.gateway.complete
        budget.left = 10
        left = []
        for _ in range(3):
            await ask(model="m", messages=USER)
            left.append(budget.left)
        assert left == [12, 12, 14]

    virtual.run(main)


def test_when_the_default_budget_is_used_up_throttled_calls_wait_longer_and_are_still_answered() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 1.0}
        script = [throttled, "ok", throttled, "ok", throttled, "ok"]
        # Between the refusals there are answers, so that they do not close the upstream.
        stage = set_stage(world, {"latency_s": 0, "script": script}, retry=QUICK, keep_events=True)
        budget, ask = upstream_of(stage).budget, stage.gateway.complete
        budget.left = -3
        for _ in range(3):
            await ask(model="m", messages=USER)
        assert _waits_s(stage) == [8.0, 1.0, 1.0]
        assert budget.left == 1

    virtual.run(main)


def test_a_longer_hint_is_not_shortened_when_the_budget_is_used_up() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 30.0}
        stage = set_stage(world, {"latency_s": 0, "script": [throttled]}, keep_events=True)
        upstream_of(stage).budget.left = -3
        await stage.gateway.complete(model="m", messages=USER)
        assert _waits_s(stage) == [30.0]

    virtual.run(main)


def test_when_the_default_budget_is_used_up_failed_calls_are_retried_all_the_same() -> None:
    """It would otherwise answer fewer calls than the SDK alone."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [503, 503]}, retry=STEADY, keep_events=True)
        upstream_of(stage).budget.left = -9
        assert (await stage.gateway.complete(model="m", messages=USER)).attempts == 3
        assert _waits_s(stage) == [1.0, 2.0]

    virtual.run(main)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(503, UpstreamUnavailable), ({"status": 429, "retry_after_s": 0.01}, UpstreamThrottled)],
    ids=["failing", "throttled"],
)
def test_a_budget_that_was_set_is_a_cap(failure: Any, error: type[Exception]) -> None:
    async def main(world: World) -> None:
        script = [failure, "ok", failure, *["ok"] * 100, failure, "ok"]
        stage = set_stage(world, {"latency_s": 0, "retry_budget": 0.01, "script": script}, retry=QUICK)
        ask = stage.gateway.complete
        assert (await ask(model="m", messages=USER)).attempts == 2, "one for a hundred calls"
        with pytest.raises(error, match="its retry budget is used up"):
            await ask(model="m", messages=USER)
        for _ in range(100):
            await ask(model="m", messages=USER)
        assert (await ask(model="m", messages=USER)).attempts == 2, "a hundred calls later there is another"

    virtual.run(main)


def test_a_budget_of_nothing_allows_no_retry_at_all() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "retry_budget": 0, "script": [503, "ok"]}, retry=QUICK)
        with pytest.raises(UpstreamUnavailable, match="its retry budget is used up"):
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.provider.calls == 1

    virtual.run(main)


def test_a_next_upstream_takes_what_the_first_may_not_retry(run: Run) -> None:
    async def main(world: World) -> None:
        spent = {"latency_s": 0, "retry_budget": 0.01, "script": [503] * 3}
        stage = set_stage(world, spent, {"latency_s": 0, "model": "instant"}, retry=QUICK)
        upstream_of(stage).budget.left = 0
        reply = await stage.gateway.complete(model="m", messages=USER)
        assert (reply.upstream, reply.attempts) == ("simulated/instant", 2)

    run(main)


def test_an_unusable_answer_is_generated_again_at_no_cost() -> None:
    """The upstream has done its part: its load is no reason to hold back."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "retry_budget": 0.01, "script": ["blank"] * 2}, retry=QUICK)
        upstream_of(stage).budget.left = 0
        assert (await stage.gateway.complete(model="m", messages=USER)).attempts == 3

    virtual.run(main)


def test_the_probes_of_a_closed_upstream_cost_nothing() -> None:
    async def main(world: World) -> None:
        upstream = {"latency_s": 0.1, "failure_latency_s": 0.01, "outage": [[0, 60]], "retry_budget": 0.1}
        stage = set_stage(world, upstream, retry={**QUICK, "first_wait_s": 0.001})
        budget = upstream_of(stage).budget
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(8)]
        await until(lambda: upstream_of(stage).closed)
        left = budget.left
        await asyncio.gather(*calls)
        assert stage.provider.calls > 2 * len(calls)
        assert budget.left >= left

    virtual.run(main)


def test_a_retry_that_was_paid_for_and_never_sent_is_given_back() -> None:
    async def main(world: World, *, cancel_after_s: float) -> float:
        script = [{"status": 503, "latency_s": 0}]
        stage = set_stage(world, {"latency_s": 10, "script": script}, retry=STEADY)
        budget = upstream_of(stage).budget
        budget.left = 10
        call = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(cancel_after_s)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert stage.all_free
        return budget.left

    assert virtual.run(lambda world: main(world, cancel_after_s=0.5)) == 12, "cancelled while it waited"
    assert virtual.run(lambda world: main(world, cancel_after_s=2.0)) == 11, "the retry was in flight"


@pytest.mark.parametrize("way", ["by the door", "by its deadline", "in the line"])
def test_a_retry_that_could_not_be_sent_is_given_back(way: str) -> None:
    async def main(world: World) -> None:
        script = [{"status": 503, "latency_s": 0}, *[{"outcome": "ok", "latency_s": 100}] * 2]
        stage = set_stage(world, {"slots": 1, "script": script}, retry=STEADY)
        budget = upstream_of(stage).budget
        budget.left = 10
        call = asyncio.create_task(stage.gateway.complete(model="m", messages=USER, deadline_s=5))
        await asyncio.sleep(0.5)
        assert budget.left == 11
        holder = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0.1 if way == "by the door" else 1.0)
        assert budget.left == 13, "a second call has come"
        if way == "by the door":
            stage.gateway.routes.close()
        if way == "in the line":
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert stage.provider.calls == 2
        assert budget.left == 14
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)

    virtual.run(main)
