"""Two attempts of one call under everything that can end them: no slot is lost, nothing runs on, each is told once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from calls.hedge_stage import FIRST, SECOND, ask, asking, calls, ends, hedged_stage, idle, read, told
from loops import Run, World, until
from stage import USER, Stage

from headgate.calls.gate import Gate
from headgate.core import events
from headgate.core.answer import Answer
from headgate.core.call import Call
from headgate.core.errors import DeadlineExceeded, HeadgateError
from headgate.core.gate_rules import GateRules
from headgate.core.pacing import PacingRules
from headgate.core.ticket import Place, Ticket
from headgate.planner import virtual
from headgate.providers.simulated import SimulatedProvider

SOON = 0.02
QUICK = {"latency_s": 0.001}
SILENT = {"script": ["stall"] * 9, "cut_after_chunks": 0}
"""Streams without a first content, too."""


# ---- Streams ------------------------------------------------------------------------------------------------------


def test_the_stream_that_opens_first_is_read_and_the_other_is_closed(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **SILENT}, {**QUICK, "chunk_gap_s": 0.005}, after=SOON)
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            assert stream.upstream == SECOND
            assert [provider.in_flight for provider in stage.providers] == [0, 1]
            assert stage.free_slots == 15, "only the reader's"
            text = "".join([chunk.text async for chunk in stream])
        assert USER[0]["content"] in text
        assert idle(stage)
        assert ends(stage) == [(FIRST, "cancelled"), (SECOND, None)]

    run(main)


def test_a_stream_without_content_does_not_win() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {"script": ["blank"], "latency_s": 3.0}, {"first_token_s": 4.0})
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            assert stream.upstream == SECOND
            assert stage.now == pytest.approx(6.0)
            async for _ in stream:
                pass
        assert idle(stage)
        assert ends(stage) == [(FIRST, "invalid_output"), (SECOND, None)]

    virtual.run(main)


def test_of_two_streams_that_open_at_the_same_instant_the_later_is_closed() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(
            world, {"first_token_s": 3.0}, {"first_token_s": 1.0, "tokens_per_minute": 10**6}
        )
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            assert stream.upstream == FIRST
            assert stage.now == pytest.approx(3.0)
            assert [provider.in_flight for provider in stage.providers] == [1, 0]
            assert stage.providers[1].cancelled == 1
            async for _ in stream:
                pass
        assert idle(stage)
        assert sorted(ends(stage), key=str) == [(FIRST, None), (SECOND, "cancelled")]

    virtual.run(main)


@pytest.mark.parametrize(
    ("first_token_s", "whole_s"), [(1.0, 4.0), (30.0, 6.0)], ids=["not hedged", "hedged"]
)
def test_the_time_of_a_stream_is_counted_once(first_token_s: float, whole_s: float) -> None:
    """It was counted twice up to its first content: by the race, and by the stream at its end."""

    async def main(world: World) -> None:
        gaps = {"chunks": 4, "chunk_gap_s": 1.0}
        stage = hedged_stage(
            world, {"first_token_s": first_token_s, **gaps}, {"first_token_s": 1.0, **gaps}, after=2.0
        )
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            async for _ in stream:
                assert stream.upstream_ms == pytest.approx(stage.now * 1000)
        [responded] = told(stage, events.Responded)
        assert responded.latency_ms == pytest.approx(whole_s * 1000)
        assert responded.upstream_ms == pytest.approx(whole_s * 1000)

    virtual.run(main)


def test_a_stream_that_breaks_after_a_race_frees_the_slot_of_the_winner(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **SILENT}, {**QUICK, "script": ["cut"]}, after=SOON)
        with pytest.raises(HeadgateError):
            await read(stage)
        assert idle(stage)
        assert ends(stage) == [(FIRST, "cancelled"), (SECOND, "transient")]

    run(main)


def test_a_stream_that_is_left_half_read_after_a_race_frees_the_slot_of_the_winner(run: Run) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **SILENT}, {**QUICK, "chunk_gap_s": 60.0}, after=SOON)
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            await anext(stream)
        assert idle(stage)

    run(main)


# ---- Providers that take their time to stop -----------------------------------------------------------------------


class _Stubborn(SimulatedProvider):
    """Whoever cancels its calls has to wait until they stop."""

    def __init__(self, model: SimulatedProvider, world: World, stops_in_s: float) -> None:
        super().__init__(model.options, model=model.model, clock=world.clock, chance=world.chance)
        self.stopping = 0
        self._stops_in_s = stops_in_s

    async def send(self, call: Call) -> Answer:
        try:
            return await super().send(call)
        except asyncio.CancelledError:
            await self._stop()
            raise

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        pieces = super().stream(call)
        try:
            async for piece in pieces:
                yield piece
        finally:
            try:
                await self._stop()
            finally:
                # Also when it is cancelled again meanwhile.
                await pieces.aclose()  # type: ignore[attr-defined]  # a generator

    async def _stop(self) -> None:
        self.stopping += 1
        await self._clock.sleep(self._stops_in_s)


def _make_stubborn(stage: Stage, world: World, *places: int, stops_in_s: float = 30.0) -> list[_Stubborn]:
    """In 30 s is not before the test is over, unless it is cancelled again."""
    upstreams = stage.gateway.routes.find("m").upstreams
    made = [_Stubborn(stage.providers[place], world, stops_in_s) for place in places]
    for place, provider in zip(places, made, strict=True):
        upstreams[place].provider = provider
    return made


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("times", [2, 3])
def test_a_caller_that_is_cancelled_again_while_its_attempts_stop_loses_no_slot(
    run: Run, streamed: bool, times: int
) -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **SILENT}, {**QUICK, **SILENT}, after=SOON)
        both = _make_stubborn(stage, world, 0, 1)
        call = asyncio.create_task((read if streamed else ask)(stage))
        await until(lambda: calls(stage) == [1, 1])
        call.cancel()
        await until(lambda: all(provider.stopping for provider in both))
        for _ in range(times - 1):
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert idle(stage)
        assert sorted(ends(stage)) == [(FIRST, "cancelled"), (SECOND, "cancelled")]

    run(main)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_winner_whose_caller_leaves_before_the_loser_has_stopped_loses_no_slot(
    run: Run, streamed: bool
) -> None:
    """The second has answered already; its slot and its stream have no owner any more."""

    async def main(world: World) -> None:
        stage = hedged_stage(world, {**QUICK, **SILENT}, {**QUICK, "chunk_gap_s": 60.0}, after=SOON)
        [loser] = _make_stubborn(stage, world, 0)
        call = asyncio.create_task((read if streamed else ask)(stage))
        await until(lambda: loser.stopping > 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert idle(stage)
        assert sum(upstream == SECOND for upstream, _ in ends(stage)) == 1

    run(main)


def test_a_deadline_while_the_loser_stops_loses_no_slot() -> None:
    async def main(world: World) -> None:
        stage = hedged_stage(world, SILENT, {"latency_s": 1.0})
        _make_stubborn(stage, world, 0)
        with pytest.raises(DeadlineExceeded):
            await read(stage, deadline_s=3.02)
        assert idle(stage)

    virtual.run(main)


# ---- Preemption ---------------------------------------------------------------------------------------------------


def test_a_preempted_attempt_leaves_the_call_to_the_other() -> None:
    async def main(world: World) -> None:
        slot = {"slots": 1, "preempt": True}
        stage = hedged_stage(world, {**slot, **SILENT}, {**slot, "latency_s": 9.0}, patience_s=100)
        batch = asking(stage, lane="batch")
        await asyncio.sleep(3.0)
        assert calls(stage) == [1, 1]
        gate = stage.gateway.routes.find("m").upstreams[0].gate
        interactive = Ticket(since=stage.now)
        await gate.enter(interactive)
        assert stage.providers[0].cancelled == 1
        reply = await batch
        assert (reply.upstream, reply.attempts) == (SECOND, 2)
        assert stage.now == pytest.approx(11.0)
        gate.leave(interactive)
        assert idle(stage)

    virtual.run(main)


# ---- A slot at once, or none --------------------------------------------------------------------------------------


PACINGS = pytest.mark.parametrize("pacing", [{}, {"interval_s": 10.0}], ids=["unpaced", "paced"])


def _gate(world: World, **pacing: Any) -> Gate:
    return Gate("u", GateRules(slots=1, pacing=PacingRules(**pacing)), clock=world.clock, chance=world.chance)


@PACINGS
def test_a_free_gate_gives_its_slot_at_once_and_a_full_one_none(pacing: dict[str, Any]) -> None:
    async def main(world: World) -> None:
        gate = _gate(world, **pacing)
        first, second = Ticket(since=0.0), Ticket(since=0.0)
        assert gate.enters_at_once(first)
        assert (first.place, gate.admission.held) == (Place.HOLDING, 1)
        assert not gate.enters_at_once(second)
        assert second.place is Place.OUTSIDE
        gate.leave(first)
        assert (gate.admission.held, gate.admission.in_transit, gate.admission.waiting) == (0, 0, 0)
        assert gate.enters_at_once(second) is not bool(pacing), "paced, the next start is 10 s away"
        gate.leave(second)
        assert gate.admission.intake.in_flight == 0

    virtual.run(main)


@PACINGS
def test_a_gate_that_lets_nobody_in_gives_no_slot(pacing: dict[str, Any]) -> None:
    async def main(world: World) -> None:
        gate = _gate(world, **pacing)
        gate.admission.intake.until = 5.0
        assert not gate.enters_at_once(Ticket(since=0.0))
        gate.admission.intake.until = None
        gate.close()
        assert not gate.enters_at_once(Ticket(since=0.0))
        assert (gate.admission.waiting, gate.admission.in_use) == (0, 0)

    virtual.run(main)


# ---- Storms -------------------------------------------------------------------------------------------------------

CALLS = 100
STOPS_IN_S = 0.02
STORMY: dict[str, Any] = {
    "latency_s": 0.02,
    "latency": "exponential",
    "first_token_s": 0.01,
    "chunks": 3,
    "chunk_gap_s": 0.002,
    "failures": {"throttled": 0.1, "transient": 0.05},
    "retry_after_s": 0.01,
    "slots": 4,
    "reserved_slots": 1,
    "depth": 0,
    "breaker": False,
    "script": ["ok", "stall", "ok", {"latency_s": 0.2}] * 20,
}


async def _visit(stage: Stage, world: World, number: int, finished: Counter[str]) -> None:
    await asyncio.sleep(world.chance() * 0.8)
    asked: dict[str, Any] = {
        "lane": "batch" if world.chance() < 0.4 else "interactive",
        "deadline_s": 0.1 if world.chance() < 0.2 else 1.0,
    }
    work = read(stage, **asked) if world.chance() < 0.5 else ask(stage, **asked)
    call: asyncio.Task[Any] = asyncio.create_task(work, name=f"call {number}")
    if world.chance() < 0.3:
        for _ in range(1 + int(world.chance() * 2)):
            await asyncio.sleep(world.chance() * 0.05)
            call.cancel()
    try:
        await call
        finished["answered"] += 1
    except HeadgateError as error:
        finished[error.code] += 1
    except asyncio.CancelledError:
        finished["cancelled"] += 1


async def _storm(world: World, **more: Any) -> None:
    upstream = {**STORMY, **more}
    stage = hedged_stage(
        world, upstream, upstream, after=0.03, retry={"max_attempts": 4, "first_wait_s": 0.01}
    )
    _make_stubborn(stage, world, 1, stops_in_s=STOPS_IN_S)
    finished: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for number in range(CALLS):
            group.create_task(_visit(stage, world, number, finished))
    await asyncio.sleep(2 * STOPS_IN_S)  # Streams that were left are closed behind their reader's back.
    await until(lambda: not any(provider.in_flight for provider in stage.providers))
    assert idle(stage)
    assert sum(finished.values()) == CALLS
    assert "internal" not in finished
    assert {"answered", "cancelled"} <= set(finished)
    assert told(stage, events.Hedged)
    assert len(told(stage, events.AttemptEnded)) == sum(calls(stage))
    assert len(told(stage, events.Responded)) + len(told(stage, events.Cancelled)) == CALLS


STORMS = pytest.mark.parametrize(
    "more",
    [{}, {"interval_s": 0.003}, {"preempt": True}, {"tokens_per_minute": 10**7, "hold_wait_s": 1.0}],
    ids=["plain", "paced", "preempting", "weighed"],
)


@STORMS
def test_a_storm_of_hedged_calls_loses_no_slot(run: Run, more: dict[str, Any]) -> None:
    run(lambda world: _storm(world, **more))


@STORMS
def test_no_seed_loses_a_slot(more: dict[str, Any]) -> None:
    for seed in range(1, 11):
        virtual.run(lambda world: _storm(world, **more), seed=seed)
