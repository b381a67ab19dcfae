"""The gate's timers on each loop: pacing, closed upstreams, micro-batches and deadlines, with times that are almost nothing.

A real timer rings a little early or late, and uvloop makes none at all for a time that is almost now. What must hold
all the same: everyone is answered, each call is made once, and no slot is left in use.
"""

import asyncio
from typing import Any

import pytest
from calls.closing import RUN, close
from loops import Run, World, until
from stage import USER, Stage, set_stage

from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.errors import DeadlineExceeded, HeadgateError, QueueFull, UpstreamThrottled

STEADY = {"max_attempts": 4, "first_wait_s": 0.003, "jitter": "none"}


async def _ask(stage: Stage, count: int, **options: Any) -> list[Reply]:
    return await asyncio.gather(
        *(
            stage.gateway.complete(
                model="m", messages=[{"role": "user", "content": f"question {number}."}], **options
            )
            for number in range(count)
        )
    )


def _each_has_its_own(replies: list[Reply]) -> bool:
    return all(f"question {number}." in (reply.content or "") for number, reply in enumerate(replies))


@pytest.mark.parametrize("interval_s", [0.0001, 0.0004, 0.001, 0.0025, 0.005])
def test_calls_that_come_together_and_are_paced_are_all_answered(run: Run, interval_s: float) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.001, "interval_s": interval_s, "depth": 0})
        assert _each_has_its_own(await _ask(stage, 60))
        assert stage.provider.calls == 60
        assert stage.all_free

    run(main)


def test_paced_calls_start_in_the_order_in_which_they_came(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "interval_s": 0.002, "depth": 0, "slots": 1})
        done: list[int] = []

        async def ask(number: int) -> None:
            await stage.gateway.complete(model="m", messages=USER)
            done.append(number)

        await asyncio.gather(*map(ask, range(30)))
        assert done == sorted(done)
        assert stage.all_free

    run(main)


def test_an_exhausted_minute_lets_in_as_many_as_it_has_and_refuses_the_others(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.001, "requests_per_minute": 20, "depth": 0})
        asked = (stage.gateway.complete(model="m", messages=USER, deadline_s=0.5) for _ in range(50))
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, Reply) for result in results) == stage.provider.calls == 20
        assert all(isinstance(result, Reply | QueueFull | DeadlineExceeded) for result in results)
        assert stage.all_free

    run(main)


@pytest.mark.parametrize("hint_s", [0.0005, 0.001, 0.01, None])
@pytest.mark.parametrize("hold_wait_s", [0.0, 2.0])
def test_throttled_calls_wait_for_themselves_and_are_all_answered(
    run: Run, hint_s: float | None, hold_wait_s: float
) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429} if hint_s is None else {"status": 429, "retry_after_s": hint_s}
        script = [*(["ok"] * 5), throttled] * 6
        upstream = {"latency_s": 0.001, "slots": 4, "script": script, "depth": 0, "hold_wait_s": hold_wait_s}
        stage = set_stage(world, upstream, retry=STEADY)
        assert _each_has_its_own(await _ask(stage, 60))
        assert stage.provider.calls == 66
        assert stage.all_free

    run(main)


def test_who_cannot_wait_for_a_closed_upstream_leaves_and_who_can_is_answered_when_it_opens(run: Run) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 1.0}
        stage = set_stage(world, {"latency_s": 0.001, "slots": 4, "script": [throttled] * RUN})
        await close(stage)
        with pytest.raises(UpstreamThrottled):
            await stage.gateway.complete(model="m", messages=USER, deadline_s=0.05)
        assert stage.provider.calls == RUN
        replies = await _ask(stage, 20)
        assert {reply.attempts for reply in replies} == {1}
        assert stage.provider.calls == RUN + 20
        assert stage.all_free

    run(main)


def test_an_upstream_that_closes_again_and_again_loses_no_call(run: Run) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.01}
        script = [*[throttled] * RUN, *["ok"] * 40] * 2
        stage = set_stage(world, {"latency_s": 0.002, "slots": 8, "depth": 0, "script": script})
        for _ in range(2):
            await close(stage)
            # One refusal may be left for the probe, when fewer of them were enough.
            assert _each_has_its_own(await _ask(stage, 40))
        assert stage.provider.calls == 2 * (RUN + 40)
        assert stage.all_free

    run(main)


def test_a_hint_of_a_quarter_of_an_hour_is_cut_short_by_one_probe(run: Run) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 1000}
        stage = set_stage(
            world,
            {"latency_s": 0.001, "slots": 4, "longest_pause_s": 0.02, "script": [throttled] * RUN},
            timeouts={"total_s": 600},
        )
        await close(stage)
        assert len(await _ask(stage, 12)) == 12
        assert stage.provider.calls == RUN + 12
        assert stage.all_free

    run(main)


def test_callers_that_leave_while_they_wait_for_pacing_take_no_other_caller_s_turn(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.001, "interval_s": 0.002, "depth": 0})
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(60)]
        for number, call in enumerate(calls):
            if number % 3:
                await asyncio.sleep(0)
                call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, Reply) for result in results[::3])
        assert all(isinstance(result, Reply | asyncio.CancelledError) for result in results)
        assert stage.provider.in_flight == 0
        assert stage.all_free

    run(main)


@pytest.mark.parametrize("wait_ms", [0, 0.2, 1, 20])
def test_a_micro_batch_leaves_whatever_little_time_it_waits(run: Run, wait_ms: float) -> None:
    """With `wait_ms: 0` all but the first of those who came together were once answered by an error."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 10, "latency_s": 0.001, "interval_s": 0.001, "depth": 0},
            gather={"size": 10, "wait_ms": wait_ms},
        )
        for _ in range(5):
            assert _each_has_its_own(await _ask(stage, 25))
        assert stage.provider.calls >= 15
        assert stage.all_free
        assert not stage.gateway.router.pending
        assert not stage.gateway.requests.gatherers._by_key

    run(main)


def test_a_caller_in_a_hurry_takes_its_batch_along_on_every_loop(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"many_inputs": 8, "latency_s": 0.001}, gather={"size": 8, "wait_ms": 50_000}
        )
        patient = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0.01)
        await stage.gateway.complete(model="m", messages=USER, deadline_s=1)
        await patient
        assert stage.provider.calls == 1
        assert stage.all_free

    run(main)


def test_items_that_fail_in_a_batch_are_tried_again_alone(run: Run) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.001}
        stage = set_stage(
            world,
            {"many_inputs": 10, "latency_s": 0.001, "script": ["ok", throttled, 503, "ok"] * 5},
            gather={"size": 10, "wait_ms": 0},
            retry=STEADY,
        )
        results = await asyncio.gather(
            *(stage.gateway.complete(model="m", messages=USER) for _ in range(20)), return_exceptions=True
        )
        assert [result for result in results if not isinstance(result, Reply | HeadgateError)] == []
        assert sum(isinstance(result, Reply) for result in results) >= 10
        assert stage.all_free
        assert not stage.gateway.router.pending

    run(main)


def test_a_deadline_in_the_middle_of_a_stream_is_the_caller_s_and_blames_no_upstream(run: Run) -> None:
    """A timer may ring a little before its time; the stream must not be called cut for that."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "chunks": 100, "script": ["stall"] * 8}, keep_events=True)
        for _ in range(8):
            with pytest.raises(DeadlineExceeded):
                async with stage.gateway.stream(model="m", messages=USER, deadline_s=0.1) as stream:
                    [chunk async for chunk in stream]
        assert stage.all_free
        assert not any(isinstance(event, events.BreakerChanged) for event in stage.events)

    run(main)


def test_the_deadline_frees_a_stream_s_slot_while_it_is_not_read(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "chunks": 5})
        stream = stage.gateway.stream(model="m", messages=USER, deadline_s=1)
        await anext(stream)
        await until(lambda: stage.all_free)
        assert stage.provider.in_flight == 0
        with pytest.raises(DeadlineExceeded):
            await anext(stream)

    run(main)


def test_streams_are_paced_and_throttled_like_any_call(run: Run) -> None:
    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.002}
        stage = set_stage(
            world,
            {"latency_s": 0.001, "interval_s": 0.001, "depth": 0, "script": [*(["ok"] * 4), throttled] * 8},
            retry=STEADY,
        )

        async def read() -> str:
            async with stage.gateway.stream(model="m", messages=USER) as stream:
                return "".join([chunk.text async for chunk in stream])

        assert all(await asyncio.gather(*(read() for _ in range(60))))
        assert stage.provider.calls == 68
        assert stage.all_free

    run(main)


def test_a_held_slot_s_generations_are_paced(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.001, "slots": 2, "interval_s": 0.002, "depth": 0})

        async def hold() -> int:
            async with stage.gateway.hold_slot("m") as slot:
                return len([await slot.generate_raw(USER) for _ in range(3)])

        assert await asyncio.gather(*(hold() for _ in range(20))) == [3] * 20
        assert stage.provider.calls == 60
        assert stage.all_free

    run(main)


def test_of_many_calls_with_different_deadlines_none_is_stopped_before_its_time(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.2, "slots": 64})
        deadlines_s = [0.01, 30.0, 0.02, 30.0, 0.0205, 30.0, 0.021, 30.0]
        results = await asyncio.gather(
            *(
                stage.gateway.complete(model="m", messages=USER, deadline_s=deadline_s)
                for deadline_s in deadlines_s
            ),
            return_exceptions=True,
        )
        kinds = [type(result).__name__ for result in results]
        assert kinds == ["DeadlineExceeded", "Reply"] * 4
        assert stage.all_free

    run(main)
