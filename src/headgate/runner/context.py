"""What a task is given: its job, its model, durable steps, progress, records."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, StateConflict, StoreUnavailable
from headgate.core.job import Claim
from headgate.core.job_rules import storable
from headgate.core.ports.calls import Llm
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.core.record import RecordWrite
from headgate.runner.job_records import JobRecords
from headgate.runner.outcomes import ClaimLost
from headgate.runner.payloads import encode, record

T = TypeVar("T")
PROGRESS_EVERY_S: Final = 0.5
STORE_RESTS_S: Final = (0.2, 1.0, 3.0, 5.0)


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which run of which job this is."""

    id: str
    task: str
    tenant: str
    model: str | None
    attempt: int
    max_attempts: int
    generation: int


class Context:
    """One run of one job. `ctx.llm` calls its model; the job retries, so its calls are single attempts."""

    def __init__(self, claim: Claim, llm: Llm, store: Store, clock: Clock) -> None:
        self.llm = llm
        self.records = JobRecords(store, claim.tenant, self.now)
        self.saved: list[RecordWrite] = []
        self._claim = claim
        self._store = store
        self._clock = clock
        self._steps: dict[str, bytes] | None = None
        self._used: set[str] = set()
        self._told_at = -PROGRESS_EVERY_S
        self._closed = False

    @property
    def job(self) -> JobInfo:
        claim = self._claim
        return JobInfo(
            id=claim.id,
            task=claim.task,
            tenant=claim.tenant,
            model=claim.model or None,
            attempt=claim.attempts,
            max_attempts=claim.max_attempts,
            generation=claim.generation,
        )

    async def step(self, name: str, run: Callable[[], Awaitable[T]], *, type: Any = Any) -> T:  # noqa: A002
        """Do this once per job: its result is stored, and a later attempt gets it without running it again.

        The result must be JSON; it comes back as `type`, on the first run too, so that both look alike.
        """
        check_text("a step's name", name)
        if name in self._used:
            raise InvalidRequest(
                f"step {name!r} was used before in this run: give each step a name of its own"
            )
        self._used.add(name)
        steps = await self._known_steps()
        stored = steps.get(name)
        if stored is None:
            stored = encode(await run(), what=f"the result of step {name!r}")
            value: T = msgspec.json.decode(stored, type=type)
            await self._save_step(name, stored)
            steps[name] = stored
        else:
            value = msgspec.json.decode(stored, type=type)
        return value

    async def _save_step(self, name: str, result: bytes) -> None:
        """It is paid for: a database that restarts just now does not make it be paid for again."""
        for rest_s in (*STORE_RESTS_S, None):
            try:
                kept = await self._store.save_step(
                    self._claim.id, self._claim.lease, name=name, result=result, now=self.now()
                )
            except StoreUnavailable:
                if rest_s is None:
                    raise
                await self._clock.sleep(rest_s)
            else:
                break
        if not kept:
            raise ClaimLost(self._claim.id)

    async def _known_steps(self) -> dict[str, bytes]:
        if self._steps is not None:
            return self._steps
        found = dict(await self._store.steps(self._claim.id))
        # Of steps side by side all ask. The first answer stands, or what one has done meanwhile would be lost.
        return self._first(found)

    def _first(self, found: dict[str, bytes]) -> dict[str, bytes]:
        if self._steps is None:
            self._steps = found
        return self._steps

    async def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far this is. Often is fine: it is written at most twice a second.

        The note is for people: it is cut at 2,000 characters, and what no database can hold is replaced.
        """
        _check_finite("done", done)
        if total is not None:
            _check_finite("total", total)
        now = self._clock.now()
        if now - self._told_at < PROGRESS_EVERY_S and done != total:
            return
        self._told_at = now
        told = {"done": done, "total": total, "note": None if note is None else storable(str(note))}
        progress = encode({name: value for name, value in told.items() if value is not None}, what="progress")
        try:
            kept = await self._store.save_progress(self._claim.id, self._claim.lease, progress=progress)
        except StoreUnavailable:
            return  # Nobody can look just now anyway.
        if not kept:
            raise ClaimLost(self._claim.id)

    def save(
        self,
        collection: str,
        record_id: str,
        body: Mapping[str, Any],
        *,
        unique_key: str | None = None,
        text: str | None = None,
    ) -> None:
        """Write a record together with the job's end: both or neither."""
        if self._closed:
            raise StateConflict(
                f"job {self._claim.id} has ended (task {self._claim.task!r}): record {record_id!r:.100} cannot be"
                " written with it; await everything before the task returns"
            )
        write = record(collection, record_id, body, unique_key=unique_key, text=text, job_id=self._claim.id)
        self.saved.append(write)

    def now(self) -> float:
        """Epoch seconds."""
        return self._clock.utc().timestamp()

    def close(self) -> None:
        """What came of the job is known: nothing can be added any more."""
        self._closed = True


def _check_finite(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise InvalidRequest(f"progress: {name} must be a finite number, not {number!r:.60}", param=name)
