"""Replaying and discarding many dead letters as jobs of their own: they go on after a crash, show progress, can be stopped."""

from collections.abc import Callable
from typing import Final, Unpack

import msgspec

from headgate.core.call import check_text
from headgate.core.ports.jobs import JobFilter
from headgate.runner.context import Context
from headgate.runner.dead_filter import DeadFilters, check_rate, check_some, read_filters
from headgate.runner.dead_letters import REPLAYS_PER_S, Act, DeadLetters
from headgate.runner.durable import Durable
from headgate.runner.jobs import JobHandle, Jobs
from headgate.runner.submission import Submission
from headgate.runner.tasks import Task

REPLAY: Final = "headgate.replay"
DISCARD: Final = "headgate.discard"
ENDPOINTS: Final = {REPLAY: "POST /v1/dead-letters/replay", DISCARD: "POST /v1/dead-letters/discard"}
"""Where an idempotency key of theirs belongs."""
LONGEST_S: Final = 7 * 86_400.0
"""A million at two a second is not stopped in the middle."""
SAME_MOMENT_S: Final = 1e-6


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk job's input."""

    which: JobFilter
    by: str
    per_second: float

    def matching(self, *, tenant: str, asked_at: float) -> JobFilter:
        """Only what was dead when this was asked: one that comes back and dies again is not sent back again."""
        until = asked_at + SAME_MOMENT_S
        if self.which.until is not None:
            until = min(until, self.which.until)
        # Whose they are is the job's own tenant, whatever else is said.
        return msgspec.structs.replace(self.which, tenant=tenant, until=until)


class Course(msgspec.Struct, frozen=True):
    """How far it is; progress and result alike."""

    done: int
    total: int


class BulkJobs:
    """`gateway.bulk`."""

    def __init__(self, durable: Durable, jobs: Jobs, dead_letters: DeadLetters) -> None:
        self._jobs = jobs
        self._dead_letters = dead_letters
        for task in (self._task(REPLAY, dead_letters.replays), self._task(DISCARD, dead_letters.discards)):
            durable.tasks.add(task)

    async def replay(
        self,
        *,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        idempotency_key: str | None = None,
        tenant: str = "local",
        **which: Unpack[DeadFilters],
    ) -> JobHandle:
        """Send back all that match, so many a second, as a job: cancel it to stop. At least one filter is required."""
        return await self._submit(REPLAY, by, per_second, idempotency_key, tenant, which)

    async def discard(
        self,
        *,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        idempotency_key: str | None = None,
        tenant: str = "local",
        **which: Unpack[DeadFilters],
    ) -> JobHandle:
        """Let go of all that match; as `replay`."""
        return await self._submit(DISCARD, by, per_second, idempotency_key, tenant, which)

    # ---- Inside ---------------------------------------------------------------------------------------

    async def _submit(
        self, task: str, by: str, per_second: float, key: str | None, tenant: str, given: DeadFilters
    ) -> JobHandle:
        check_text("by", by)
        check_rate(per_second)
        check_some(given)
        order = Order(which=read_filters(given, tenant=tenant), by=by, per_second=per_second)
        [handle] = await self._jobs.submit_inside(
            [Submission(task=task, input=order)],
            tenant=tenant,
            idempotency_key=key,
            endpoint=ENDPOINTS[task],
        )
        return handle

    def _task(self, name: str, act: Callable[[str, str], Act]) -> Task[Order, Course]:
        async def run(ctx: Context, order: Order) -> Course:
            tenant = ctx.job.tenant
            asked_at = (await self._jobs.get(ctx.job.id, tenant=tenant)).created_at
            which = order.matching(tenant=tenant, asked_at=asked_at.timestamp())
            return await self._carry_out(ctx, which, order.per_second, act(order.by, tenant))

        return Task(name, run, model=None, timeout_s=LONGEST_S, inside=True)

    async def _carry_out(self, ctx: Context, which: JobFilter, per_second: float, act: Act) -> Course:
        """From where it is: what was done before a crash is no dead letter any more."""
        left = await self._dead_letters.count_matching(which)

        async def at_first() -> int:
            return left

        total = await ctx.step("total", at_first, type=int)
        before = done = total - left
        async for count in self._dead_letters.in_bites(which, per_second, act):
            done = before + count
            await ctx.progress(done, total)
        return Course(done, total)
