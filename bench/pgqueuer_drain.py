"""The same drain by a peer: PgQueuer 1.6 on the same PostgreSQL, in the way its documentation shows.

It runs over a pool, which is faster for it than one connection, with the batch size it is given and without a
concurrency limit; its jobs have no tenants, no fencing and no result, and its log is on, as it always is.
"""

import asyncio
import contextlib
from typing import Final

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec
from drain import Finish
from ground import CHAT_JSON, Chat, Ground, settle_down
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

ENTRYPOINT: Final = "noop"
CONNECTIONS: Final = 4


async def drain_per_s(ground: Ground, *, jobs: int, batch: int) -> float:
    """Jobs a second, from the first start until its table is empty."""
    async with asyncpg.create_pool(
        ground.url,
        min_size=CONNECTIONS,
        max_size=CONNECTIONS,
        server_settings={"search_path": "peer"},
    ) as pool:
        await _fill(pool, jobs)
        await settle_down(ground)
        finish = Finish(jobs)
        peer = PgQueuer.from_asyncpg_pool(pool)
        decode = msgspec.json.Decoder(Chat).decode

        @peer.entrypoint(ENTRYPOINT)
        async def noop(job: Job) -> None:
            decode(job.payload or b"")
            finish.pass_by()

        async with ground.connection() as looker:
            running = asyncio.create_task(peer.run(batch_size=batch))
            took_s = await finish.took_s(lambda: looker.fetchval("select exists (select from peer.pgqueuer)"))
            peer.shutdown.set()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        return jobs / took_s


async def _fill(pool: asyncpg.Pool, jobs: int) -> None:
    await pool.execute("create schema peer")
    queries = Queries.from_asyncpg_pool(pool)
    await queries.install()
    for start in range(0, jobs, 500):
        count = min(500, jobs - start)
        await queries.enqueue([ENTRYPOINT] * count, [CHAT_JSON] * count, [0] * count)
