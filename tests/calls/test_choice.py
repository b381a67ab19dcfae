"""Two upstreams of one model: a call goes where its answer is expected first, and changes its mind when one closes."""

import asyncio
from typing import Any

import pytest
from calls.closing import RUN, close, only
from loops import Run, World, until
from stage import USER, Stage, set_stage

from headgate.calls.upstream import Upstream
from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.errors import HeadgateError, UpstreamThrottled, UpstreamUnavailable
from headgate.planner import virtual

STEADY = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}
FIRST, SECOND = "simulated/instant", "simulated/slow"


def _throttled(hint_s: float) -> dict[str, Any]:
    return {"status": 429, "retry_after_s": hint_s}


def _stage(world: World, first: dict[str, Any], second: dict[str, Any], **model: Any) -> Stage:
    """Both take a second to answer and refuse at once, unless said otherwise."""
    usual = {"latency_s": 1.0, "failure_latency_s": 0.0}
    return set_stage(
        world,
        {**usual, "model": "instant", **first},
        {**usual, "model": "slow", **second},
        keep_events=True,
        **model,
    )


def _upstreams(stage: Stage) -> tuple[Upstream, ...]:
    return stage.gateway.routes.find("m").upstreams


def _calls(stage: Stage) -> list[int]:
    return [provider.calls for provider in stage.providers]


def _asks(stage: Stage, count: int, **options: Any) -> list[asyncio.Task[Reply]]:
    return [
        asyncio.create_task(stage.gateway.complete(model="m", messages=USER, **options)) for _ in range(count)
    ]


def _by(replies: list[Reply]) -> list[str]:
    return [reply.upstream for reply in replies]


def _moves(stage: Stage) -> list[tuple[str, str]]:
    return [
        (event.upstream, event.next_upstream) for event in stage.events if isinstance(event, events.FellBack)
    ]


# ---- Which one ----------------------------------------------------------------------------------------------------


def test_among_equals_the_first_is_taken(run: Run) -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"latency_s": 0.01}, {"latency_s": 0.01})
        assert _by([await stage.gateway.complete(model="m", messages=USER) for _ in range(5)]) == [FIRST] * 5

    run(main)


@pytest.mark.parametrize(
    ("slower_by_s", "patience_s", "taken"),
    [(1.5, None, FIRST), (3.0, None, SECOND), (3.0, 4.0, FIRST), (0.5, 0.0, SECOND)],
)
def test_an_earlier_upstream_is_preferred_while_it_is_slower_by_no_more_than_the_patience(
    slower_by_s: float, patience_s: float | None, taken: str
) -> None:
    async def main(world: World) -> None:
        model = {} if patience_s is None else {"patience_s": patience_s}
        stage = _stage(world, {"latency_s": 1.0 + slower_by_s}, {"latency_s": 1.0}, **model)
        for which in (0, 1):
            with only(stage, which) as upstream:
                for _ in range(5):
                    assert (await stage.gateway.complete(model="m", messages=USER)).upstream == upstream.name
        assert (await stage.gateway.complete(model="m", messages=USER)).upstream == taken

    virtual.run(main)


def test_one_that_was_never_called_is_taken_to_be_as_slow_as_the_other() -> None:
    """Otherwise each new upstream would look like the fastest."""

    async def main(world: World) -> None:
        stage = _stage(world, {"latency_s": 30.0}, {"latency_s": 0.1})
        for _ in range(5):
            assert (await stage.gateway.complete(model="m", messages=USER)).upstream == FIRST
        assert _calls(stage) == [5, 0]

    virtual.run(main)


def test_a_long_line_sends_calls_to_the_next() -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"slots": 1}, {"slots": 64})
        await stage.gateway.complete(model="m", messages=USER)
        replies = await asyncio.gather(*_asks(stage, 10))
        assert 1 <= _by(replies).count(FIRST) <= 3, "those whose turn comes within the patience"
        assert stage.now < 5
        assert stage.all_free

    virtual.run(main)


def test_a_throttled_call_returns_to_the_first_if_that_is_soon_and_goes_on_if_not() -> None:
    async def main(world: World, hint_s: float) -> tuple[str, float, list[int]]:
        stage = _stage(world, {"script": [_throttled(hint_s)]}, {}, retry={"first_wait_s": 0.0})
        reply = await stage.gateway.complete(model="m", messages=USER)
        return reply.upstream, round(stage.now, 3), _calls(stage)

    assert virtual.run(lambda world: main(world, 1.0)) == (FIRST, 2.0, [2, 0])
    assert virtual.run(lambda world: main(world, 5.0)) == (SECOND, 1.0, [1, 1])


def test_a_call_that_was_refused_by_both_waits_for_the_one_that_takes_it_first() -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [_throttled(60)]}, {"script": [_throttled(20)]})
        reply = await stage.gateway.complete(model="m", messages=USER, deadline_s=100)
        assert (reply.upstream, reply.attempts) == (SECOND, 3)
        assert stage.now == pytest.approx(21.0)
        assert _calls(stage) == [1, 2]
        assert stage.all_free

    virtual.run(main)


def test_an_upstream_that_has_used_up_the_attempts_is_not_asked_again() -> None:
    async def main(world: World) -> None:
        stage = _stage(
            world,
            {"script": [503] * 9, "breaker": False},
            {"script": [_throttled(5)] * 3},
            retry={**STEADY, "first_wait_s": 0.01},
        )
        reply = await stage.gateway.complete(model="m", messages=USER)
        assert reply.upstream == SECOND
        assert _calls(stage) == [3, 4]
        assert _moves(stage) == [(FIRST, SECOND)]

    virtual.run(main)


def test_least_busy_spreads_calls_over_equal_upstreams(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"slots": 4, "latency_s": 0.05}, {"slots": 4, "latency_s": 0.05}, balance="least_busy"
        )
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(8)))
        assert [provider.calls for provider in stage.providers] == [4, 4]

    run(main)


def test_least_busy_fills_all_of_its_upstreams_with_many_requests() -> None:
    async def main(world: World) -> None:
        equal = {"slots": 4, "latency_s": 1.0}
        stage = set_stage(world, equal, equal, equal, balance="least_busy")
        await stage.gateway.complete_many([{"messages": USER}] * 60, model="m")
        assert stage.now <= 7

    virtual.run(main)


def test_least_busy_takes_turns_among_the_idle(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0.01}, {"latency_s": 0.01}, {"latency_s": 0.01}, balance="least_busy"
        )
        for _ in range(6):
            await stage.gateway.complete(model="m", messages=USER)
        assert [provider.calls for provider in stage.providers] == [2, 2, 2]

    run(main)


# ---- When one closes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [_throttled(20.0), 503], ids=["throttled", "failing"])
def test_calls_go_past_a_closed_upstream_and_come_back_when_it_opens(refusal: Any) -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [refusal] * (RUN + 4)}, {}, patience_s=0.1)
        await close(stage)
        assert _by(await asyncio.gather(*_asks(stage, 3))) == [SECOND] * 3
        seen = _by([await stage.gateway.complete(model="m", messages=USER) for _ in range(60)])
        assert seen[-1] == FIRST
        assert not _upstreams(stage)[0].closed
        assert stage.provider.calls >= RUN + seen.count(FIRST)

    virtual.run(main)


async def _line_up_and_close(stage: Stage, calls: int) -> list[asyncio.Task[Reply]]:
    """Calls of which as many as close it are in flight at the first upstream and the others wait there, until their refusal closes it."""
    with only(stage, 0) as first:
        asked = _asks(stage, calls, deadline_s=250)
        await asyncio.sleep(0.4)
    assert _calls(stage) == [RUN, 0]
    assert stage.gateway.status().upstreams[0].rt_queue == calls - RUN
    await until(lambda: first.closed)
    return asked


def test_waiting_calls_move_when_their_upstream_closes() -> None:
    async def main(world: World) -> None:
        first = {"script": [{**_throttled(30.0), "latency_s": 0.5}] * 99, "slots": RUN}
        stage = _stage(world, first, {"slots": 64}, patience_s=0.5)
        calls = await _line_up_and_close(stage, 20)
        await asyncio.sleep(0.1)
        assert stage.gateway.status().upstreams[0].rt_queue == 0
        assert set(_by(await asyncio.gather(*calls))) == {SECOND}
        assert stage.now < 5, "nobody waited for the first"
        assert set(_moves(stage)) == {(FIRST, SECOND)}
        assert stage.all_free

    virtual.run(main)


def test_waiting_calls_stay_when_their_upstream_closes_for_less_than_the_patience() -> None:
    async def main(world: World) -> None:
        first = {"script": [{**_throttled(2.0), "latency_s": 0.5}] * RUN, "slots": RUN}
        stage = _stage(world, first, {"slots": 64}, patience_s=100)
        calls = await _line_up_and_close(stage, 20)
        assert set(_by(await asyncio.gather(*calls))) == {FIRST}
        assert not _moves(stage)

    virtual.run(main)


def test_when_both_are_closed_calls_wait_for_the_one_that_opens_first() -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [503] * 99}, {"script": [_throttled(1.0)] * RUN}, patience_s=0.1)
        await close(stage, 0)
        await close(stage, 1)
        replies = await asyncio.gather(*_asks(stage, 5, deadline_s=60))
        assert set(_by(replies)) == {SECOND}
        assert stage.now < 20
        assert stage.all_free

    virtual.run(main)


def test_a_call_that_moves_goes_ahead_of_those_who_came_later_to_the_other() -> None:
    async def main(world: World) -> None:
        first = {"script": [{**_throttled(60.0), "latency_s": 0.5}] * 99, "slots": RUN}
        stage = _stage(world, first, {"slots": 1}, patience_s=0.0)
        done: list[str] = []

        async def ask(name: str) -> None:
            await stage.gateway.complete(model="m", messages=USER, deadline_s=250)
            done.append(name)

        async with asyncio.TaskGroup() as group:
            with only(stage, 0):
                for _ in range(12):
                    group.create_task(ask("old"))
                await asyncio.sleep(0.3)
            with only(stage, 1):
                for _ in range(6):
                    group.create_task(ask("young"))
                await asyncio.sleep(0.1)
        assert done == ["young", *["old"] * 12, *["young"] * 5], "the first had begun"
        assert stage.all_free

    virtual.run(main)


def test_calls_do_not_line_up_behind_a_probe_that_may_take_long() -> None:
    """What closed the first took too long, so its probe must be answered; the second is idle meanwhile."""

    async def main(world: World) -> None:
        stage = _stage(world, {"script": ["stall"] * 9}, {}, timeouts={"first_token_s": 20})
        assert set(_by(await asyncio.gather(*_asks(stage, RUN)))) == {SECOND}
        assert _upstreams(stage)[0].closed
        await asyncio.sleep(10)
        probe = _asks(stage, 1)[0]
        await asyncio.sleep(1)
        assert _calls(stage) == [RUN + 1, RUN], "the probe is in flight"
        asked_at = stage.now
        assert set(_by(await asyncio.gather(*_asks(stage, 5)))) == {SECOND}
        assert stage.now - asked_at < 3
        assert (await probe).upstream == SECOND

    virtual.run(main)


def test_a_misconfigured_first_upstream_is_passed_over() -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [401] * 3}, {})
        for _ in range(6):
            assert (await stage.gateway.complete(model="m", messages=USER)).upstream == SECOND
        assert _calls(stage) == [3, 6]

    virtual.run(main)


def test_a_retry_that_was_paid_for_is_given_back_when_the_call_goes_elsewhere() -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [503]}, {}, retry={**STEADY, "first_wait_s": 10.0})
        budgets = [upstream.budget for upstream in _upstreams(stage)]
        for budget in budgets:
            budget.left = 10
        assert (await stage.gateway.complete(model="m", messages=USER)).upstream == SECOND
        assert [budget.left for budget in budgets] == [12, 12]

    virtual.run(main)


def test_a_call_that_is_moved_is_not_lost_to_a_full_line_elsewhere() -> None:
    """It had been admitted, and has time to wait for the first."""

    async def main(world: World) -> None:
        first = {"script": [{**_throttled(10.0), "latency_s": 0.5}] * RUN, "slots": RUN}
        stage = _stage(world, first, {"slots": 1, "depth": 1}, patience_s=0.0)
        calls = await _line_up_and_close(stage, 20)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [result for result in results if not isinstance(result, Reply)] == []
        assert stage.all_free

    virtual.run(main)


# ---- Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "soonest"),
    [
        (_throttled(100.0), _throttled(2.0), 1),
        (_throttled(2.0), _throttled(100.0), 0),
        (503, _throttled(100.0), 0),
        (_throttled(100.0), 503, 1),
        (503, 503, 0),
    ],
    ids=["throttled longer", "throttled less long", "failing first", "failing second", "both failing"],
)
def test_the_rejected_are_told_the_soonest_return_over_all_upstreams(
    first: Any, second: Any, soonest: int
) -> None:
    async def main(world: World) -> None:
        stage = _stage(world, {"script": [first] * 99}, {"script": [second] * 99}, wait=False)
        for which, refusal in enumerate((first, second)):
            await close(stage, which)
            if refusal == _throttled(100.0):
                # As after some probes that failed.
                _upstreams(stage)[which].gate.admission.intake.until = stage.now + 50.0
        with pytest.raises(HeadgateError) as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert isinstance(caught.value, UpstreamThrottled | UpstreamUnavailable)
        probed_in_s = _upstreams(stage)[soonest].probed_in_s()
        assert probed_in_s is not None
        assert caught.value.retry_after_s is not None
        assert max(1.0, probed_in_s) <= caught.value.retry_after_s <= 1.25 * max(1.0, probed_in_s)

    virtual.run(main)


def test_a_full_line_and_a_closed_upstream_are_told_with_the_sooner_return() -> None:
    async def main(world: World) -> None:
        full = {"slots": 1, "depth": 1, "spill": True, "latency_s": 20.0}
        stage = _stage(world, full, {"script": [_throttled(3.0)] * 99}, wait=False)
        with only(stage, 0):
            holders = _asks(stage, 2)
            await asyncio.sleep(0.1)
        await close(stage, 1)
        with pytest.raises(UpstreamThrottled) as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert caught.value.retry_after_s < 5
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)

    virtual.run(main)
