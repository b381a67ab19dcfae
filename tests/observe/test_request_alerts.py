"""The alerts on requests and on the event loop: each fires and clears on a real gateway in virtual time, with one webhook for each."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from jobstage import JobStages, on_job_stages
from observe.alerts_stage import CALM_S, ROUND_S, TEN_MINUTES_S, Watched, watched
from stage import USER

import headgate
from headgate import Context, wiring
from headgate.core.answer import Answer
from headgate.core.call import Call
from headgate.core.errors import HeadgateError
from headgate.core.events import HttpAnswered
from headgate.core.ports.clock import Clock
from headgate.observe.loop_lag import WINDOW_S
from headgate.providers.simulated import SimulatedProvider, options_for

OVER_S = TEN_MINUTES_S + CALM_S + 4 * ROUND_S


def failing(*script: Any, **upstream: Any) -> dict[str, Any]:
    """The model `f`, tried once a call, whose upstream answers by this script."""
    listed = {
        "provider": "simulated",
        "model": "instant",
        "script": list(script),
        "breaker": False,
        **upstream,
    }
    return {"f": {"upstreams": [listed], "retry": {"max_attempts": 1}}}


async def answered(seen: Watched, count: int, **params: Any) -> None:
    for _ in range(count):
        await seen.stage.gateway.complete(model="m", messages=USER, **params)


async def failed(seen: Watched, count: int, **params: Any) -> None:
    for _ in range(count):
        with pytest.raises(HeadgateError):
            await seen.stage.gateway.complete(model="f", messages=USER, **params)


async def expect_it_fires_and_clears(
    seen: Watched, rule: str, value: float, *, after_s: float = OVER_S
) -> None:
    await seen.sleep(ROUND_S)
    assert seen.active == [(rule, "")]
    (alert,) = seen.alerts.active()
    assert alert.value == pytest.approx(value)
    await seen.sleep(after_s)
    await seen.expect_one_incident(rule)


@on_job_stages
async def test_more_than_a_tenth_of_the_requests_are_rejected(stages: JobStages, caplog: Any) -> None:
    throttled = failing(outcome={"status": 429, "retry_after_s": 60})
    async with watched(stages, caplog, {"model": "instant"}, models=throttled, work=False) as seen:
        await answered(seen, 18)
        await failed(seen, 2, deadline_s=5)
        await seen.sleep(ROUND_S)
        assert seen.active == [], "a tenth is not more than a tenth"
        await failed(seen, 1, deadline_s=5)
        await expect_it_fires_and_clears(seen, "rejections", 3 / 21)


@on_job_stages
async def test_one_rejection_of_one_is_no_alert(stages: JobStages, caplog: Any) -> None:
    throttled = failing(outcome={"status": 429, "retry_after_s": 60})
    async with watched(stages, caplog, models=throttled, work=False) as seen:
        await failed(seen, 19, deadline_s=5)
        await seen.sleep(ROUND_S)
        assert seen.active == []
        await failed(seen, 1, deadline_s=5)
        await seen.sleep(ROUND_S)
        assert seen.active == [("rejections", "")]


@on_job_stages
async def test_requests_that_never_reach_a_model_are_rejected_requests_too(
    stages: JobStages, caplog: Any
) -> None:
    """A key's limits, a full backlog, a database that is away."""
    async with watched(stages, caplog, {"model": "instant"}, work=False) as seen:
        await answered(seen, 20)
        for code in ("rate_limited", "queue_full", "store_unavailable"):
            seen.alerts(HttpAnswered(request_id="req_1", status=429, error=code))
        await seen.sleep(ROUND_S)
        assert seen.active == [("rejections", "")]


@on_job_stages
async def test_a_process_that_shuts_down_rejects_without_an_alert(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, {"model": "instant"}, work=False) as seen:
        await answered(seen, 20)
        for _ in range(20):
            seen.alerts(HttpAnswered(request_id="req_1", status=503, error="draining"))
        await seen.sleep(ROUND_S)
        assert seen.active == []


@on_job_stages
async def test_more_than_5_percent_of_the_requests_fail(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, {"model": "instant"}, models=failing(503, 503), work=False) as seen:
        await answered(seen, 19)
        await failed(seen, 1)
        await seen.sleep(ROUND_S)
        assert seen.active == [], "5 % are not more than 5 %"
        await failed(seen, 1)
        await expect_it_fires_and_clears(seen, "errors", 2 / 21)


@on_job_stages
async def test_a_caller_s_own_mistakes_are_no_errors(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, models=failing(*[400] * 30), work=False) as seen:
        await failed(seen, 30)
        await seen.sleep(ROUND_S)
        assert seen.active == []


@on_job_stages
async def test_attempts_of_jobs_are_neither_rejected_requests_nor_errors(
    stages: JobStages, caplog: Any
) -> None:
    """They are tried again and again; `job_delay`, `retry_failures` and `dead_letters` look at jobs."""

    @headgate.task("try", model="f")
    async def try_often(ctx: Context, given: Any) -> None:
        for _ in range(30):
            with suppress(HeadgateError):
                await ctx.llm.complete(messages=USER)

    async with watched(stages, caplog, models=failing(*[503] * 30), tasks=[try_often]) as seen:
        await seen.stage.ended(try_often)
        await seen.sleep(ROUND_S)
        assert seen.active == []


class _Miscounting(SimulatedProvider):
    """Its usage is not what a provider must return: an unexpected exception."""

    @classmethod
    def built(cls, model: str | None, options: Mapping[str, Any], given: Any) -> "_Miscounting":
        name = model or "simulated"
        return cls(options_for(name, options), model=name, clock=given.clock, chance=given.chance)

    async def send(self, call: Call) -> Answer:
        answer = await super().send(call)
        return Answer(body=answer.body, usage="three tokens")  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", ["inside the gateway", "in a provider"])
@on_job_stages
async def test_more_than_1_percent_of_the_requests_break_the_gateway(
    stages: JobStages, caplog: Any, broken: str
) -> None:
    kind = replace(wiring.PROVIDERS["simulated"], build=_Miscounting.built)
    providers = {**wiring.PROVIDERS, "miscounting": kind}
    models = failing("broken")
    if broken == "inside the gateway":
        models = failing(provider="miscounting", tokens_per_minute=10_000)
    async with watched(
        stages,
        caplog,
        {"model": "instant"},
        models=models,
        providers=providers,
        work=False,
        alerts={"error_rate": 1},
    ) as seen:
        await answered(seen, 99)
        await seen.sleep(ROUND_S)
        assert seen.active == []
        with pytest.raises((HeadgateError, AttributeError)):
            await seen.stage.gateway.complete(model="f", messages=USER)
        await seen.sleep(ROUND_S)
        assert seen.active == [], "1 % is not more than 1 %"
        seen.alerts(HttpAnswered(request_id="req_1", status=500, error="internal"))
        await expect_it_fires_and_clears(seen, "server_errors", 2 / 101)


@on_job_stages
async def test_answers_take_longer_than_they_should(stages: JobStages, caplog: Any) -> None:
    """Off unless it is set; of 100 answers the slowest may take as long as it likes."""
    slow = {"f": {"upstreams": [{"provider": "simulated", "latency_s": 8, "slots": 100}]}}
    async with watched(
        stages, caplog, {"latency_s": 1}, models=slow, work=False, alerts={"latency_p99_s": 5}
    ) as seen:
        await answered(seen, 99)
        await seen.stage.gateway.complete(model="f", messages=USER)
        await seen.sleep(ROUND_S)
        assert seen.active == []
        await seen.stage.gateway.complete(model="f", messages=USER)
        await seen.sleep(ROUND_S)
        (alert,) = seen.alerts.active()
        assert (alert.rule, alert.threshold) == ("latency", 5)
        assert alert.value == pytest.approx(8, rel=0.01)
        await seen.sleep(OVER_S)
        await seen.expect_one_incident("latency")


@on_job_stages
async def test_latency_is_not_watched_unless_a_bound_is_set(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, {"latency_s": 200}, work=False) as seen:
        await answered(seen, 20)
        await seen.sleep(ROUND_S)
        assert seen.active == []


class _StallingClock:
    """A clock whose event loop can be held up: time goes on, and no timer runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalled_s = 0.0

    def stall(self, seconds: float) -> None:
        self._stalled_s += seconds

    def now(self) -> float:
        return self._clock.now() + self._stalled_s

    def since_boot(self) -> float:
        return self._clock.since_boot()

    def utc(self) -> datetime:
        return self._clock.utc()

    def follow(self, epoch_s: float) -> None:
        self._clock.follow(epoch_s)

    def sleep(self, seconds: float) -> Any:
        return self._clock.sleep(seconds)

    def outside(self) -> Any:
        return self._clock.outside()


@on_job_stages
async def test_the_event_loop_is_held_up_for_more_than_half_a_second(stages: JobStages, caplog: Any) -> None:
    clock = _StallingClock(stages.world.clock)
    async with watched(stages, caplog, work=False, clock=clock) as seen:
        await seen.sleep(ROUND_S)
        clock.stall(0.4)
        await seen.sleep(ROUND_S)
        assert seen.active == []
        clock.stall(0.8)
        await expect_it_fires_and_clears(seen, "loop_lag", 0.8, after_s=WINDOW_S + CALM_S + 4 * ROUND_S)
