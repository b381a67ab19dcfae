"""What `/queue/status` shows of an upstream: its state, its next probe, its limit, and the share of calls it refused."""

import asyncio
import contextlib

import pytest
from stage import USER, Stage, set_stage

from headgate.calls.status import State, UpstreamStatus
from headgate.core.errors import HeadgateError
from headgate.core.hold import Condition
from headgate.core.limit import SPAN_S, Limit, Measure
from headgate.planner import virtual
from headgate.planner.virtual import World


def _status(stage: Stage) -> UpstreamStatus:
    (status,) = [one for one in stage.gateway.status().upstreams if one.model == "m"]
    return status


async def _call(stage: Stage, deadline_s: float = 60.0) -> None:
    with contextlib.suppress(HeadgateError):
        await stage.gateway.complete(model="m", messages=USER, deadline_s=deadline_s)


def test_an_upstream_that_was_never_called_is_open_and_has_refused_nothing() -> None:
    async def main(world: World) -> UpstreamStatus:
        return _status(set_stage(world, {}))

    status = virtual.run(main)
    assert (status.state, status.probe_in_s) == (State.OPEN, None)
    assert (status.refused_share, status.limit, status.limit_most) == (0.0, "", None)


def test_the_share_of_refusals_is_that_of_the_calls_that_were_made() -> None:
    async def main(world: World) -> UpstreamStatus:
        stage = set_stage(world, {"script": ["ok", "throttled", "ok", "transient", "ok"]})
        for _ in range(3):
            await _call(stage)
        return _status(stage)

    assert virtual.run(main).refused_share == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("throttled", State.THROTTLING),
        ("transient", State.FAILING),
        ("misconfigured", State.HELD),
    ],
)
def test_a_closed_or_held_upstream_says_why_and_when_its_next_probe_goes(outcome: str, state: State) -> None:
    async def main(world: World) -> UpstreamStatus:
        stage = set_stage(world, {"outcome": outcome})
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(_call(stage, deadline_s=5.0))
        return _status(stage)

    status = virtual.run(main)
    assert status.state is state
    assert status.probe_in_s is not None
    assert status.probe_in_s >= 0
    assert status.closed is (state is not State.HELD)
    assert (status.pause_s == status.probe_in_s) is (state is State.THROTTLING)


def test_an_operators_pause_is_the_first_thing_to_know() -> None:
    status = UpstreamStatus(
        model="m",
        upstream="u",
        condition=Condition.HELD,
        pause_s=0.0,
        stopped=True,
        closed=True,
        rt_queue=0,
        be_queue=0,
        total_slots=1,
        available_slots=1,
        accepting=False,
        max_queue_depth=1,
    )
    assert status.state is State.PAUSED


@pytest.mark.parametrize(
    ("measure", "most", "allowed", "words"),
    [
        (Measure.IN_FLIGHT, 9.0, 8, "limited to 8 calls in flight"),
        (Measure.STARTS, 21.0, 20 / SPAN_S, "limited to 19.4 starts/s"),
        (Measure.STARTS, 22.6, 22 / SPAN_S, "limited to 21.4 starts/s"),
        (Measure.TOKENS, 11_808.5, 11_808.5 / SPAN_S, "limited to 11,465 tokens/s"),
    ],
)
def test_a_limit_shows_what_it_lets_through_not_the_first_load_that_was_refused(
    measure: Measure, most: float, allowed: float, words: str
) -> None:
    limit = Limit(0.0, measure, most, 0.5)
    assert limit.allows == pytest.approx(allowed)
    assert limit.words == f"{words}, on trial: kept if it halves the refusals"
    limit.proved(10.0, 0.0)
    assert limit.words == f"{words}: refusals began above it"
