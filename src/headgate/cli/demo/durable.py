"""Durable work over HTTP: jobs and a batch file handed in, watched from outside, and read back to the last one."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from headgate.cli.demo.books import Books, Kind, question_of
from headgate.cli.demo.plan import ARTICLES, TWINS, Plan
from headgate.cli.demo.processes import PATIENCE_S, until
from headgate.cli.demo.tasks import POISON
from headgate.cli.demo.upstream import HOTTEST
from headgate.client import AsyncClient
from headgate.core.job import Job, JobState
from headgate.core.job_rules import SUSPECT_AFTER

LOOK_EVERY_S: Final = 0.5
PAGE: Final = 500
TWIN_EVERY: Final = 10
"""So many jobs and one is handed in several times at once, under one key."""
SPOILED: Final = "spoiled job"


class DurableWork:
    """Everything the gateway has promised to finish."""

    def __init__(self, client: AsyncClient, books: Books, *, mark: str) -> None:
        self._client = client
        self._books = books
        self._mark = mark
        self._records: dict[str, Job] = {}
        self._batch_id: str | None = None

    async def hand_in_jobs(self, plan: Plan) -> None:
        start = time.monotonic()
        for number, moment in enumerate(plan.job_moments(), 1):
            await asyncio.sleep(max(0.0, start + moment - time.monotonic()))
            await self._hand_in(number)

    async def _hand_in(self, number: int) -> None:
        name = f"job {number}"
        copies = 1 if number % TWIN_EVERY else TWINS
        given = _chat(name)
        sent = [self._client.submit("chat", given, idempotency_key=f"demo {name}") for _ in range(copies)]
        jobs = await asyncio.gather(*sent)
        item = self._books.open(name, Kind.JOB)
        item.requests = copies
        if len({job.id for job in jobs}) > 1:
            self._books.broken.append(f"{name}: one key, {len({job.id for job in jobs})} jobs")

    async def hand_in_batch(self, plan: Plan) -> None:
        """One file in OpenAI's format."""
        names = [f"line {number}" for number in range(1, plan.lines + 1)]
        batch = await self._client.batches.create(
            [{"custom_id": name, "body": _chat(name)} for name in names]
        )
        for name in names:
            self._books.open(name, Kind.LINE)
        self._batch_id = str(batch["id"])

    async def hand_in_spoiled(self) -> str:
        """A request that the upstream calls wrong: a dead letter at once, ahead of the line. Its id."""
        given = {**_chat(SPOILED), "temperature": 2 * HOTTEST}
        job = await self._client.submit("chat", given, lane="interactive")
        self._books.open(SPOILED, Kind.JOB)
        await until(lambda: self._state(job.id) is JobState.DEAD_LETTER, "for the spoiled job's dead letter")
        return job.id

    async def mend(self, job_id: str) -> None:
        """What a person does with a dead letter: edit its input, send it back to work."""
        await self._client.dead_letters.replay(job_id, input=_chat(SPOILED))
        await until(lambda: self._state(job_id) is JobState.COMPLETED, "for the mended job")
        self._books.mended = SPOILED

    async def hand_in_poison(self) -> None:
        """Ahead of the line, so that it is met at once. Returns when it has been set aside."""
        job = await self._client.submit(POISON, {"mark": self._mark}, lane="interactive")
        self._books.open(POISON, Kind.JOB)
        self._books.poison = POISON
        await until(lambda: self.ended([job.id]), "for the poison job")

    async def running(self) -> list[str]:
        """The jobs that are running now, by the store."""
        return [job.id async for job in self._client.jobs(state="running", page_size=PAGE)]

    def ended(self, job_ids: Iterable[str]) -> bool:
        return all((state := self._state(job_id)) is not None and state.final for job_id in job_ids)

    @property
    def poison_crashes(self) -> int:
        return max((job.crashes for job in self._records.values() if job.task == POISON), default=0)

    @property
    def suspects(self) -> int:
        """Jobs that were beside two deaths: they run one at a time now."""
        return sum(job.crashes >= SUSPECT_AFTER and not job.state.final for job in self._records.values())

    def _state(self, job_id: str) -> JobState | None:
        record = self._records.get(job_id)
        return None if record is None else record.state

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Read the list, and whole what has changed in it."""
        listed = [job async for job in self._client.jobs(page_size=PAGE)]
        for light in listed:
            known = self._records.get(light.id)
            if known is None or _mark(known) != _mark(light):
                self._records[light.id] = await self._client.job(light.id)
        self._books.see(self._records.values())

    async def audit(self) -> None:
        """Read everything once more, whole, and the batch's output line by line."""
        self._records.clear()
        await self.look()
        doubled = Counter(question_of(job) for job in self._records.values())
        self._books.broken += [f"{name}: {count} jobs" for name, count in doubled.items() if count > 1]
        if self._batch_id is not None:
            await self._audit_batch(self._batch_id)

    async def _audit_batch(self, batch_id: str) -> None:
        batch = await self._client.batches.wait(batch_id, timeout=PATIENCE_S)
        lines = Counter([line["custom_id"] async for line in self._client.batches.output(batch_id)])
        names = {item.name for item in self._books.of(Kind.LINE)}
        if batch["status"] != "completed" or set(lines) != names or lines.total() != len(names):
            self._books.broken.append(
                f"the batch is {batch['status']}: {lines.total()} lines came out, {len(names)} went in"
            )


def _chat(text: str) -> dict[str, Any]:
    return {"model": ARTICLES, "messages": [{"role": "user", "content": text}]}


def _mark(job: Job) -> tuple[object, ...]:
    return job.state, job.generation, job.crashes
