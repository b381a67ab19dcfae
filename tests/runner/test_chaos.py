"""Everything at once, from a seed: odd tasks, a moody provider, cancels, replays, nodes that come, go and are thought dead.

Whatever the order, at the end every job has ended, was told truly, and never ran twice at a time.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from conftest import Figure
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, HeadgateError, Job, JobState
from headgate.core.events import JobSettled
from headgate.runner.jobs import JobHandle

JOBS = 80
WORKERS = 8
CHAOS_S = 200.0
UPSTREAM: dict[str, Any] = {
    "latency_s": 2.0,
    "latency": "exponential",
    "slots": 4,
    "failures": {"transient": 0.2, "throttled": 0.1, "rejected": 0.03, "invalid_output": 0.05},
    "retry_after_s": 5,
}


class Chaos:
    """One story: who is open, what was submitted, what runs."""

    def __init__(self, stages: JobStages, seed: int, *, crashes: bool) -> None:
        self.stages = stages
        self.random = random.Random(seed)
        self.crashes = crashes
        self.open: list[JobStage] = []
        self.all: list[JobStage] = []
        self.handles: list[JobHandle] = []
        self.inside: Counter[str] = Counter()
        self.doubled: set[str] = set()
        self.most = 0
        self.done: Counter[str] = Counter()
        self.tasks = [self._acts(), self._asks()]

    def _enter(self, job_id: str) -> None:
        self.inside[job_id] += 1
        self.most = max(self.most, self.inside.total())
        if self.inside[job_id] > 1:
            self.doubled.add(job_id)

    def _acts(self) -> headgate.Task[Any, Any]:
        @headgate.task("acts")
        async def acts(ctx: Context, given: list[Any]) -> str:
            how, seconds = given
            self._enter(ctx.job.id)
            try:
                await ctx.progress(ctx.job.attempt)
                await asyncio.sleep(seconds)
                await ctx.step("half", lambda: asyncio.sleep(0, "done"))
                if how == "moody":
                    how = self.random.choice(["ok", "fail", "skip", "reject", "later"])
                return self._end(how, ctx)
            finally:
                self.inside[ctx.job.id] -= 1

        return acts

    def _end(self, how: str, ctx: Context) -> str:
        match how:
            case "fail":
                raise ValueError("again")
            case "skip":
                raise headgate.Skip("nothing to do")
            case "reject":
                raise headgate.Reject("never")
            case "later":
                raise headgate.RetryLater(3)
            case "same":
                ctx.save("c", ctx.job.id, {}, unique_key="the only one")
            case _:
                ctx.save("c", ctx.job.id, {"by": ctx.job.attempt})
        return how

    def _asks(self) -> headgate.Task[Any, Any]:
        @headgate.task("asks", model="m")
        async def asks(ctx: Context, given: Any) -> str | None:
            self._enter(ctx.job.id)
            try:
                return (await ctx.llm.complete(messages=[{"role": "user", "content": "?"}])).content
            finally:
                self.inside[ctx.job.id] -= 1

        return asks

    async def come(self) -> None:
        rules = {"workers": WORKERS, "revive_after_s": 40, "expires_after_s": 900, "timeout_s": 15}
        stage = await self.stages.open(UPSTREAM, tasks=self.tasks, jobs=rules)
        self.open.append(stage)
        self.all.append(stage)

    async def submit(self) -> None:
        draw = self.random
        how = draw.choice(["ok", "ok", "fail", "moody", "moody", "same", "ok"])
        # Now and then one takes longer than its timeout.
        options = {
            "priority": draw.randrange(10),
            "tenant": "local",
            "max_attempts": draw.randint(1, 4),
            "lane": draw.choice(["batch", "interactive"]),
            "run_at": self.stages.world.clock.utc().timestamp() + draw.choice([0, 0, 7.5]),
        }
        task, given = ("asks", 1) if draw.random() < 0.5 else ("acts", [how, draw.choice([0, 1, 5, 20])])
        self.handles.append(await draw.choice(self.open).submit(task, given, **options))

    async def stir(self) -> None:
        """One thing that happens on a bad day."""
        draw = self.random
        stage, handle = draw.choice(self.open), draw.choice(self.handles)
        event = draw.choice(["cancel", "replay", "discard", "go", "die", "nothing"])
        self.done[event] += 1
        try:
            if event == "cancel":
                await stage.gateway.jobs.cancel(handle.id)
            elif event == "replay":
                await stage.gateway.dead_letters.replay(handle.id)
            elif event == "discard" and draw.random() < 0.3:
                await stage.gateway.dead_letters.discard(handle.id)
            elif event == "go" and len(self.open) > 1:
                self.open.remove(stage)
                await stage.gateway.aclose(drain_s=draw.choice([0, 3]))
                await self.come()
            elif event == "die" and self.crashes:
                durable = stage.gateway.durable
                await durable.store.bury_dead([durable.node.id])
        except HeadgateError:
            self.done["refused"] += 1

    async def run(self) -> list[Job]:
        for _ in range(2):
            await self.come()
        for _ in range(JOBS):
            await self.submit()
            await asyncio.sleep(self.random.random())
        while self.stages.now < CHAOS_S:
            await self.stir()
            await asyncio.sleep(self.random.random() * 2)
        # Exhausted ones come back after 40 s; when nobody has for two minutes, all is over.
        quiet = 0
        while quiet < 6:
            left = await self.open[0].gateway.jobs.count()
            quiet = 0 if left["pending"] + left["running"] else quiet + 1
            await self.stages.world.clock.sleep(20)
        return [await self.open[0].gateway.jobs.get(handle.id) for handle in self.handles]


def _check(job: Job) -> None:
    """What must hold for any job, however it came there."""
    assert job.state.final, f"{job.id} is {job.state}"
    assert 0 <= job.attempts <= job.max_attempts
    assert job.revivals <= 3
    # Beside others a job may meet more crashes than three; only one that it met alone makes it poison.
    assert job.crashes >= 3 or job.reason != "poison"
    assert job.finished_at is not None
    outcomes = [entry.outcome for entry in job.history if entry.generation == job.generation]
    if job.state is JobState.COMPLETED:
        assert job.result is not None
        assert outcomes[-1] == "completed"
        assert job.error is None
    if job.state is JobState.DEAD_LETTER:
        assert job.reason in {"exhausted", "permanent", "poison", "expired"}
        assert job.error
    if job.reason == "exhausted":
        assert job.attempts == job.max_attempts
    numbers = [entry.at for entry in job.history]
    assert numbers == sorted(numbers), "history is told in order"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("crashes", [False, True])
@on_job_stages
async def test_whatever_happens_every_job_ends_and_ends_once(
    stages: JobStages, seed: int, crashes: bool, figure: Figure
) -> None:
    chaos = Chaos(stages, seed, crashes=crashes)
    jobs = await chaos.run()
    for job in jobs:
        _check(job)
    if not crashes:
        assert chaos.doubled == set(), "nobody was thought dead, so nobody ran twice at a time"
        assert {job.crashes for job in jobs} == {0}
    assert chaos.inside.total() == 0
    assert chaos.most <= 2 * WORKERS
    assert [stage.gateway.durable.running for stage in chaos.open] == [0, 0]
    settled = Counter(
        event.job_id for stage in chaos.all for event in stage.told(JobSettled) if event.state == "completed"
    )
    completed = {job.id for job in jobs if job.state is JobState.COMPLETED}
    assert set(settled) == completed
    assert set(settled.values()) <= {1}, "nobody completes twice"
    if seed == 0:
        states = Counter(str(job.state) for job in jobs)
        story = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        figure(f"{JOBS} jobs in chaos{' with crashes' if crashes else ''}", story)
