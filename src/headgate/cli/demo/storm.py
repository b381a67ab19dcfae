"""The storm itself: the load, one misfortune after the other, the rest of the work, the judgement."""

import asyncio
import contextlib
import time

from headgate.cli.demo.plan import RETRY
from headgate.cli.demo.processes import LOOK_EVERY_S, until
from headgate.cli.demo.scene import Scene, guard, supervise
from headgate.cli.demo.verdict import Verdict, judge
from headgate.cli.words import count_of
from headgate.core.errors import HeadgateError


async def blow(scene: Scene) -> Verdict:
    """The load, the acts, the rest of the work, the judgement."""
    async with asyncio.TaskGroup() as background:
        duties = [
            background.create_task(duty) for duty in (supervise(scene), scene.durable.watch(), guard(scene))
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
        # What never ends is lost, and the verdict says so.
        with contextlib.suppress(HeadgateError):
            while scene.books.open_jobs:
                await _fewer_than(scene, scene.books.open_jobs)
        scene.tell("the storm is over; reading everything back")
        for duty in duties:
            duty.cancel()
    await scene.durable.audit()
    return judge(scene.books, [one.counts for one in scene.upstreams], max_attempts=RETRY.max_attempts)


async def _fewer_than(scene: Scene, left: int) -> None:
    """Patience is for a standstill: however many there are, each that ends renews it."""
    await until(lambda: scene.books.open_jobs < left, "for the next job to end")


async def stay(scene: Scene) -> None:
    """Until somebody ends it: a call every second, and a worker for what is replayed."""
    async with asyncio.TaskGroup() as group:
        for duty in (supervise(scene), guard(scene), scene.callers.trickle()):
            group.create_task(duty)


async def _acts(scene: Scene) -> None:
    """One misfortune after the other."""
    spoiled = await scene.durable.hand_in_spoiled()
    scene.tell("a job asks for temperature 4, the upstream says 400: a dead letter")
    await _outage(scene)
    await _kill(scene)
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
    """The worker, amid its jobs. Returns when those have ended all the same: two more crashes would make poison of them."""
    await scene.moment(scene.plan.kill_at)
    while scene.books.open_jobs and not await scene.durable.running():  # noqa: ASYNC110 - another process
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
    if suspects := scene.durable.suspects:
        scene.tell(f"{count_of(suspects, 'job')} beside two of the deaths: one at a time from now on")
