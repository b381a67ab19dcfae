"""Overload is told honestly, and what is promised under it is kept."""

import pytest
from conftest import Figure
from stage import USER, Stage, Visit, open_loop, percentile, poisson, set_stage

from headgate.core.errors import Refused
from headgate.core.messages import Lane
from headgate.dispatch.gate import Gate
from headgate.planner import virtual
from headgate.planner.virtual import World

SERVICE_S = 2.0
SLOTS = 4
CAPACITY_PER_S = SLOTS / SERVICE_S
DEADLINE_S = 20.0
SECONDS = 300.0


def _overloaded(world: World, depth: int, slots: int = SLOTS) -> Stage:
    return set_stage(
        world,
        {"slots": slots, "depth": depth, "latency_s": SERVICE_S, "latency": "uniform", "latency_spread": 0.3},
    )


async def _warm_up(stage: Stage) -> None:
    """A little traffic first: a gate knows its own speed from what it has seen."""
    arrivals = [stage.now + index for index in range(20)]
    await open_loop(stage, arrivals, lambda gateway: gateway.complete(model="m", messages=USER))


def _goodput(visits: list[Visit], start: float, end: float) -> float:
    """Answers within their caller's deadline, as a share of what the slots could have given."""
    good = sum(
        visit.reply is not None and visit.latency_s <= DEADLINE_S and start + 30 <= visit.ended_at < end
        for visit in visits
    )
    return good / ((end - start - 30) * CAPACITY_PER_S)


def _run_overload(
    times: float, depth: int, seed: int = 1
) -> tuple[float, list[Visit], list[tuple[float, float]]]:
    async def main(world: World) -> tuple[float, list[Visit], list[tuple[float, float]]]:
        stage = _overloaded(world, depth)
        await _warm_up(stage)
        watch = _Watch(stage.gateway.routes.find("m").upstreams[0].gate)
        start = stage.now
        arrivals = poisson(world, times * CAPACITY_PER_S, start_s=start, end_s=start + SECONDS)

        async def ask(gateway: object) -> object:
            try:
                return await stage.gateway.complete(model="m", messages=USER, deadline_s=DEADLINE_S)
            except Refused as refusal:
                watch.refused(stage.now, refusal.retry_after_s)
                raise

        visits = await open_loop(stage, arrivals, ask)  # type: ignore[arg-type]
        return _goodput(visits, start, start + SECONDS), visits, watch.pairs()

    return virtual.run(main, seed=seed)


class _Watch:
    """For each refusal: what was promised, and how long those waiting then really took to be granted."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.refusals: list[tuple[float, float, list[object]]] = []
        self.granted_at: dict[int, float] = {}

    def refused(self, now: float, retry_after_s: float) -> None:
        waiting = self.gate.admission.turns.everyone()
        self.refusals.append((now, retry_after_s, list(waiting)))

    def pairs(self) -> list[tuple[float, float]]:
        pairs = []
        for at, promised_s, waiting in self.refusals:
            granted = [ticket.granted_at for ticket in waiting]  # type: ignore[attr-defined]
            if granted:
                pairs.append((promised_s, max(granted) - at))
        return pairs


@pytest.mark.parametrize(("times", "least"), [(2.0, 0.95), (10.0, 0.90)])
def test_goodput_holds_under_overload(times: float, least: float, figure: Figure) -> None:
    goodput, visits, _ = _run_overload(times, depth=20)

    figure(f"goodput at {times:g}× overload", f"{goodput:.1%} of capacity (≥ {least:.0%})")
    assert goodput >= least
    assert all(visit.reply is not None or visit.error is not None for visit in visits)


def test_without_a_bound_on_the_queue_the_same_overload_ruins_goodput(figure: Figure) -> None:
    """The same load with the door left open: slots are spent on answers that come too late."""
    goodput, _, _ = _run_unbounded()

    figure("goodput at 2× overload, depth 0 and no door", f"{goodput:.1%} of capacity (it must fail: < 95 %)")
    assert goodput < 0.5


def _run_unbounded() -> tuple[float, int, int]:
    async def main(world: World) -> tuple[float, int, int]:
        stage = _overloaded(world, depth=0)
        start = stage.now
        arrivals = poisson(world, 2 * CAPACITY_PER_S, start_s=start, end_s=start + SECONDS)
        visits = await open_loop(
            stage, arrivals, lambda gateway: gateway.complete(model="m", messages=USER, deadline_s=290)
        )
        return _goodput(visits, start, start + SECONDS), len(visits), stage.provider.calls

    return virtual.run(main, seed=1)


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_every_refusal_says_truly_when_to_come_back(times: float, figure: Figure) -> None:
    _, visits, pairs = _run_overload(times, depth=20)

    ratios = [promised_s / min(60.0, true_s) for promised_s, true_s in pairs]
    refused = sum(isinstance(visit.error, Refused) for visit in visits)
    figure(
        f"Retry-After at {times:g}× overload, {refused:,} refusals",
        f"{min(ratios):.2f} … {max(ratios):.2f} × the true time (0.5 … 2)",
    )
    assert len(ratios) == refused > 100
    assert min(ratios) >= 0.5
    assert max(ratios) <= 2.0


def test_interactive_work_hardly_notices_a_flood_of_batch_work(figure: Figure) -> None:
    """Interactive at 60 % of capacity, batch at twelve times capacity, for thirty minutes."""
    slots, promote_after_s, minutes = 8, 120.0, 30.0
    capacity = slots / SERVICE_S

    async def main(world: World) -> tuple[list[Visit], list[Visit]]:
        stage = set_stage(
            world,
            {
                "slots": slots,
                "reserved_slots": 2,
                "depth": 64,
                "promote_after_s": promote_after_s,
                "latency_s": SERVICE_S,
                "latency": "exponential",
            },
        )
        end = minutes * 60
        interactive = poisson(world, 0.6 * capacity, end_s=end)
        batch = poisson(world, 12 * capacity, end_s=end)
        lanes = sorted([(at, Lane.INTERACTIVE) for at in interactive] + [(at, Lane.BATCH) for at in batch])
        order = iter(lanes)
        visits = await open_loop(
            stage,
            [at for at, _ in lanes],
            lambda gateway: gateway.complete(model="m", messages=USER, lane=next(order)[1]),
        )
        split: dict[Lane, list[Visit]] = {lane: [] for lane in Lane}
        for (_, lane), visit in zip(lanes, visits, strict=True):
            split[lane].append(visit)
        return split[Lane.INTERACTIVE], split[Lane.BATCH]

    interactive, batch = virtual.run(main, seed=3)

    served = sum(visit.reply is not None for visit in interactive) / len(interactive)
    waits = [visit.reply.queue_ms / 1000 for visit in interactive if visit.reply]
    p99 = percentile(waits, 0.99)
    batch_waits = [visit.reply.queue_ms / 1000 for visit in batch if visit.reply]
    figure("12× batch flood: interactive served", f"{served:.2%} (≥ 99.4 %)")
    figure("12× batch flood: interactive p99 wait", f"{p99 / SERVICE_S:.2f} service times (≤ 2)")
    figure(
        "12× batch flood: longest batch wait",
        f"{max(batch_waits):.1f} s (≤ {promote_after_s + 5 * SERVICE_S:g}), {len(batch_waits):,} batch calls served",
    )
    assert served >= 0.994
    assert p99 <= 2 * SERVICE_S
    assert max(batch_waits) <= promote_after_s + 5 * SERVICE_S


@pytest.mark.parametrize("trigger", ["outage", "overload"])
def test_all_is_normal_again_within_30_s_of_the_trouble_and_without_a_restart(
    trigger: str, figure: Figure
) -> None:
    """Retries and queues must not keep a trouble alive that has ended."""
    begins_s, trouble_s = 600.0, 60.0
    recovered_s = begins_s + trouble_s + 30

    async def main(world: World) -> tuple[float, float]:
        outage = [[begins_s, begins_s + trouble_s]] if trigger == "outage" else []
        stage = set_stage(
            world,
            {"slots": SLOTS, "depth": 20, "latency_s": SERVICE_S, "latency": "uniform", "outage": outage},
        )
        arrivals = poisson(world, 0.6 * CAPACITY_PER_S, end_s=recovered_s + 600)
        if trigger == "overload":
            arrivals += poisson(world, 1.4 * CAPACITY_PER_S, start_s=begins_s, end_s=begins_s + trouble_s)
        visits = await open_loop(
            stage, sorted(arrivals), lambda gateway: gateway.complete(model="m", messages=USER, deadline_s=60)
        )
        before = [visit for visit in visits if visit.at < begins_s - 10]
        after = [visit for visit in visits if visit.at >= recovered_s]
        assert all(visit.reply for visit in after)
        return (
            percentile([visit.latency_s for visit in before], 0.99),
            percentile([visit.latency_s for visit in after], 0.99),
        )

    normal, after = virtual.run(main, seed=5)

    figure(f"p99 from 30 s after a 60 s {trigger}", f"{after:.2f} s (normal: {normal:.2f} s)")
    assert after <= 1.3 * normal
