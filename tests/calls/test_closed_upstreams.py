"""Calls to an upstream that refuses or fails without a gap: they wait for it, or are refused at once with its end."""

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest
from calls.closing import ONCE, RUN, close, upstream_of
from loops import Run, World, until
from stage import USER, Stage, set_stage

from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    UpstreamThrottled,
    UpstreamUnavailable,
)
from headgate.planner import virtual

THROTTLED = {"status": 429, "retry_after_s": 10.0}
KINDS = pytest.mark.parametrize("refusal", [THROTTLED, 503], ids=["throttled", "failing"])


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def _closing(refusal: Any, *more: Any, times: int = RUN) -> dict[str, Any]:
    """An upstream that refuses its first calls at once and then takes a second for each answer."""
    return {"latency_s": 1.0, "failure_latency_s": 0.0, "script": [refusal] * times + list(more)}


def _asks(stage: Stage, count: int, **options: Any) -> list[asyncio.Task[Reply]]:
    return [
        asyncio.create_task(stage.gateway.complete(model="m", messages=USER, **options)) for _ in range(count)
    ]


# ---- Closing and opening ------------------------------------------------------------------------------------------


@KINDS
def test_calls_wait_through_a_closed_upstream_and_are_answered_when_it_opens(refusal: Any) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal), keep_events=True)
        await close(stage)
        replies = await asyncio.gather(*_asks(stage, 10))
        assert [reply.attempts for reply in replies] == [1] * 10
        assert stage.provider.calls == RUN + 10
        assert stage.all_free

    virtual.run(main)


@KINDS
def test_only_one_call_starts_before_the_upstream_is_seen_to_take_calls(refusal: Any) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal))
        await close(stage)
        closed_at, probed_in_s = stage.now, upstream_of(stage).probed_in_s()
        assert probed_in_s
        await asyncio.gather(*_asks(stage, 10))
        probe_at, *others = list(stage.provider.starts)[RUN:]
        assert probe_at == pytest.approx(closed_at + probed_in_s)
        assert min(others) >= probe_at + 0.3
        assert min(others) < probe_at + 1.0, (
            "a call that is not refused quickly has passed; its answer may take long"
        )

    virtual.run(main)


def test_a_run_of_throttles_is_told_as_a_pause() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(THROTTLED), keep_events=True)
        await close(stage)
        pause_s = upstream_of(stage).probed_in_s()
        assert [event.pause_s for event in _of(stage, events.GatePaused)] == [pause_s]
        assert not _of(stage, events.BreakerChanged)
        gate = stage.gateway.status().upstreams[0]
        assert (gate.closed, gate.pause_s, gate.condition) == (True, pause_s, "ok")
        assert gate.accepting, "who has time may wait"
        await asyncio.gather(*_asks(stage, 1))
        gate = stage.gateway.status().upstreams[0]
        assert (gate.closed, gate.pause_s) == (False, 0.0)

    virtual.run(main)


def test_a_run_of_failures_is_told_as_an_open_breaker_until_a_probe_passes() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(503, times=RUN + 1), keep_events=True)
        await close(stage)
        gate = stage.gateway.status().upstreams[0]
        assert (gate.closed, gate.pause_s, gate.condition) == (True, 0.0, "open")
        await asyncio.gather(*_asks(stage, 1))
        changes = [(event.state, event.retry_in_s > 0) for event in _of(stage, events.BreakerChanged)]
        assert changes == [("open", True), ("open", True), ("closed", False)]
        assert not _of(stage, events.GatePaused)

    virtual.run(main)


@KINDS
@pytest.mark.parametrize("refused", range(1, RUN))
def test_fewer_refusals_may_be_chance_and_close_nothing(refusal: Any, refused: int) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal, times=refused), keep_events=True)
        await asyncio.gather(*_asks(stage, refused, retry=ONCE), return_exceptions=True)
        await asyncio.gather(*_asks(stage, 5))
        assert stage.now < 1.1, "nobody waited"
        assert not _of(stage, events.GatePaused) + _of(stage, events.BreakerChanged)

    virtual.run(main)


def test_a_retry_after_is_for_the_call_that_got_it() -> None:
    """Of two callers one is asked to wait 7 s: the other goes on."""

    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 7}
        stage = set_stage(world, {"latency_s": 0.1, "slots": 1, "script": [throttled]}, keep_events=True)
        first, second = _asks(stage, 2)
        assert (await second).attempts == 1
        assert stage.now == pytest.approx(0.2)
        assert (await first).attempts == 2
        assert list(stage.provider.starts) == pytest.approx([0.0, 0.1, 7.1])
        assert not _of(stage, events.GatePaused)

    virtual.run(main)


def test_a_hint_is_obeyed_only_as_long_as_the_operator_allows() -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 1000}
        stage = set_stage(world, {"latency_s": 0.1, "longest_pause_s": 5, "script": [throttled]})
        await stage.gateway.complete(model="m", messages=USER)
        assert list(stage.provider.starts) == pytest.approx([0.0, 5.1])

    virtual.run(main)


def test_without_a_breaker_throttles_close_it_and_failures_do_not() -> None:
    async def main(world: World, refusal: Any) -> bool:
        stage = set_stage(world, {"breaker": False, **_closing(refusal, times=2 * RUN)})
        await asyncio.gather(*_asks(stage, 2 * RUN, retry=ONCE), return_exceptions=True)
        return upstream_of(stage).closed

    assert virtual.run(lambda world: main(world, THROTTLED))
    assert not virtual.run(lambda world: main(world, 503))


def test_probes_go_one_by_one_and_rarely_while_the_upstream_stays_down() -> None:
    async def main(world: World) -> None:
        upstream = {"latency_s": 1.0, "failure_latency_s": 0.02, "outage": [[0, 30]]}
        stage = set_stage(world, upstream)
        replies = await asyncio.gather(*_asks(stage, 20, deadline_s=60))
        assert len(replies) == 20
        down = [start for start in stage.provider.starts if start < 30]
        probes = [start for start in down if start > 0.1]
        assert all(later - earlier >= 0.25 for earlier, later in pairwise(probes))
        assert 5 <= len(probes) <= 20
        assert stage.now < 40, "it is found to be up again within a quarter of the time that it was down"

    virtual.run(main)


@pytest.mark.parametrize("moment", ["in the line", "in flight"])
def test_a_probe_whose_caller_leaves_makes_room_for_the_next(run: Run, moment: str) -> None:
    async def main(world: World) -> None:
        # What took too long had been accepted, so that a probe in flight proves nothing: it must be answered.
        stage = set_stage(
            world, {"latency_s": 0.05, "script": [504] * RUN + ["stall"] * (moment == "in flight")}
        )
        await close(stage)
        probe, *others = _asks(stage, 4)
        if moment == "in flight":
            await until(lambda: stage.provider.calls == RUN + 1)
        else:
            await asyncio.sleep(0)
        probe.cancel()
        replies = await asyncio.gather(*others)
        assert [reply.attempts for reply in replies] == [1, 1, 1]
        assert stage.all_free

    run(main)


# ---- Those who do not wait ----------------------------------------------------------------------------------------


IMPATIENT = pytest.mark.parametrize(
    ("model", "call"),
    [({"wait": False}, {}), ({}, {"waits": False}), ({}, {"goes_back": True})],
    ids=["the model", "the call", "a job"],
)


async def _ask_without_waiting(stage: Stage, *, number: int = 0, **call_changes: Any) -> None:
    """A call with the envelope changed, as the server and the runner do."""
    requests = stage.gateway.requests
    call = requests.begin(f"impatient-{number}", "m", {"messages": USER})
    for name, value in call_changes.items():
        setattr(call, name, value)
    (await requests.dispatcher.run(call)).release()


@KINDS
@IMPATIENT
def test_who_does_not_wait_is_refused_at_once_with_the_end(
    refusal: Any, model: dict[str, Any], call: dict[str, Any]
) -> None:
    """And is answered if it returns then."""

    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal), keep_events=True, **model)
        await close(stage)
        before, probed_in_s = stage.now, upstream_of(stage).probed_in_s()
        with pytest.raises(HeadgateError) as caught:
            await _ask_without_waiting(stage, **call)
        assert isinstance(caught.value, UpstreamThrottled | UpstreamUnavailable)
        assert isinstance(caught.value, UpstreamUnavailable) == (refusal == 503)
        assert stage.now == before
        assert stage.provider.calls == RUN
        assert probed_in_s
        assert caught.value.retry_after_s is not None
        assert max(1.0, probed_in_s) <= caught.value.retry_after_s <= 1.25 * max(1.0, probed_in_s)
        assert _of(stage, events.RequestRefused)[-1].retry_after_s == caught.value.retry_after_s
        await asyncio.sleep(caught.value.retry_after_s)
        await _ask_without_waiting(stage, **call)
        assert stage.all_free

    virtual.run(main)


@IMPATIENT
@pytest.mark.parametrize("slots", [1, 8])
def test_who_does_not_wait_for_a_closed_upstream_waits_for_a_slot(
    slots: int, model: dict[str, Any], call: dict[str, Any]
) -> None:
    """Five that come together to an upstream that takes calls: no one may be sent away."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1.0, "slots": slots}, **model)
        await asyncio.gather(*(_ask_without_waiting(stage, number=number, **call) for number in range(5)))
        assert stage.provider.calls == 5

    virtual.run(main)


@KINDS
def test_who_does_not_wait_leaves_the_line_when_the_upstream_closes(refusal: Any) -> None:
    async def main(world: World) -> None:
        upstream = {**_closing(refusal, times=99), "slots": RUN, "failure_latency_s": 0.5}
        stage = set_stage(world, upstream, wait=False, retry={"max_attempts": 1, "count_throttles": True})
        calls = _asks(stage, 20)
        await asyncio.sleep(0.6)
        waiting = stage.gateway.status().upstreams[0].rt_queue
        assert waiting == 0
        assert stage.provider.calls < 2 * RUN
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, UpstreamUnavailable | UpstreamThrottled) for result in results)

    virtual.run(main)


@pytest.mark.parametrize(
    ("model", "call"), [({"wait": False}, {}), ({}, {"waits": False})], ids=["the model", "the call"]
)
def test_who_does_not_wait_is_told_of_a_throttle_at_once_with_its_hint(
    model: dict[str, Any], call: dict[str, Any]
) -> None:
    """The upstream is open; it is this call that would have to wait."""

    async def main(world: World) -> None:
        stage = set_stage(world, _closing(THROTTLED, times=1), **model)
        with pytest.raises(UpstreamThrottled) as caught:
            await _ask_without_waiting(stage, **call)
        assert stage.now == 0.0
        assert caught.value.retry_after_s >= 10
        assert stage.provider.calls == 1

    virtual.run(main)


def test_a_job_s_call_that_finds_the_upstream_closed_by_its_own_refusal_goes_back() -> None:
    """It would hold up others in the line; its job waits in the store."""

    async def main(world: World) -> None:
        stage = set_stage(world, _closing(THROTTLED))
        for _ in range(RUN - 1):
            with pytest.raises(UpstreamThrottled):
                await stage.gateway.complete(model="m", messages=USER, retry=ONCE)
        before = stage.now
        with pytest.raises(UpstreamThrottled, match="try again in") as caught:
            await _ask_without_waiting(stage, goes_back=True)
        assert stage.now == before
        assert caught.value.retry_after_s >= (upstream_of(stage).probed_in_s() or math.inf)
        assert caught.value.attempts == 1

    virtual.run(main)


# ---- Deadlines ----------------------------------------------------------------------------------------------------


@KINDS
def test_a_caller_whose_deadline_falls_into_the_closed_time_is_refused_at_once_with_its_end(
    refusal: Any,
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal))
        await close(stage)
        before, probed_in_s = stage.now, upstream_of(stage).probed_in_s()
        assert probed_in_s
        with pytest.raises(HeadgateError) as caught:
            await stage.gateway.complete(model="m", messages=USER, deadline_s=probed_in_s * 0.9)
        assert isinstance(caught.value, UpstreamThrottled | UpstreamUnavailable)
        assert stage.now == before
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s >= probed_in_s
        assert (await stage.gateway.complete(model="m", messages=USER, deadline_s=10)).attempts == 1

    virtual.run(main)


def test_a_waiter_leaves_when_a_failed_probe_puts_the_opening_past_its_deadline() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(THROTTLED, times=RUN + 1))
        await close(stage)
        probed_in_s = upstream_of(stage).probed_in_s() or math.inf
        probe_at = stage.now + probed_in_s
        probe, short = _asks(stage, 1)[0], _asks(stage, 1, deadline_s=probed_in_s + 1.0)[0]
        with pytest.raises(UpstreamThrottled) as caught:
            await short
        assert stage.now == pytest.approx(probe_at), "when the probe failed, not when its own time was up"
        assert caught.value.retry_after_s >= (upstream_of(stage).probed_in_s() or math.inf)
        assert caught.value.attempts == 0
        assert (await probe).attempts == 2

    virtual.run(main)


def test_a_waiter_with_too_little_time_left_for_an_answer_is_dismissed_and_its_turn_goes_to_the_next() -> (
    None
):
    async def main(world: World) -> None:
        slow = {"outcome": "ok", "latency_s": 7.5}
        stage = set_stage(world, {"latency_s": 1.0, "slots": 1, "script": ["ok"] * 20 + [slow]})
        for _ in range(20):
            await stage.gateway.complete(model="m", messages=USER)
        began_at = stage.now
        holder = _asks(stage, 1)[0]
        await asyncio.sleep(0)
        late, patient = _asks(stage, 1, deadline_s=8.0)[0], _asks(stage, 1)[0]
        with pytest.raises(DeadlineExceeded, match="too little time") as caught:
            await late
        assert stage.now == pytest.approx(began_at + 7.5), "as soon as it is certain"
        assert caught.value.attempts == 0
        await asyncio.gather(holder, patient)
        assert stage.now == pytest.approx(began_at + 8.5)
        assert stage.provider.calls == 22
        assert stage.provider.cancelled == 0

    virtual.run(main)


def test_waiting_is_bounded_by_the_deadline_and_told_as_such() -> None:
    """An upstream that never comes back: every caller hears of it in time, and few calls were made."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"failure_latency_s": 0.05, "outage": [[0, 1e6]]})
        asked = _asks(stage, 20, deadline_s=30)
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, DeadlineExceeded | UpstreamUnavailable) for error in errors)
        assert stage.now <= 30
        assert stage.provider.calls <= 50
        assert stage.all_free

    virtual.run(main)
