"""What must be true after all the killing, whatever was killed and when."""

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crash.harness import Site
from crash.tasks import EFFECTS, THOUGHTS, Worker

import headgate
from headgate.core.job import Job, JobState
from headgate.core.record import Record
from headgate.gateway import Gateway

PAGE = 1000
LEAVING_S = 30.0


@dataclass
class Books:
    """Everything the store says in the end."""

    jobs: dict[str, Job]
    effects: dict[str, list[Record]]
    """The recorded effects, by job."""
    records: dict[str, set[str]]
    """The ids of all other records, by collection."""
    revoked: dict[str, bool]
    """Whether they are revoked: the keys for callers over HTTP, by name."""

    def named(self, name: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.metadata and job.metadata["name"] == name]


def open_books(site: Site, *collections: str) -> Books:
    return asyncio.run(_read(site, collections))


async def _read(site: Site, collections: Iterable[str]) -> Books:
    async with headgate.open(site.settings(), env={}, tasks=Worker(site.ledgers).tasks()) as gateway:
        jobs = [await gateway.jobs.get(job_id) for job_id in await _ids(gateway)]
        effects = defaultdict(list)
        for record in await _records(gateway, EFFECTS):
            effects[str(record.job_id)].append(record)
        others = {name: {record.id for record in await _records(gateway, name)} for name in collections}
        keys = await gateway.durable.store.access_keys()
    revoked = {kept.key.name: kept.key.revoked_at is not None for kept in keys}
    return Books({job.id: job for job in jobs}, effects, others, revoked)


def secrets_in_force(site: Site) -> list[str]:
    """The webhook secrets of the tenant `local`, decrypted, newest first."""

    async def read() -> list[str]:
        async with headgate.open(site.settings(), env={}) as gateway:
            await gateway.durable.start()
            return list(await gateway.webhooks._webhooks.secrets.in_force("local"))

    return asyncio.run(read())


async def _ids(gateway: Gateway) -> list[str]:
    ids: list[str] = []
    while page := await gateway.jobs.list(limit=PAGE, after=ids[-1] if ids else None):
        ids += [job.id for job in page]
    return ids


async def _records(gateway: Gateway, collection: str) -> list[Record]:
    found: list[Record] = []
    while page := await gateway.records.list(collection, limit=PAGE, after=found[-1].id if found else None):
        found += page
    return found


def submit(site: Site, inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Jobs with these inputs; their ids."""

    async def submit_all() -> list[str]:
        async with headgate.open(site.settings(), env={}, tasks=Worker(site.ledgers).tasks()) as gateway:
            listed = [{"task": "effect", "input": dict(one)} for one in inputs]
            return [handle.id for handle in await gateway.jobs.submit_many(listed)]

    return asyncio.run(submit_all())


# ---- Waiting for the end ----------------------------------------------------------------------------------


def wait_for_all(site: Site, *, within_s: float) -> float:
    """Until no job waits or runs; the time when that was seen."""
    all_ended(site, unless=lambda: False, within_s=within_s)
    return time.monotonic()


def all_ended(site: Site, *, unless: Callable[[], bool], within_s: float) -> bool:
    """Wait until no job waits or runs: True. False as soon as `unless` is true."""
    deadline = time.monotonic() + within_s

    async def wait() -> bool:
        # The looker itself must not hang either, not even on its way out.
        async with asyncio.timeout(within_s + LEAVING_S), headgate.open(site.settings(), env={}) as gateway:
            while True:
                counts = await gateway.jobs.count()
                if not counts[JobState.PENDING] and not counts[JobState.RUNNING]:
                    return True
                if unless():
                    return False
                assert time.monotonic() < deadline, f"jobs are stuck after {within_s:g} s: {counts}"
                await asyncio.sleep(0.05)

    return asyncio.run(wait())


def finish(site: Site, *, within_s: float) -> int:
    """A job that happened to run at three kills is thought a killer: its owner sends it back. How many there were.

    Of two with one dedup key the second can go only when the first is through, hence again and again.
    """
    replayed = 0
    wait_for_all(site, within_s=within_s)
    while more := asyncio.run(_replay_poison(site)):
        replayed += more
        wait_for_all(site, within_s=within_s)
    return replayed


async def _replay_poison(site: Site) -> int:
    async with headgate.open(site.settings(), env={}) as gateway:
        counts = [count async for count in gateway.dead_letters.replay_many(reason="poison")]
        return counts[-1] if counts else 0


# ---- The rules --------------------------------------------------------------------------------------------


def check_promises(books: Books, promised: Iterable[str]) -> int:
    """Accepted and missing = 0. Returns how many were accepted."""
    ids = set(promised)
    missing = ids - books.jobs.keys()
    assert not missing, f"{len(missing)} of {len(ids)} accepted jobs are gone"
    return len(ids)


def check_effects(site: Site, books: Books) -> None:
    """A completed job has one result, one record and one line in its history that says so; others have none."""
    runs = {line["run"] for line in site.lines(EFFECTS)}
    for job in books.jobs.values():
        completed = [entry for entry in job.history if entry.outcome == "completed"]
        recorded = books.effects.get(job.id, [])
        if job.state is JobState.COMPLETED:
            assert len(recorded) == 1, f"{job.id} has {len(recorded)} recorded effects"
            assert recorded[0].body == job.result, f"{job.id}: the record is of another run than the result"
            assert job.result["run"] in runs, f"{job.id}: nobody ran {job.result}"
            assert [entry.generation for entry in completed] == [job.generation], f"{job.id}: {completed}"
        else:
            assert not recorded, f"{job.id} is {job.state} and has a recorded effect"
            assert not completed, f"{job.id} is {job.state} and was completed once"
            assert job.result is None, f"{job.id} is {job.state} and has a result"
    assert books.effects.keys() <= books.jobs.keys(), "effects of jobs that do not exist"


def check_thoughts(site: Site) -> None:
    """A step that was ever told is told the same for ever after."""
    told = Counter({(line["job"], line["thought"]) for line in site.lines(THOUGHTS)})
    per_job = Counter(job for job, _ in told)
    assert not [job for job, count in per_job.items() if count > 1], "a stored step was run again"


def reruns(site: Site, books: Books, killed: Sequence[tuple[int, float]]) -> list[float]:
    """For every run that a kill cut off: how long after the kill the job ran again. `killed`: pids, and when.

    Jobs that were thought killers are left out: they waited for their owner.
    """
    by_job: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in site.lines(EFFECTS):
        by_job[line["job"]].append(line)
    return [
        again["at"] - died_at
        for job_id, runs in by_job.items()
        for run, again in itertools.pairwise(runs)
        if (died_at := _death_of(run, killed)) is not None and books.jobs[job_id].generation == 1
    ]


def _death_of(run: Mapping[str, Any], killed: Iterable[tuple[int, float]]) -> float | None:
    """The first death of its process since then: pids are used again."""
    return min((at for pid, at in killed if pid == run["pid"] and at > run["at"]), default=None)
