"""The saturated LLM queue: bounded depth, honest refusal, status, a slot held through regeneration."""

import asyncio

import pytest
from stage import USER, Stage, set_stage

import headgate
from headgate.planner import virtual
from headgate.planner.virtual import World

SLOW = {"slots": 2, "depth": 20, "latency_s": 150.0}
"""The design's depth, which its application brings along: see test_001_over_http.py."""


async def _fill(stage: Stage, count: int) -> list["asyncio.Task[headgate.Reply]"]:
    calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(count)]
    await asyncio.sleep(1)
    return calls


async def _cancel(calls: list["asyncio.Task[headgate.Reply]"]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_the_21st_waiter_is_refused_at_once_with_a_retry_after() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, SLOW)
        calls = await _fill(stage, 22)
        with pytest.raises(headgate.QueueFull) as caught:
            await stage.gateway.complete(model="m", messages=USER)
        assert stage.now == 1.0
        assert 22.5 <= caught.value.retry_after_s <= 37.5, (
            "30 s before anything was measured, spread by a quarter"
        )
        await _cancel(calls)

    virtual.run(main)


def test_depth_0_means_unlimited() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {**SLOW, "depth": 0})
        calls = await _fill(stage, 500)
        assert stage.gateway.status().upstreams[0].rt_queue == 498
        await _cancel(calls)

    virtual.run(main)


def test_cancelled_waiters_do_not_count_as_depth() -> None:
    """They stayed in the heap, and a queue of ghosts refused living callers."""

    async def main(world: World) -> None:
        stage = set_stage(world, SLOW)
        calls = await _fill(stage, 22)
        await _cancel(calls[2:])
        assert stage.gateway.status().upstreams[0].rt_queue == 0
        more = await _fill(stage, 20)
        assert stage.gateway.status().upstreams[0].rt_queue == 20
        await _cancel(calls + more)

    virtual.run(main)


def test_queue_status_has_the_documented_fields_and_values() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, SLOW)
        calls = await _fill(stage, 1)
        status = stage.gateway.status().upstreams[0]
        documented = {
            "rt_queue": 0,
            "be_queue": 0,
            "total_slots": 2,
            "available_slots": 1,
            "accepting": True,
            "max_queue_depth": 20,
        }
        assert {name: getattr(status, name) for name in documented} == documented
        await _cancel(calls)

    virtual.run(main)


def test_a_full_queue_is_not_accepting() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, SLOW)
        calls = await _fill(stage, 22)
        assert not stage.gateway.status().upstreams[0].accepting
        await _cancel(calls)

    virtual.run(main)


def test_hold_slot_acquires_once_for_the_whole_retry_loop() -> None:
    """`generate` queued anew at each repetition: one article stood in line three times."""

    async def main(world: World) -> None:
        slow = {"slots": 1, "latency_s": 150.0, "script": ["repeat", "repeat", "ok"]}
        stage = set_stage(world, slow, timeouts={"total_s": 3600})
        waits = []
        async with stage.gateway.hold_slot("m", "batch") as slot:
            rivals = await _fill(stage, 5)
            for _ in range(3):
                await slot.generate_raw(USER)
                waits.append(stage.gateway.status().upstreams[0].rt_queue)
        assert waits == [5, 5, 5], "no rival got in between"
        assert stage.provider.calls == 3
        await _cancel(rivals)

    virtual.run(main)


def test_hold_slot_tells_the_wait_the_id_and_whether_it_was_taken_away() -> None:
    """`yield wait_time, cancel_event, task_id`."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 30.0, "preempt": True})
        first = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0)
        async with stage.gateway.hold_slot("m", "batch") as slot:
            assert slot.wait_s == 30.0
            assert slot.id
            taken_away = [slot.cancelled]
            generating = asyncio.create_task(slot.generate_raw(USER))
            await asyncio.sleep(1)
            urgent = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
            with pytest.raises(headgate.Preempted):
                await generating
            assert [*taken_away, slot.cancelled] == [False, True]
        await asyncio.gather(first, urgent)

    virtual.run(main)


def test_interactive_is_real_time_and_batch_is_best_effort() -> None:
    async def main(world: World) -> list[str]:
        stage = set_stage(world, {"slots": 1, "latency_s": 30.0})
        order: list[str] = []

        async def ask(lane: str) -> None:
            await stage.gateway.complete(model="m", messages=USER, lane=lane)
            order.append(lane)

        async with asyncio.TaskGroup() as group:
            for lane in ("interactive", "batch", "interactive"):
                group.create_task(ask(lane))
                await asyncio.sleep(1)
        return order

    assert virtual.run(main) == ["interactive", "interactive", "batch"]
