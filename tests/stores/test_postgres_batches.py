"""Cancelling a batch while others hold some of its jobs."""

import asyncio

import asyncpg  # type: ignore[import-untyped]
from stores.postgres_stage import NOW, a_job, opened


def test_a_job_that_somebody_holds_is_cancelled_last_and_not_forgotten(postgres_url: str) -> None:
    """Who waits for one job while holding others stops their workers; who steps over it for good lets it run."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.accept([a_job(id=f"j{number}", batch_id="b") for number in range(3)], now=NOW)
            other = await asyncpg.connect(postgres_url)
            holding = other.transaction()
            await holding.start()
            await other.execute("select from headgate.jobs where id = 'j0' for update")

            assert await store.cancel_batch("b", tenant="local", now=NOW, limit=9) == 2
            last = asyncio.create_task(store.cancel_batch("b", tenant="local", now=NOW, limit=9))
            done, _ = await asyncio.wait([last], timeout=0.1)
            assert not done, "there is one left, so it must not say 0"
            await holding.rollback()
            await other.close()

            assert await last == 1
            assert (await store.batch_counts("b", tenant="local"))["cancelled"] == 3

    asyncio.run(main())
