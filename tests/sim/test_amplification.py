"""Retries never storm: what an upstream gets to bear while it fails, and what callers get meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import LONG_RUNS, Figure
from stage import USER, Stage, Visit, open_loop, set_stage

from headgate.core import events
from headgate.planner import virtual
from headgate.planner.virtual import World

PER_S = 50
SECONDS = 300 if LONG_RUNS else 60
SLACK = 0.04
"""For chance."""
BURST = 10
"""Retries that a budget of a tenth allows before it has been filled."""
BREAKERS = pytest.mark.parametrize("breaker", [True, False], ids=["breaker on", "breaker off"])


async def _load(stage: Stage, seconds: float) -> list[Visit]:
    start = stage.now
    arrivals = [start + index / PER_S for index in range(int(seconds * PER_S))]
    return await open_loop(
        stage, arrivals, lambda gateway: gateway.complete(model="m", messages=USER, deadline_s=30)
    )


def _amplified(share: float, **upstream: Any) -> tuple[float, float]:
    """Provider calls per request, and the share of requests served, where this share of calls fails."""

    async def main(world: World) -> tuple[float, float]:
        failing = {"slots": 200, "depth": 0, "latency_s": 0.1, "failures": {"transient": share}}
        stage = set_stage(world, {**failing, **upstream})
        visits = await _load(stage, SECONDS)
        return stage.provider.calls / len(visits), _served(visits)

    return virtual.run(main, seed=int(share * 10))


def _served(visits: Sequence[Visit]) -> float:
    return sum(visit.reply is not None for visit in visits) / len(visits)


@BREAKERS
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_by_default_retries_add_what_the_sdk_alone_would_send_and_answer_as_much(
    share: float, breaker: bool, figure: Figure
) -> None:
    """Three attempts, whatever the share: to answer less than no gateway would be no protection."""
    calls, served = _amplified(share, breaker=breaker)
    sdk_calls, sdk_served = 1 + share + share**2, 1 - share**3

    state = "on" if breaker else "off"
    figure(
        f"amplification, p = {share:g}, breaker {state}",
        f"{calls:.3f} (SDK {sdk_calls:.3f}), served {served:.2%} (SDK {sdk_served:.2%})",
    )
    assert calls <= sdk_calls + SLACK
    # Where nine calls in ten fail from the start, the upstream may be taken to be down, and is probed for a while.
    assert served >= sdk_served - SLACK or (breaker and share == 0.9)


@BREAKERS
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_budget_of_a_tenth_bounds_retries_whatever_share_of_calls_fails(
    share: float, breaker: bool, figure: Figure
) -> None:
    calls, served = _amplified(share, breaker=breaker, retry_budget=0.1)

    state = "on" if breaker else "off"
    figure(f"amplification, p = {share:g}, breaker {state}, budget 0.1", f"{calls:.3f}, served {served:.2%}")
    # While it is closed its probes are all that it gets.
    assert calls <= 1.1 + BURST / (PER_S * SECONDS) + SLACK / 2
    assert served >= 1 - share - SLACK


def test_a_full_outage_costs_a_probe_now_and_then(figure: Figure) -> None:
    calls, served = _amplified(1.0)

    figure("full outage", f"{calls:.3f} calls per request (≤ 0.02)")
    assert served == 0
    assert 0 < calls <= 0.02


def test_a_full_outage_without_a_breaker_costs_what_the_budget_allows(figure: Figure) -> None:
    calls, _ = _amplified(1.0, breaker=False, retry_budget=0.1)

    figure("full outage, breaker off, budget 0.1", f"{calls:.3f} calls per request (≤ 1.11)")
    assert 1.0 < calls <= 1.1 + BURST / (PER_S * SECONDS) + 1e-9


def test_an_always_failing_upstream_is_called_exactly_max_attempts_times_per_request() -> None:
    """One owner of retries: five attempts in three layers would have been 125 calls."""

    async def main(world: World) -> int:
        stage = set_stage(
            world, {"failures": {"transient": 1.0}, "breaker": False}, retry={"max_attempts": 5}
        )
        await open_loop(stage, [0.0], lambda gateway: gateway.complete(model="m", messages=USER))
        return stage.provider.calls

    assert virtual.run(main) == 5


def test_ten_thousand_callers_that_fail_at_once_come_back_spread_out(figure: Figure) -> None:
    """Full jitter over the first second: no tenth of it may get much more than a tenth of the load."""
    waits_s: list[float] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.RetryScheduled):
            waits_s.append(event.delay_ms / 1000)

    async def main(world: World) -> list[Visit]:
        failing = {"latency_s": 0.0, "script": [503], "script_by_request": True, "breaker": False}
        stage = set_stage(
            world,
            {"slots": 10_000, "depth": 0, **failing},
            retry={"max_attempts": 2, "first_wait_s": 1.0, "jitter": "full"},
        )
        stage.gateway.listen(note)
        return await open_loop(
            stage, [0.0] * 10_000, lambda gateway: gateway.complete(model="m", messages=USER)
        )

    assert all(visit.reply for visit in virtual.run(main))

    bins = [0] * 10
    for wait_s in waits_s:
        bins[int(wait_s * 10)] += 1
    peak = max(bins) / (sum(bins) / len(bins))
    figure("10,000 callers failing at once", f"fullest 100 ms bin {peak:.2f} × the mean (≤ 1.3)")
    assert len(waits_s) == 10_000
    assert peak <= 1.3
