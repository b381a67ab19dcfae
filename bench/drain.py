"""How fast one worker process empties a backlog of no-ops: claimed, run, settled; fair, fenced, with history."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import apsw
from ground import POSTGRES, Chat, Ground, fill, settle_down

import headgate
from headgate.runner.context import Context

LOOK_S: Final = 0.002


class Finish:
    """When the first job started, and when the last of so many did."""

    def __init__(self, jobs: int) -> None:
        self.first_at = 0.0
        self._left = jobs
        self._all_ran = asyncio.Event()

    def pass_by(self) -> None:
        self.first_at = self.first_at or time.perf_counter()
        self._left -= 1
        if not self._left:
            self._all_ran.set()

    async def took_s(self, unfinished: Callable[[], Awaitable[bool]]) -> float:
        """Until all have run and the database shows nothing unfinished; it is not asked before that."""
        await self._all_ran.wait()
        while await unfinished():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - self.first_at


async def drain_per_s(ground: Ground, *, jobs: int, workers: int | None) -> float:
    """`workers=None`: as the settings have it by default."""
    finish = Finish(jobs)

    @headgate.task("bench.noop")
    async def noop(_ctx: Context, _body: Chat) -> str:
        finish.pass_by()
        return "ok"

    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(ground.gateway(noop, workers=workers))
        await fill(gateway, jobs)
        await settle_down(ground)
        unfinished = await stack.enter_async_context(_look(ground))
        await gateway.work()
        took_s = await finish.took_s(unfinished)
        counts = await gateway.jobs.count(tenant=None)
        if counts["completed"] != jobs:
            raise AssertionError(f"{jobs} jobs were submitted, and this became of them: {counts}")
        return jobs / took_s


@contextlib.asynccontextmanager
async def _look(ground: Ground) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Past the store: is anything unfinished?"""
    if ground.kind == POSTGRES:
        async with ground.connection() as connection:
            yield lambda: connection.fetchval("select exists (select from headgate.jobs)")
        return
    reader = apsw.Connection(ground.file, flags=apsw.SQLITE_OPEN_READONLY)

    async def unfinished() -> bool:
        left = "select exists (select 1 from jobs where state in ('scheduled', 'ready', 'suspect'))"
        runs = "select exists (select 1 from jobs where state = 'running')"
        return bool(reader.execute(left).get or reader.execute(runs).get)

    yield unfinished
    reader.close()
