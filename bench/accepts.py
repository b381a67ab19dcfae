"""How fast jobs are taken in: one by one from many producers, alone, and many at a time. Durable when it returns."""

import asyncio
import statistics
import time
from typing import Final

from ground import CHAT, CHAT_JSON, Ground, noop

from headgate.core.job import NewJob

PRODUCERS: Final = 50
AT_ONCE: Final = 2
"""Bulk submissions on their way at a time."""


async def submits_per_s(ground: Ground, *, seconds: float) -> float:
    """Through the public front, one by one, from many producers."""
    async with ground.gateway() as gateway:
        await gateway.jobs.submit(noop, CHAT)
        count = 0

        async def produce(until: float) -> None:
            nonlocal count
            while time.perf_counter() < until:
                await gateway.jobs.submit(noop, CHAT)
                count += 1

        start = time.perf_counter()
        await asyncio.gather(*(produce(start + seconds) for _ in range(PRODUCERS)))
        return count / (time.perf_counter() - start)


async def port_per_s(ground: Ground, *, seconds: float) -> float:
    """At the store itself: what the front costs is the difference."""
    store = ground.store()
    await store.open()
    count = 0

    async def produce(until: float) -> None:
        nonlocal count
        while (at := time.perf_counter()) < until:
            count += 1
            now = time.time()
            job_id = f"job_{int(now * 1000):012x}{at:.9f}{count}"
            job = NewJob(id=job_id, task=noop.name, input=CHAT_JSON, run_at=now, expires_at=now + 86_400)
            await store.accept([job], now=now)

    start = time.perf_counter()
    await asyncio.gather(*(produce(start + seconds) for _ in range(PRODUCERS)))
    took_s = time.perf_counter() - start
    await store.aclose()
    return count / took_s


async def lone_ms(ground: Ground, *, count: int) -> float:
    """One after the other, nobody else there: the median."""
    async with ground.gateway() as gateway:
        await gateway.jobs.submit(noop, CHAT)
        took = []
        for _ in range(count):
            start = time.perf_counter()
            await gateway.jobs.submit(noop, CHAT)
            took.append(time.perf_counter() - start)
        return statistics.median(took) * 1000


async def bulk_per_s(ground: Ground, *, together: int, seconds: float) -> float:
    """Lists of so many."""
    async with ground.gateway() as gateway:
        await gateway.jobs.submit(noop, CHAT)
        jobs = [{"task": noop.name, "input": CHAT}] * together
        count = 0

        async def produce(until: float) -> None:
            nonlocal count
            while time.perf_counter() < until:
                await gateway.jobs.submit_many(jobs)
                count += together

        start = time.perf_counter()
        await asyncio.gather(*(produce(start + seconds) for _ in range(AT_ONCE)))
        return count / (time.perf_counter() - start)
