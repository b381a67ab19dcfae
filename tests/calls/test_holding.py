"""A slot held over several generations: regenerating never means queueing again."""

import asyncio
from typing import Any

import pytest
from calls.closing import RUN, close
from loops import Run, World
from stage import USER, set_stage

import headgate
from headgate.core import events
from headgate.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    OutputInvalid,
    Preempted,
    QueueFull,
    UpstreamUnavailable,
)
from headgate.core.limit import Limit, Measure
from headgate.planner import virtual


def test_three_generations_take_one_place_in_the_queue() -> None:
    """Each generation once queued anew: three retries were three times 61 minutes."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 10.0}, keep_events=True)
        first = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(1)

        async def hold() -> tuple[float, list[str]]:
            async with stage.gateway.hold_slot("m", "interactive") as slot:
                replies = [await slot.generate_raw(USER, temperature=0.1 * step) for step in range(3)]
                assert slot.id
                assert not slot.cancelled
                return slot.wait_s, [reply.request_id for reply in replies]

        holding = asyncio.create_task(hold())
        await asyncio.sleep(1)
        others = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(3)]
        wait_s, request_ids = await holding
        assert wait_s == pytest.approx(9.0)
        assert stage.now == pytest.approx(40.0), "nobody got in between"
        assert len(set(request_ids)) == 3
        await asyncio.gather(first, *others)
        assert sum(isinstance(event, events.Responded) for event in stage.events) == 7

    virtual.run(main)


@pytest.mark.parametrize("ending", ["return", "error", "cancel"])
def test_the_slot_comes_back_whatever_happens_inside(run: Run, ending: str) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.01})

        async def hold() -> None:
            async with stage.gateway.hold_slot("m") as slot:
                await slot.generate_raw(USER)
                if ending == "error":
                    raise KeyError
                await asyncio.sleep(0.3)

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0.1)
        if ending == "cancel":
            holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert stage.all_free

    run(main)


@pytest.mark.parametrize(
    ("outcome", "error"), [(503, UpstreamUnavailable), ("blank", OutputInvalid), ("stall", DeadlineExceeded)]
)
def test_a_failed_generation_is_raised_and_the_slot_stays_held(
    outcome: int | str, error: type[Exception]
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 1.0, "script": [outcome, "ok"]})
        async with stage.gateway.hold_slot("m") as slot:
            with pytest.raises(error):
                await slot.generate_raw(USER)
            assert stage.free_slots == 0
            assert (await slot.generate_raw(USER)).content
        assert stage.provider.calls == 2
        assert stage.all_free

    virtual.run(main)


def test_every_generation_needs_a_pacing_token_and_nobody_holds_a_slot_while_waiting_for_one() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 1.0, "interval_s": 10.0})
        async with stage.gateway.hold_slot("m") as slot:
            await slot.generate_raw(USER)
            again = asyncio.create_task(slot.generate_raw(USER))
            await asyncio.sleep(1)
            assert stage.free_slots == 1
            await again
        assert list(stage.provider.starts) == [0.0, 10.0]

    virtual.run(main)


def test_a_full_queue_refuses_a_slot_as_it_refuses_a_call(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "depth": 1, "latency_s": 0.3})
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            async with stage.gateway.hold_slot("m"):
                pytest.fail("there was no room")
        await asyncio.gather(*calls)

    run(main)


def test_a_preempted_holder_is_told(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.2, "preempt": True})
        async with stage.gateway.hold_slot("m", "batch") as slot:
            generating = asyncio.create_task(slot.generate_raw(USER))
            await asyncio.sleep(0.05)
            interactive = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
            with pytest.raises(Preempted):
                await generating
            assert slot.cancelled
            with pytest.raises(Preempted):
                await slot.generate_raw(USER)
        await interactive
        assert stage.all_free

    run(main)


def test_nonsense_is_refused_before_it_is_sent(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        async with stage.gateway.hold_slot("m") as slot:
            with pytest.raises(InvalidRequest):
                await slot.generate_raw([])
        assert stage.provider.calls == 0

    run(main)


def test_a_slot_is_one_call_at_a_time(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.05})
        async with stage.gateway.hold_slot("m") as slot:
            results = await asyncio.gather(
                *(slot.generate_raw(USER) for _ in range(3)), return_exceptions=True
            )
        assert [type(result).__name__ for result in results] == ["Reply", "InvalidRequest", "InvalidRequest"]
        assert stage.provider.most_in_flight == 1
        with pytest.raises(InvalidRequest, match="no longer held"):
            await slot.generate_raw(USER)

    run(main)


def test_the_slot_s_deadline_bounds_its_generations_and_each_is_timed_by_itself() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 4.0})
        async with stage.gateway.hold_slot("m", deadline_s=10) as slot:
            replies = [await slot.generate_raw(USER) for _ in range(2)]
            assert [reply.latency_ms for reply in replies] == [pytest.approx(4000)] * 2
            with pytest.raises(DeadlineExceeded):
                await slot.generate_raw(USER)
        assert stage.now == pytest.approx(10.0)

    virtual.run(main)


def _closing(refusal: Any) -> dict[str, Any]:
    return {"slots": 8, "latency_s": 1.0, "script": [{**refusal, "latency_s": 0.0}] * RUN}


BROKE = {"status": 504}
"""It took too long, so a probe in flight proves nothing: it must be answered."""
THROTTLED = {"status": 429, "retry_after_s": 20.0}
REFUSALS = pytest.mark.parametrize("refusal", [BROKE, THROTTLED], ids=["broke", "throttled"])


@REFUSALS
@pytest.mark.parametrize("others", ["wait already", "come later"])
def test_a_holder_that_idles_does_not_keep_everybody_out_as_a_probe(
    refusal: dict[str, Any], others: str
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal))
        await close(stage)
        entered, leaves = asyncio.Event(), asyncio.Event()

        async def idle() -> None:
            async with stage.gateway.hold_slot("m"):
                entered.set()
                await leaves.wait()

        holder = asyncio.create_task(idle())
        await asyncio.sleep(0)
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(3)]
        if others == "come later":
            await entered.wait()
            calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER))]
        assert [reply.attempts for reply in await asyncio.gather(*calls)] == [1] * len(calls)
        assert not leaves.is_set()
        leaves.set()
        await holder
        assert stage.all_free

    virtual.run(main)


@REFUSALS
def test_a_slot_held_from_before_the_closing_starts_no_call_while_the_upstream_is_closed(
    refusal: dict[str, Any],
) -> None:
    """It waits as anybody does, and may be the probe."""

    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal))
        async with stage.gateway.hold_slot("m") as slot:
            opens_at = await close(stage)
            assert (await slot.generate_raw(USER)).content
        assert list(stage.provider.starts)[RUN:] == [pytest.approx(opens_at)]

    virtual.run(main)


def test_a_block_left_while_a_generation_waits_or_runs_leaks_no_slot(run: Run) -> None:
    """The ticket came back to the gate after its block was gone, was granted, and nobody gave it back."""

    async def main(world: World, *, interval_s: float) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.1, "interval_s": interval_s})

        async def leave_early() -> None:
            async with stage.gateway.hold_slot("m") as slot:
                await slot.generate_raw(USER)
                background.append(asyncio.create_task(slot.generate_raw(USER)))
                await asyncio.sleep(0.05)

        background: list[asyncio.Task[headgate.Reply]] = []
        await leave_early()
        other = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.gather(*background, other, return_exceptions=True)
        assert stage.provider.most_in_flight == 1
        assert stage.all_free
        assert (await other).content

    for interval_s in (0.0, 0.3):
        run(lambda world, interval_s=interval_s: main(world, interval_s=interval_s))  # type: ignore[misc]


@REFUSALS
def test_a_holder_from_before_the_closing_does_not_keep_the_probe_out(refusal: dict[str, Any]) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, _closing(refusal))
        async with stage.gateway.hold_slot("m") as slot:
            await close(stage)
            await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(3)))
            assert stage.now < 20
            assert (await slot.generate_raw(USER)).content

    virtual.run(main)


def test_a_holder_that_idles_makes_room_below_a_limit_on_calls_in_flight() -> None:
    """Nobody leaves and no time need pass: what a holder does not use others may."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 8, "latency_s": 1.0})
        intake = stage.gateway.routes.find("m").upstreams[0].gate.admission.intake
        intake.learning.limit = Limit(0.0, Measure.IN_FLIGHT, 2.0, 0.5)
        busy = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0.5)
        leaves = asyncio.Event()

        async def idle() -> None:
            async with stage.gateway.hold_slot("m"):
                await leaves.wait()

        holder = asyncio.create_task(idle())
        waiting = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.gather(busy, waiting)
        leaves.set()
        await holder
        assert stage.all_free

    virtual.run(main)


def test_closing_the_gateway_waits_for_a_held_generation() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 2, "latency_s": 10.0})
        async with stage.gateway.hold_slot("m") as slot:
            generating = asyncio.create_task(slot.generate_raw(USER))
            await asyncio.sleep(1)
            await stage.gateway.aclose()
            assert stage.now == pytest.approx(10.0)
            assert (await generating).content

    virtual.run(main)
