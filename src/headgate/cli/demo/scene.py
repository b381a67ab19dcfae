"""What the storm blows over: two upstreams, the gateway's process, a worker that is started again whenever it dies."""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from headgate.cli.demo.books import Books
from headgate.cli.demo.callers import Callers
from headgate.cli.demo.durable import DurableWork
from headgate.cli.demo.plan import FALLBACK, PRIMARY, Plan, fallback_models, gateway_settings, primary_models
from headgate.cli.demo.processes import LOOK_EVERY_S, Child, Processes, until
from headgate.cli.demo.upstream import SimulatedUpstream
from headgate.client import AsyncClient
from headgate.core.errors import HeadgateError
from headgate.machine.ids import random_id
from headgate.transport import Transport

Tell = Callable[[str], None]


@dataclass(kw_only=True)
class Scene:
    """What is there while the storm blows."""

    plan: Plan
    url: str
    server: Child
    processes: Processes
    upstreams: tuple[SimulatedUpstream, SimulatedUpstream]
    durable: DurableWork
    callers: Callers
    books: Books
    tell: Tell
    started_at: float = field(default_factory=time.monotonic)
    worker: Child | None = None

    async def moment(self, share: float) -> None:
        """Wait for this share of the storm's time to be over."""
        await asyncio.sleep(max(0.0, self.started_at + share * self.plan.seconds - time.monotonic()))


@contextlib.asynccontextmanager
async def open_scene(plan: Plan, tell: Tell) -> AsyncIterator[Scene]:
    """A folder, two upstreams, the gateway's process; all gone when the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-demo-")))
        primary = SimulatedUpstream(PRIMARY, primary_models(plan), seed=plan.seed)
        fallback = SimulatedUpstream(FALLBACK, fallback_models(plan), seed=plan.seed)
        urls = []
        for upstream in (primary, fallback):
            stack.push_async_callback(upstream.aclose)
            urls.append(await upstream.start())
        settings = gateway_settings(folder, *urls)
        (folder / "headgate.yaml").write_text(json.dumps(settings), encoding="utf-8")
        mark = random_id()
        processes = stack.enter_context(Processes(folder, mark=mark))
        server, url = await processes.serve()
        tell(f"gateway {server.pid} listens at {url}")
        client = await stack.enter_async_context(AsyncClient(url))
        transport = Transport()
        stack.push_async_callback(transport.aclose)
        books = Books()
        yield Scene(
            plan=plan,
            url=url,
            server=server,
            processes=processes,
            upstreams=(primary, fallback),
            durable=DurableWork(client, books, mark=mark),
            callers=Callers(url, transport, books),
            books=books,
            tell=tell,
        )


async def supervise(scene: Scene) -> None:
    """Whenever the worker dies, the next one starts, as under any service manager."""
    while True:
        worker = scene.worker
        if worker is None:
            worker = scene.worker = await _start_worker(scene)
        await _end_of(worker)
        if not worker.killed:
            raise HeadgateError(worker.trouble())
        scene.worker = None
        scene.books.worker_deaths += 1
        scene.tell(f"worker {worker.pid} is dead; the next one starts")


async def _start_worker(scene: Scene) -> Child:
    worker = scene.processes.work()
    await until(lambda: worker.at_work or worker.over, "for a worker's start")
    if worker.at_work:
        scene.tell(f"worker {worker.pid} at work")
    return worker


async def guard(scene: Scene) -> None:
    """The gateway is never killed: should it end, so does the demo."""
    await _end_of(scene.server)
    raise HeadgateError(scene.server.trouble())


async def _end_of(child: Child) -> None:
    while not child.over:  # noqa: ASYNC110 - another process
        await asyncio.sleep(LOOK_EVERY_S)
