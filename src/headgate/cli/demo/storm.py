"""The storm from its first process to its verdict: who starts what, and what happens when."""

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
from headgate.cli.demo.plan import (
    FALLBACK,
    PRIMARY,
    RETRY,
    Plan,
    fallback_models,
    gateway_settings,
    primary_models,
)
from headgate.cli.demo.processes import LOOK_EVERY_S, Child, Processes, until
from headgate.cli.demo.upstream import SimulatedUpstream
from headgate.cli.demo.verdict import Verdict, judge
from headgate.cli.words import count_of
from headgate.client import AsyncClient
from headgate.core.errors import HeadgateError
from headgate.machine.ids import random_id
from headgate.transport import Transport

Tell = Callable[[str], None]


@dataclass
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
async def scene(plan: Plan, tell: Tell) -> AsyncIterator[Scene]:
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
        processes = stack.enter_context(Processes.open(folder, mark=mark))
        server, url = await processes.serve()
        tell(f"gateway {server.pid} listens at {url}")
        client = await stack.enter_async_context(AsyncClient(url))
        transport = Transport()
        stack.push_async_callback(transport.aclose)
        books = Books()
        yield Scene(
            plan,
            url,
            server,
            processes,
            (primary, fallback),
            DurableWork(client, books, mark=mark),
            Callers(url, transport, books),
            books,
            tell,
        )


async def blow(scene: Scene) -> Verdict:
    """The load, the acts, the rest of the work, the judgement."""
    async with asyncio.TaskGroup() as background:
        duties = [
            background.create_task(duty) for duty in (_supervise(scene), scene.durable.watch(), _guard(scene))
        ]
        await until(lambda: scene.worker is not None, "for the first worker")
        scene.started_at = time.monotonic()
        async with asyncio.TaskGroup() as storm:
            storm.create_task(scene.callers.storm(scene.plan))
            storm.create_task(scene.callers.twins(scene.plan))
            storm.create_task(scene.durable.hand_in_jobs(scene.plan))
            storm.create_task(scene.durable.hand_in_batch(scene.plan))
            storm.create_task(_announce_burst(scene))
            storm.create_task(_acts(scene))
        with contextlib.suppress(
            HeadgateError
        ):  # What has not ended by then is lost, and the verdict says so.
            await until(lambda: not scene.books.open_jobs, "for the last job")
        scene.tell("the storm is over; reading everything back")
        for duty in duties:
            duty.cancel()
    await scene.durable.audit()
    return judge(scene.books, [one.counts for one in scene.upstreams], max_attempts=RETRY.max_attempts)


async def stay(scene: Scene) -> None:
    """Until somebody ends it: a call every second, and a worker for what is replayed."""
    async with asyncio.TaskGroup() as group:
        for duty in (_supervise(scene), _guard(scene), scene.callers.trickle()):
            group.create_task(duty)


async def _acts(scene: Scene) -> None:
    """One misfortune after the other."""
    spoiled = await scene.durable.hand_in_spoiled()
    scene.tell("a job asks for temperature 4, the upstream says 400: a dead letter")
    await _outage(scene)
    await _kill(scene)
    # Not earlier: three crashes make poison, also of a job that only stood beside.
    await scene.moment(scene.plan.poison_at)
    await _poison(scene)
    await scene.moment(scene.plan.mend_at)
    scene.tell("somebody mends the dead letter's input and replays it")
    await scene.durable.mend(spoiled)
    scene.tell("the mended job is completed")


async def _announce_burst(scene: Scene) -> None:
    await scene.moment(scene.plan.burst_at)
    scene.tell(f"{scene.plan.burst} calls at once: who finds the queue full is told when to come back")


async def _outage(scene: Scene) -> None:
    primary = scene.upstreams[0]
    begins, ends = scene.plan.outage
    await scene.moment(begins)
    primary.down = True
    scene.tell("the primary upstream goes down: calls go on to the fallback")
    await scene.moment(ends)
    primary.down = False
    scene.tell("the primary upstream is back")


async def _kill(scene: Scene) -> None:
    """The worker, amid its jobs. Returns when those have ended all the same."""
    await scene.moment(scene.plan.kill_at)
    while not await scene.durable.running():  # noqa: ASYNC110 - another process
        await asyncio.sleep(LOOK_EVERY_S)
    if scene.worker is not None:
        scene.tell(f"kill -9 {scene.worker.pid}: the worker dies amid its jobs")
        scene.worker.kill()
        orphans = await scene.durable.running()
        scene.tell(f"{count_of(len(orphans), 'job')} had begun and must not be lost")
        await until(lambda: scene.durable.ended(orphans), "for the jobs of the killed worker")
        scene.tell(f"the next worker has finished all {len(orphans)} of them")


async def _poison(scene: Scene) -> None:
    scene.tell("a poison job is handed in: whoever runs it dies")
    await scene.durable.hand_in_poison()
    scene.tell(f"after {scene.durable.poison_crashes} dead workers it is set aside: a dead letter, poison")


async def _supervise(scene: Scene) -> None:
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


async def _guard(scene: Scene) -> None:
    await _end_of(scene.server)
    raise HeadgateError(scene.server.trouble())


async def _end_of(child: Child) -> None:
    while not child.over:  # noqa: ASYNC110 - another process
        await asyncio.sleep(LOOK_EVERY_S)
