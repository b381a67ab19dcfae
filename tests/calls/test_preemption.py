"""Interactive calls that take a slot from batch: who gives way, when, and what becomes of it."""

import asyncio
from typing import Any

import pytest
from calls.closing import RUN, upstream_of
from loops import Run, World, until
from stage import USER, Stage, set_stage

from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.call import Call, Format
from headgate.core.errors import DeadlineExceeded
from headgate.planner import virtual

STEADY = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}


def _of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def _ask(stage: Stage, lane: str = "interactive", **options: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(stage.gateway.complete(model="m", messages=USER, lane=lane, **options))


async def _end(*calls: asyncio.Task[Reply]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_preemption_really_cancels_the_batch_call_in_flight_and_it_runs_again(run: Run) -> None:
    """A flag that is only read between two long awaits preempts nothing."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.2, "preempt": True})
        batch = asyncio.create_task(
            stage.gateway.complete(model="m", messages=USER, lane="batch", deadline_s=290)
        )
        await asyncio.sleep(0.05)
        await stage.gateway.complete(model="m", messages=USER)
        assert not batch.done(), "the interactive call did not wait for the batch call"
        assert stage.provider.cancelled == 1
        reply = await batch
        assert reply.attempts == 2

    run(main)


def test_a_batch_caller_that_is_cancelled_while_being_preempted_stays_cancelled(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 0.2, "preempt": True})
        batch = asyncio.create_task(stage.gateway.complete(model="m", messages=USER, lane="batch"))
        await asyncio.sleep(0.05)
        interactive = asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
        await asyncio.sleep(0)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        await interactive
        assert stage.free_slots == 1

    run(main)


def test_preempted_calls_were_admitted_and_are_not_refused_for_want_of_room_when_they_return() -> None:
    async def main(world: World) -> None:
        # Of the two places to wait batch may have one.
        stage = set_stage(world, {"slots": 2, "depth": 2, "latency_s": 5.0, "preempt": True})
        batch = [_ask(stage, "batch", deadline_s=290) for _ in range(2)]
        await asyncio.sleep(1)
        await asyncio.gather(*(_ask(stage) for _ in range(2)))
        assert stage.provider.cancelled == 2
        assert [reply.attempts for reply in await asyncio.gather(*batch)] == [2, 2]
        assert stage.all_free

    virtual.run(main)


def test_a_call_that_is_preempted_fills_the_retry_budget_once() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 5.0, "preempt": True})
        budget = upstream_of(stage).budget
        budget.left = 10
        batch = _ask(stage, "batch", deadline_s=290)
        for _ in range(3):
            await asyncio.sleep(1)
            await _ask(stage)
        await batch
        assert stage.provider.cancelled == 3
        assert budget.left == 10 + 4 * budget.share

    virtual.run(main)


@pytest.mark.parametrize("rivals", [0, 1])
def test_a_sleeper_that_is_preempted_gives_its_slot_to_the_interactive_caller_at_once(rivals: int) -> None:
    """The slot once went to a ticket that had no future yet, and the gate stood still for ever."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"slots": 1, "preempt": True, "hold_wait_s": 2, "latency_s": 0.05, "script": [503]},
            retry={**STEADY, "first_wait_s": 1.9},
            keep_events=True,
        )
        batch = [
            asyncio.create_task(stage.gateway.complete(model="m", messages=USER, lane="batch"))
            for _ in range(1 + rivals)
        ]
        await asyncio.sleep(0.1)
        await stage.gateway.complete(model="m", messages=USER)
        assert stage.now == pytest.approx(0.15)
        await asyncio.gather(*batch)
        assert stage.all_free
        assert len(_of(stage, events.HolderPreempted)) == 1

    virtual.run(main)


def test_an_interactive_caller_preempts_as_soon_as_pacing_lets_it_start(run: Run) -> None:
    """It once looked for somebody to preempt only when it arrived, and waited for minutes after that."""

    async def main(world: World) -> None:
        slow = {"outcome": "ok", "latency_s": 50.0}
        stage = set_stage(world, {"slots": 1, "preempt": True, "interval_s": 0.3, "script": [slow]})
        batch = _ask(stage, "batch")
        await until(lambda: stage.provider.in_flight == 1)
        await _ask(stage)
        assert not batch.done()
        assert (await batch).attempts == 2
        assert (stage.provider.calls, stage.provider.cancelled) == (3, 1)
        assert stage.all_free

    run(main)


def test_an_interactive_caller_preempts_as_soon_as_the_upstream_takes_calls_and_not_before(run: Run) -> None:
    """While the upstream is closed a free slot would not help it, and the batch call would be lost for nothing."""

    async def main(world: World) -> None:
        throttled = {"status": 429, "retry_after_s": 0.4, "latency_s": 0.0}
        script = [{"outcome": "ok", "latency_s": 50.0}, *[throttled] * RUN, "ok"]
        # Those that were refused wait with their slots in hand, so that none is free.
        stage = set_stage(
            world, {"slots": RUN + 1, "preempt": True, "hold_wait_s": 60, "latency_s": 0.01, "script": script}
        )
        upstream = upstream_of(stage)
        batch = _ask(stage, "batch")
        await until(lambda: stage.provider.in_flight == 1)
        others = [_ask(stage) for _ in range(RUN)]
        await until(lambda: upstream.closed)
        assert stage.free_slots == 0
        interactive = _ask(stage)
        for _ in range(5):
            await asyncio.sleep(0)
        assert stage.provider.cancelled == 0
        opens_in_s = upstream.probed_in_s()
        assert opens_in_s
        closed_at = stage.now
        await interactive
        assert stage.provider.cancelled == 1
        assert list(stage.provider.starts)[RUN + 1] >= closed_at + 0.9 * opens_in_s
        await _end(batch, *others)
        assert stage.all_free

    run(main)


def test_an_interactive_caller_preempts_whoever_the_slot_was_handed_to() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 100.0, "preempt": True})
        first = _ask(stage, "batch", deadline_s=299)
        await asyncio.sleep(1)
        second = _ask(stage, "batch", deadline_s=299)
        await asyncio.sleep(1)
        await _end(first)
        asked_at = stage.now
        await _ask(stage)
        assert stage.now - asked_at < 110
        await _end(second)
        assert stage.all_free

    virtual.run(main)


class _Stubborn:
    """A provider that turns a cancellation into an error of its own, as some clients do."""

    formats = frozenset({Format.CHAT})
    reads = True

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    async def send(self, call: Call) -> Any:
        try:
            return await self._provider.send(call)
        except asyncio.CancelledError:
            raise ConnectionResetError from None


def test_a_provider_that_turns_our_cancellation_into_an_error_is_still_preempted_and_cancellable() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 10.0, "preempt": True}, retry=STEADY)
        upstream = upstream_of(stage)
        upstream.provider = _Stubborn(upstream.provider)  # type: ignore[assignment]
        batch = asyncio.create_task(
            stage.gateway.complete(model="m", messages=USER, lane="batch", deadline_s=18)
        )
        await asyncio.sleep(1)
        await stage.gateway.complete(model="m", messages=USER)
        assert stage.now == pytest.approx(11.0)
        with pytest.raises(DeadlineExceeded):
            await batch
        assert stage.now == pytest.approx(18.0)
        assert stage.all_free

    virtual.run(main)
