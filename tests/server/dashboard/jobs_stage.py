"""A desk with jobs on it: a task that refuses until its input is mended, and one that never ends by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from server.dashboard.dashboard_stage import MODELS, Screen
from server.stage import opened

from headgate import Context, Job, Reject, Task, task


@task("letters.send")
async def send(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    """Refuses what has no address."""
    if "to" not in given:
        raise Reject(given.get("why", "there is no address"))
    return {"sent": given["to"]}


@task("letters.wait")
async def wait(ctx: Context, given: dict[str, Any]) -> None:
    await ctx.progress(3, 12, given.get("note"))
    await asyncio.Event().wait()


TASKS: Final = (send, wait)


@asynccontextmanager
async def a_desk(*more: Task[Any, Any]) -> AsyncIterator[Screen]:
    """A gateway without keys that runs jobs, also of these tasks."""
    async with (
        opened({"models": MODELS}, work=True, tasks=(*TASKS, *more)) as house,
        httpx.AsyncClient(base_url=house.url) as http,
    ):
        yield Screen(house, http)


async def dead(screen: Screen, given: dict[str, Any] | None = None, **options: Any) -> Job:
    """A dead letter, by way of a worker."""
    handle = await screen.house.gateway.jobs.submit(send, given or {"text": "hello"}, **options)
    return await handle.wait(20)


async def found(screen: Screen, job_id: str) -> Job:
    return await screen.house.gateway.jobs.get(job_id, tenant=None)
