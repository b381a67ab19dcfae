"""Kill those who post through an outbox at any moment: every entry is one job of the gateway, and the order is kept."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import Figure
from crash.conftest import site_on
from crash.harness import ROUNDS, SEED, Child, Family, Site, until

from headgate.client import AsyncClient, Entry, Outbox
from headgate.core.job import Job
from headgate.core.outbox import EntryState

KILLS = ROUNDS or 15
POSTERS = 2


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """An outbox is the client's: what store the gateway has makes no difference."""
    return site_on("sqlite", request, tmp_path)


class Post:
    """Two posters that share a file; whoever is killed is started again at once."""

    def __init__(self, family: Family, chance: random.Random) -> None:
        self.outbox = str(family.site.folder / "outbox" / "outbox.db")
        self._family = family
        self._chance = chance
        self._gateway = family.start("gateway", settings=family.site.settings())
        until("the gateway listens", lambda: bool(family.site.lines("gateway")), self._gateway)
        self.url = str(family.site.lines("gateway")[0]["url"])
        self._alive = [self._start() for _ in range(POSTERS)]

    def _start(self) -> Child:
        return self._family.start("poster", outbox=self.outbox, url=self.url)

    def kill_one(self) -> None:
        victim = self._chance.choice(self._alive)
        if self._chance.random() < 0.8:
            self._let_add(victim)
        # The one place that sleeps: the moment must fall anywhere, also amid a start.
        time.sleep(self._chance.random() * 0.06)
        victim.kill()
        self._alive[self._alive.index(victim)] = self._start()

    def settle_down(self) -> None:
        for child in self._alive:
            self._let_add(child)
            child.kill()

    def _let_add(self, child: Child) -> None:
        until("it has added something", lambda: self._has_added(child), child)

    def _has_added(self, child: Child) -> bool:
        return any(
            path.stat().st_size for path in Path(self._family.site.ledgers).glob(f"added.{child.pid}-*")
        )


async def _finish(post: Post) -> tuple[list[Entry], dict[str, Job]]:
    """What is left is sent by somebody who lives; then both sides are read."""
    with Outbox(post.outbox) as outbox:
        async with AsyncClient(post.url) as client:
            flushed = await outbox.flush(client)
            assert (flushed.waiting, flushed.failed, flushed.trouble) == (0, 0, None)
            jobs = {job.id: job async for job in client.jobs(page_size=1000)}
        return list(outbox.list()), jobs


@pytest.mark.timeout(3600)
def test_every_entry_is_one_job_in_its_order_whoever_is_killed(
    family: Family, site: Site, figure: Figure
) -> None:
    post = Post(family, random.Random(SEED))
    for _ in range(KILLS):
        post.kill_one()
    post.settle_down()
    entries, jobs = asyncio.run(_finish(post))

    assert {entry.state for entry in entries} == {EntryState.SENT}
    promised = [line["entry"] for line in site.lines("added")]
    assert set(promised) <= {entry.id for entry in entries}, "an entry that was promised is gone"
    names = Counter(job.metadata["name"] for job in jobs.values())
    assert max(names.values()) == 1, "an entry became two jobs"
    assert [entry.standing.server_id for entry in entries if entry.standing.server_id not in jobs] == []
    assert len(jobs) == len(entries)
    _check_order(entries, jobs)
    figure(
        f"client kill -9 × {KILLS}",
        f"{len(entries)} outbox entries, {len(jobs)} server jobs, order kept in every stream",
    )


def _check_order(entries: list[Entry], jobs: dict[str, Job]) -> None:
    for stream in {entry.stream for entry in entries}:
        mine = [jobs[str(entry.standing.server_id)] for entry in entries if entry.stream == stream]
        assert {job.metadata["stream"] for job in mine} == {stream}
        moments = [job.created_at for job in mine]
        assert moments == sorted(moments)
