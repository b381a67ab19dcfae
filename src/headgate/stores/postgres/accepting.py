"""Submissions with idempotency keys, dedup keys or records: many callers' in one transaction.

The outcome is as if they had come one after the other. Keys are taken first, in one order for everybody, so that
two flushes wait for each other at most once; then jobs are inserted, then records. An error is one caller's, but it
rolls back the whole flush: `Group` then sends the others without that one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.errors import (
    HeadgateError,
    KeyInProgress,
    KeyMismatch,
    QuotaExceeded,
    RecordExists,
    StoreUnavailable,
)
from headgate.core.idempotency import KeyClaim, KeyRow, KeyState, Unknown, decide, known_job
from headgate.core.job import Accepted, NewJob
from headgate.stores.postgres.base import SQL
from headgate.stores.postgres.columns import columns, job_row
from headgate.stores.postgres.database import Connection
from headgate.stores.postgres.keys import KeyName
from headgate.stores.postgres.records import Writing, put_records

MOST_LOOKS: Final = 10


class Call(NamedTuple):
    """One caller's submission: all of it or nothing."""

    jobs: Sequence[NewJob]
    now: float
    quota: int | None = None
    """The bytes that its tenant may store then; None: no bound."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a submission ends: a job of its own, or one that does the work already."""

    job: NewJob
    now: float
    job_id: str
    created: bool = True


async def accept_calls(connection: Connection, calls: Sequence[Call]) -> list[list[Accepted]]:
    """One answer per caller."""
    # Read before the keys are taken: each has a row that counts, too.
    stored = await _stored_bytes(connection, calls)
    keyed = _first_of_each_key(calls)
    known = await _take_keys(connection, keyed)
    sorting = _Sorting(known)
    places, mistake = sorting.sort_out(calls)
    if stored is not None:
        await _refuse_over(connection, calls, places, stored)
    await _insert(connection, sorting.own)
    written = {name: job_id for name, (job_id, _, _) in keyed.items() if name not in known}
    await _point_keys(connection, sorting.keys, written)
    await put_records(connection, list(_records(sorting.own)))
    if mistake is not None:
        # Raised only now: a record of an earlier job that collides was the first mistake.
        raise mistake
    return [sorting.answers(its_places) for its_places in places]


def over_quota(jobs: Sequence[NewJob], quota: int | None, stored: dict[str, int]) -> QuotaExceeded | None:
    """Why these may not be taken in. `stored` by tenant, to which those that may are added."""
    sizes = Counter[str]()
    for job in jobs:
        sizes[job.tenant] += job.size_bytes
    for tenant, more in sizes.items():
        if quota is not None and stored.get(tenant, 0) + more > quota:
            return QuotaExceeded(tenant, stored=stored.get(tenant, 0), quota=quota)
    for tenant, more in sizes.items():
        stored[tenant] = stored.get(tenant, 0) + more
    return None


async def _stored_bytes(connection: Connection, calls: Sequence[Call]) -> dict[str, int] | None:
    """By tenant; None where no call has a quota."""
    tenants = {job.tenant for call in calls if call.quota is not None for job in call.jobs}
    return dict(await connection.fetch(SQL.stored_bytes, list(tenants))) if tenants else None


async def _refuse_over(
    connection: Connection,
    calls: Sequence[Call],
    places: Sequence[Sequence["Place"]],
    stored: dict[str, int],
) -> None:
    counted: set[Place] = set()
    # Of the last places a mistake may have kept some away.
    for call, its_places in zip(calls, places, strict=False):
        new = [place for place in dict.fromkeys(its_places) if place.created and place not in counted]
        counted.update(new)
        if over_quota([place.job for place in new], call.quota, stored) is None:
            continue
        # A job whose work is done by a live one already adds nothing.
        looks = [Place(place.job, place.now, place.job_id) for place in new]
        await _find_twins(connection, looks)
        over = over_quota([look.job for look in looks if look.created], call.quota, stored)
        if over is not None and any(look.created for look in looks):
            raise over


class _Sorting:
    """Who gets a job of their own, given what the store knows of the keys and who came before in this flush."""

    def __init__(self, known: Mapping[KeyName, KeyRow]) -> None:
        self._known = known
        self._twins: dict[tuple[str, str, str], Place] = {}
        self._told: set[Place] = set()
        self._hashes: dict[KeyName, bytes] = {}
        self.own: list[Place] = []
        self.keys: dict[KeyName, Place] = {}

    def sort_out(self, calls: Sequence[Call]) -> tuple[list[list[Place]], HeadgateError | None]:
        """Everybody's places, or the first mistake and nobody who comes after it."""
        places: list[list[Place]] = []
        for call in calls:
            places.append([])
            for job in call.jobs:
                try:
                    places[-1].append(self._place(job, call.now))
                except (KeyMismatch, KeyInProgress, RecordExists) as mistake:
                    return places, mistake
        return places, None

    def answers(self, places: Iterable[Place]) -> list[Accepted]:
        return [self._answer(place) for place in places]

    def _place(self, job: NewJob, now: float) -> Place:
        if job.key is None:
            return self._place_twin(job, now)
        name = (job.tenant, job.key.endpoint, job.key.key)
        if name in self.keys:
            return self._same(name, job.key)
        known = self._known.get(name)
        known_id = None if known is None else _job_of(known, job.key, now)
        if known_id is not None:
            return Place(job, now, known_id, created=False)
        self._hashes[name] = job.key.request_hash
        place = self.keys[name] = self._place_twin(job, now)
        return place

    def _same(self, name: KeyName, claim: KeyClaim) -> Place:
        """The key came before in this very flush."""
        if claim.request_hash != self._hashes[name]:
            raise KeyMismatch(claim.key)
        return self.keys[name]

    def _place_twin(self, job: NewJob, now: float) -> Place:
        if job.dedup_key is None:
            place = Place(job, now, job.id)
            self.own.append(place)
            return place
        name = (job.tenant, job.task, job.dedup_key)
        if name not in self._twins:
            self._twins[name] = Place(job, now, job.id)
            self.own.append(self._twins[name])
        return self._twins[name]

    def _answer(self, place: Place) -> Accepted:
        """A place that several share was created by the first of them."""
        created = place.created and place not in self._told
        self._told.add(place)
        return Accepted(place.job_id, created=created)


def _job_of(row: KeyRow, claim: KeyClaim, now: float) -> str | None:
    """The job that has the key already; None when the key may be used."""
    verdict = decide(row, claim.request_hash, owner_lives=True, unknown=Unknown.RERUN, now=now)
    return known_job(verdict, claim.key)


# ---- Inside the transaction -----------------------------------------------------------------------------


async def take_key(
    connection: Connection, name: KeyName, claim: KeyClaim, job_id: str, now: float
) -> str | None:
    """Take a key for a job that is there already; the job it leads to when it was taken before."""
    known = await _take_keys(connection, {name: (job_id, claim, now)})
    return _job_of(known[name], claim, now) if name in known else None


def _first_of_each_key(calls: Sequence[Call]) -> dict[KeyName, tuple[str, KeyClaim, float]]:
    firsts: dict[KeyName, tuple[str, KeyClaim, float]] = {}
    for call in calls:
        for job in call.jobs:
            if job.key is not None:
                firsts.setdefault((job.tenant, job.key.endpoint, job.key.key), (job.id, job.key, call.now))
    return dict(sorted(firsts.items()))


async def _take_keys(
    connection: Connection, keyed: Mapping[KeyName, tuple[str, KeyClaim, float]]
) -> dict[KeyName, KeyRow]:
    """Take those that are free; what is known of the others, which nobody can change until we are done."""
    if not keyed:
        return {}
    wanted = columns(
        (
            *name,
            claim.request_hash,
            int(now * 1e6),
            job_id,
            now,
            claim.expires_at,
        )
        for name, (job_id, claim, now) in keyed.items()
    )
    taken = {tuple(row) for row in await connection.fetch(SQL.take_keys, *wanted)}
    others = [name for name in keyed if name not in taken]
    if not others:
        return {}
    rows = await connection.fetch(SQL.find_keys, *columns(others))
    return {(row[0], row[1], row[2]): _key_row(row[3:]) for row in rows}


def _key_row(row: Sequence[object]) -> KeyRow:
    names = (
        *("state", "request_hash", "lease", "owner", "expires_at", "job_id"),
        *("response_status", "response_body"),
    )
    values = dict(zip(names, row, strict=True))
    return KeyRow(**{**values, "state": KeyState(str(values["state"]))})  # type: ignore[arg-type]  # the table's types


async def _insert(connection: Connection, places: Sequence[Place]) -> None:
    """Insert; where a live job does the work already, find out which. It may end meanwhile: then insert again."""
    # In one order for everybody, for the sake of those who insert the same dedup keys at the same time.
    rest = sorted(places, key=lambda place: (place.job.tenant, place.job.task, place.job.dedup_key or ""))
    for _ in range(MOST_LOOKS):
        if not rest:
            return
        rows = columns(job_row(place.job, place.now) for place in rest)
        inserted = {row[0] for row in await connection.fetch(SQL.insert_jobs, *rows)}
        rest = [place for place in rest if place.job.id not in inserted]
        await _find_twins(connection, rest)
        rest = [place for place in rest if place.created]
    if rest:
        raise StoreUnavailable("jobs with the same dedup key come and go too fast", retry_after_s=1.0)


async def _find_twins(connection: Connection, places: Sequence[Place]) -> None:
    if not places:
        return
    wanted = columns(
        (number, place.job.tenant, place.job.task, place.job.dedup_key) for number, place in enumerate(places)
    )
    for number, job_id in await connection.fetch(SQL.find_twins, *wanted):
        places[number].job_id = job_id
        places[number].created = False


async def _point_keys(
    connection: Connection, keys: Mapping[KeyName, Place], written: Mapping[KeyName, str]
) -> None:
    """A key that came with one job but whose work another does leads to that other."""
    strays = [(*name, place.job_id) for name, place in keys.items() if written.get(name) != place.job_id]
    if strays:
        await connection.execute(SQL.point_keys, *columns(strays))


def _records(places: Iterable[Place]) -> Iterable[Writing]:
    for place in places:
        if place.created:
            for write in place.job.records:
                yield Writing(place.job.tenant, write, place.now)
