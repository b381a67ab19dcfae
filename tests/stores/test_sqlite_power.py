"""The power goes at any moment: whatever was answered is on the disk, and the rest is there whole or not at all.

50 cuts in a normal run; HEADGATE_POWER_CUTS=500 for more, HEADGATE_POWER_SEED for others.
"""

import asyncio
import itertools
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import Figure
from contracts.job_stage import NOW, a_job, a_key, a_record, after, join, take
from lossy_vfs import Disk, lay_out, lossy_disk
from stores_under_test import new_id

from headgate.core.job import JobState, Settled
from headgate.core.job_rules import Completed
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

CUTS = int(os.environ.get("HEADGATE_POWER_CUTS", "50"))
SEED = int(os.environ.get("HEADGATE_POWER_SEED", "7"))
CUTS_PER_LIFE = 10
WORKERS = 4
EVERY = 300
"""About one in so many changes of the disk is the last."""
CHECKPOINT_PAGES = 40
"""So small that cuts also fall into checkpoints and into the write-ahead log's new beginning."""


@dataclass
class Told:
    """What callers were answered so far."""

    accepted: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PowerCut:
    folder: Path
    accepted: tuple[str, ...]
    completed: tuple[str, ...]


@dataclass
class Life:
    """One store on one lossy disk, until its power has been cut so many times (on paper: it goes on)."""

    folder: Path
    disk: Disk
    chance: random.Random
    told: Told = field(default_factory=Told)
    cuts: list[PowerCut] = field(default_factory=list)

    def maybe_cut(self) -> None:
        """In the middle of the writer's work. What it left is laid out, to be looked at later."""
        if len(self.cuts) == CUTS_PER_LIFE or self.chance.random() > 1 / EVERY:
            return
        folder = self.folder / f"cut-{len(self.cuts)}"
        accepted, completed = tuple(self.told.accepted), tuple(self.told.completed)
        lay_out(self.disk.after_power_cut(self.chance), folder)
        self.cuts.append(PowerCut(folder, accepted, completed))

    async def live(self, vfs: str) -> None:
        path = self.folder / "jobs.db"
        store = SqliteStore(path, clock=SystemClock(), new_id=new_id, vfs=vfs)
        self.disk.on_change = self.maybe_cut
        await store.open()
        await store._writer.run("tune", lambda db: db.wal_autocheckpoint(CHECKPOINT_PAGES))
        await join(store)
        numbers = itertools.count()
        await asyncio.gather(*(self.work(store, numbers) for _ in range(WORKERS)))
        self.disk.on_change = lambda: None
        await store.aclose()

    async def work(self, store: SqliteStore, numbers: "itertools.count[int]") -> None:
        """Submit two at a time, with a key and a record; finish one."""
        while len(self.cuts) < CUTS_PER_LIFE:
            number = next(numbers)
            body = b'"' + b"x" * self.chance.randrange(9000) + b'"'
            pair = [
                a_job(f"{number}-a", input=body, key=a_key(f"k{number}")),
                a_job(f"{number}-b", input=body, records=(a_record(f"r{number}", unique_key=f"u{number}"),)),
            ]
            await store.accept(pair, now=NOW)
            self.told.accepted += [job.id for job in pair]
            for claim in await take(store, places=1):
                answers = await store.settle([after(claim, Completed(claim.input))], now=NOW)
                assert answers == [Settled.APPLIED]
                self.told.completed.append(claim.id)


async def look_at(cut: PowerCut) -> None:
    """Start again from what the cut left: nothing answered is missing, nothing is there by halves."""
    store = SqliteStore(cut.folder / "jobs.db", clock=SystemClock(), new_id=new_id)
    await store.open()
    try:
        assert await store._reader.run(lambda db: db.pragma("integrity_check")) == "ok"
        states = await store.states(cut.accepted)
        assert set(states) == set(cut.accepted), "an answered submission is gone"
        undone = [job_id for job_id in cut.completed if states[job_id] is not JobState.COMPLETED]
        assert not undone, "an answered settlement is gone"
        await nothing_is_there_by_halves(store)
        assert (await store.accept([a_job()], now=NOW))[0].created
    finally:
        await store.aclose()


async def nothing_is_there_by_halves(store: SqliteStore) -> None:
    found: list[Any] = await store._reader.run(lambda db: db.execute("select id, state from jobs").fetchall())
    keys = await store._reader.run(lambda db: db.execute("select key from idempotency_keys").fetchall())
    numbers = [{job_id.split("-")[0] for job_id, _ in found if job_id.endswith(half)} for half in "ab"]
    assert numbers[0] == numbers[1], "half of a list is there"
    assert {f"k{number}" for number in numbers[0]} == {key for (key,) in keys}, "a job and its key are apart"
    records = await store.list_records("local", "pages", limit=100_000)
    assert {f"r{number}" for number in numbers[1]} == {record.id for record in records}
    for job_id, state in found[-3:]:
        job = await store.find(job_id)
        assert job is not None
        assert (job.result == job.input) is (state == "completed")


def test_what_was_answered_survives_every_power_cut(tmp_path: Path, figure: Figure) -> None:
    """An answer is a promise. `synchronous = full` and the group commit must keep it at every byte."""
    chance, survived, answered = random.Random(SEED), 0, 0
    while survived < CUTS:
        folder = tmp_path / f"life-{survived}"
        folder.mkdir()
        with lossy_disk("lossy") as disk:
            life = Life(folder, disk, chance)
            asyncio.run(life.live("lossy"))
        for cut in life.cuts:
            asyncio.run(look_at(cut))
            answered += len(cut.accepted)
        survived += len(life.cuts)
        shutil.rmtree(folder)

    assert answered > CUTS, "hardly anything was answered before the cuts"
    figure("power cuts survived", f"{survived} (nothing answered was lost, nothing was torn)")


@pytest.mark.parametrize(("synchronous", "kept"), [("full", True), ("off", False)])
def test_the_lossy_disk_loses_what_was_not_synced(tmp_path: Path, synchronous: str, kept: bool) -> None:
    """The test above proves nothing unless this disk really forgets."""
    with lossy_disk("lossy") as disk:
        connection = apsw.Connection(str(tmp_path / "t.db"), vfs="lossy")
        connection.pragma("journal_mode", "wal")
        connection.execute("create table t (n)")
        connection.pragma("wal_checkpoint(full)")
        connection.pragma("synchronous", synchronous)
        connection.execute("insert into t values (1)")
        lost = 0
        for number in range(20):
            lay_out(disk.after_power_cut(random.Random(number)), tmp_path / str(number))
            again = apsw.Connection(str(tmp_path / str(number) / "t.db"))
            lost += again.execute("select count(*) from t").get != 1
            again.close()
        connection.close()

    assert (lost == 0) is kept
