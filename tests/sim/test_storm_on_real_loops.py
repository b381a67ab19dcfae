"""10,000 calls on a real loop, paced, throttled, gathered, streamed and cancelled, with a worker beside them.

The other storms run in virtual time, where every timer is exact. uvloop counts in milliseconds, and what is less than
half of one away it runs at once, without a timer: all times are so short here that this happens again and again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import loops
import pytest
from conftest import Figure

import headgate
from headgate import Context, JobState, wiring
from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.errors import HeadgateError
from headgate.gateway import Gateway
from headgate.providers.simulated import SimulatedProvider

CALLS = 10_000
JOBS = 500
CALLERS_PER_MODEL = 40
QUICK = {"provider": "simulated", "slots": 8, "depth": 0, "latency_s": 0.001}
THROTTLED = {**QUICK, "failures": {"throttled": 0.05}}
HINTED = {**THROTTLED, "retry_after_s": 0.01}
MANY = {"many_inputs": 10}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "paced": {"upstreams": [{**QUICK, "interval_s": 0.001}]},
    "a minute": {"upstreams": [{**QUICK, "requests_per_minute": 1_000}]},
    "throttled": {"upstreams": [THROTTLED]},
    "throttled with a hint": {"upstreams": [HINTED]},
    "throttled and paced": {"upstreams": [{**HINTED, "interval_s": 0.001}]},
    "with a fallback": {"upstreams": [HINTED, {**QUICK, "interval_s": 0.001}]},
    "gathered at once": {"upstreams": [{**QUICK, **MANY}], "gather": {"size": 10, "wait_ms": 0}},
    "gathered": {"upstreams": [{**HINTED, **MANY}], "gather": {"size": 10, "wait_ms": 1}},
    "for jobs": {"upstreams": [{**HINTED, "interval_s": 0.001}]},
}
RETRY = {"max_attempts": 8, "first_wait_s": 0.002, "longest_wait_s": 0.02}


@headgate.task("asks", model="for jobs")
async def asks(ctx: Context, question: str) -> str | None:
    return (await ctx.llm.complete(messages=[{"role": "user", "content": question}])).content


class Storm:
    """One gateway, and what became of every call to it."""

    def __init__(self, world: loops.World, folder: Path) -> None:
        models = {
            name: {**model, "retry": {**RETRY, **model.get("retry", {})}} for name, model in MODELS.items()
        }
        settings = wiring.read_settings(
            {"data_dir": str(folder), "models": models, "jobs": {"workers": 32}}, env={}
        )
        self.gateway: Gateway = wiring.build(settings, clock=world.clock, chance=world.chance, tasks=[asks])
        self.gateway.listen(self._note)
        self.ends: Counter[str] = Counter()
        self.attempts = 0
        self._chance = world.chance

    def _note(self, event: events.Event) -> None:
        self.attempts += isinstance(event, events.AttemptEnded)

    async def break_loose(self) -> None:
        models = [name for name in MODELS if name != "for jobs"]
        share = (CALLS - JOBS) // (len(models) * CALLERS_PER_MODEL)
        left = CALLS - JOBS - share * len(models) * CALLERS_PER_MODEL
        await self.gateway.work()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_jobs())
            for model in models:
                for _ in range(CALLERS_PER_MODEL):
                    group.create_task(self._call_repeatedly(model, share))
            group.create_task(self._call_repeatedly("paced", left))

    async def _run_jobs(self) -> None:
        asked = [{"task": "asks", "input": f"job {number}", "max_attempts": 1} for number in range(JOBS)]
        for handle in await self.gateway.jobs.submit_many(asked):
            job = await handle.wait()
            assert (job.state, job.attempts) == (JobState.COMPLETED, 1), job.error
            self.ends["job"] += 1

    async def _call_repeatedly(self, model: str, times: int) -> None:
        for number in range(times):
            call = asyncio.create_task(self._call(model, f"question {number} to {model}."))
            leaves = self._chance() < 0.1
            if leaves:
                await asyncio.sleep(self._chance() * 0.01)
                call.cancel()
            try:
                self.ends[await call] += 1
            except HeadgateError as error:
                self.ends[error.code] += 1
            except asyncio.CancelledError:
                assert leaves
                self.ends["cancelled"] += 1

    async def _call(self, model: str, question: str) -> str:
        kind = self._chance()
        asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": question}]}
        asked["lane"] = "batch" if self._chance() < 0.3 else "interactive"
        # The minute's last calls would have to wait for the next one.
        asked["deadline_s"] = 0.05 if self._chance() < 0.05 else 0.5 if model == "a minute" else 20.0
        if kind < 0.2:
            return await self._read(asked, half=kind < 0.05)
        if kind < 0.25:
            async with self.gateway.hold_slot(model, asked["lane"]) as slot:
                replies = [await slot.generate_raw(asked["messages"]) for _ in range(2)]
            assert len(replies) == 2
            return "held"
        reply = await self.gateway.complete(**asked)
        assert isinstance(reply, Reply)
        assert question in (reply.content or "")
        return "answered"

    async def _read(self, asked: dict[str, Any], *, half: bool) -> str:
        text = ""
        async with self.gateway.stream(**asked) as stream:
            async for chunk in stream:
                text += chunk.text
                if half:
                    return "left"
        assert asked["messages"][0]["content"] in text
        return "streamed"

    @property
    def providers(self) -> list[SimulatedProvider]:
        found = [
            upstream.provider for name in MODELS for upstream in self.gateway.routes.find(name).upstreams
        ]
        assert all(isinstance(provider, SimulatedProvider) for provider in found)
        return found  # type: ignore[return-value]  # narrowed by the assertion above

    def check_nothing_is_left(self) -> None:
        for name in MODELS:
            for upstream in self.gateway.routes.find(name).upstreams:
                admission = upstream.gate.admission
                left = (admission.held, admission.in_transit, admission.waiting, upstream.provider.in_flight)  # type: ignore[attr-defined]  # simulated ones
                assert left == (0, 0, 0, 0), f"{name}, {upstream.name}: held, in transit, waiting, in flight"
        assert not self.gateway.router.pending
        assert not self.gateway.requests.gatherers._by_key
        assert not self.gateway.requests._in_flight


@pytest.mark.parametrize("loop", loops.REAL)
def test_ten_thousand_calls_on_a_real_loop_break_nothing_and_leak_no_slot(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    async def main(world: loops.World) -> None:
        storm = Storm(world, tmp_path)
        try:
            await storm.break_loose()
            await asyncio.sleep(0.1)  # Streams that were left are closed behind their reader's back.
            storm.check_nothing_is_left()
        finally:
            await storm.gateway.aclose(drain_s=0.0)
        assert sum(storm.ends.values()) == CALLS
        assert "internal" not in storm.ends
        assert storm.attempts == sum(provider.calls for provider in storm.providers)
        assert {"answered", "streamed", "left", "held", "cancelled", "job", "deadline_exceeded"} <= set(
            storm.ends
        )
        assert storm.ends["answered"] > CALLS / 2
        counts = ", ".join(f"{count:,} {end}" for end, count in storm.ends.most_common())
        figure(f"storm on {loop}", f"{CALLS:,} calls, 0 internal errors, no slot lost: {counts}")

    loops.run_on(loop)(main, seed=20)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
