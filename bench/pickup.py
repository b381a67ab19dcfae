"""How long a job waits for an idle worker: from the call of `submit` to the first line of its task."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

import uvloop
from ground import CHAT, Chat, Ground, beside

import headgate
from headgate.gateway import Gateway
from headgate.runner.context import Context

JOBS: Final = 200
EVERY_S: Final = 0.02
FIRST: Final = 20
"""So many are not counted: connections are opened, statements prepared."""


class Stamped(Chat):
    """Knows when it was sent, by the clock that all processes of a machine share."""

    sent_at: float


@headgate.task("bench.stamped")
async def stamped(_ctx: Context, body: Stamped) -> float:
    return time.monotonic() - body.sent_at


async def waits_ms(ground: Ground, *, work: bool) -> list[float]:
    """Sorted. With `work=False` the worker is another process."""
    async with ground.gateway(stamped, work=work) as gateway:
        handles = []
        for _ in range(FIRST + JOBS):
            await asyncio.sleep(EVERY_S)
            handles.append(await gateway.jobs.submit(stamped, {**CHAT, "sent_at": time.monotonic()}))
        waits = [await _result(gateway, handle.id) for handle in handles[FIRST:]]
        return sorted(wait * 1000 for wait in waits)


async def _result(gateway: Gateway, job_id: str) -> float:
    job = await gateway.jobs.wait(job_id, timeout=30)
    return float(job.result)


@contextlib.contextmanager
def worker_beside(ground: Ground) -> Iterator[None]:
    """A worker in a process of its own, idle when this begins."""
    with beside(_serve, ground) as worker:
        if not worker.poll(30):
            raise TimeoutError("the worker does not start")
        worker.recv()
        yield


def _serve(parent: Connection, ground: Ground) -> None:
    async def serve() -> None:
        async with ground.gateway(stamped, work=True):
            parent.send("ready")
            await asyncio.get_running_loop().run_in_executor(None, parent.poll, None)

    uvloop.run(serve())
