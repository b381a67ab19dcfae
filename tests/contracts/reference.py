"""A store in plain dictionaries: slow, forgetful, and easy to read. What the real ones must agree with.

It has the port's verbs without `async`, and no locks, indexes or transactions: only the rules.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from contracts.reference_keys import KeysAndRecords, Node
from contracts.reference_rows import LIVE, WAITING, Row

from headgate.core.errors import KeyInProgress, KeyMismatch, RecordExists
from headgate.core.idempotency import InProgress, KeyState, Mismatch, Run, SameJob, Unknown
from headgate.core.job import (
    Accepted,
    Claim,
    Edit,
    Ended,
    Entry,
    FollowUps,
    Job,
    JobState,
    Lost,
    NewJob,
    Settled,
    Settlement,
    nothing_follows,
)
from headgate.core.ports.claims import Ready, Renewal, Want
from headgate.core.ports.jobs import CancelAnswer

COOL_AGAIN_S = 60.0


class Reference(KeysAndRecords):
    """`core.ports.store.Store` without `async`."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Row] = {}
        self.seq = 0

    def snapshot(self) -> dict[str, Any]:
        jobs = {job_id: row.copy() for job_id, row in self.jobs.items()}
        return {**super().snapshot(), "jobs": jobs, "seq": self.seq}

    def rows(self, *states: str) -> list[Row]:
        return sorted((row for row in self.jobs.values() if row.state in states), key=lambda row: row.seq)

    # ---- Jobs -------------------------------------------------------------------------------------------

    def accept(self, jobs: Sequence[NewJob], *, now: float) -> list[Accepted]:
        with self.all_or_nothing():
            return [self._accept(job, now) for job in jobs]

    def _accept(self, job: NewJob, now: float) -> Accepted:
        twin = self._twin(job)
        if job.key is not None:
            verdict = self.judge(job.tenant, job.key, lives=True, unknown=Unknown.RERUN, now=now)
            if isinstance(verdict, SameJob):
                return Accepted(verdict.job_id, created=False)
            if isinstance(verdict, Mismatch):
                raise KeyMismatch(job.key.key)
            if isinstance(verdict, InProgress):
                raise KeyInProgress(job.key.key, retry_after_s=1.0)
            assert isinstance(verdict, Run)
            self.keep(
                job.tenant, job.key, KeyState.DONE, verdict.lease, job_id=twin.job.id if twin else job.id
            )
        if twin is not None:
            return Accepted(twin.job.id, created=False)
        self.seq += 1
        state = "ready" if job.run_at <= now else "scheduled"
        row = Row(job, self.seq, now, state, job.run_at, job.due, job.expires_at, job.input)
        self.jobs[job.id] = row
        self.put_records(job.tenant, job.records, now=now)
        return Accepted(job.id)

    def _twin(self, job: NewJob) -> Row | None:
        for row in self.rows(*LIVE):
            same = (row.job.tenant, row.job.task, row.job.dedup_key) == (job.tenant, job.task, job.dedup_key)
            if same and job.dedup_key is not None and row.job.id != job.id:
                return row
        return None

    def cancel(
        self, job_id: str, *, now: float, tenant: str | None = None, why: str = "cancelled"
    ) -> CancelAnswer | None:
        row = self.jobs.get(job_id)
        if row is None or tenant not in {None, row.job.tenant}:
            return None
        if row.state in WAITING:
            row.end("cancelled", now, why, Entry(outcome="cancelled", at=now, message=why))
            return CancelAnswer(JobState.CANCELLED, accepted=True)
        if row.state == "running":
            row.cancel_at = now if row.cancel_at is None else row.cancel_at
        accepted = row.state in {"running", "cancelled"}
        return CancelAnswer(JobState(row.state), accepted=accepted)

    def _dead(self, job_id: str, tenant: str | None) -> Row | None:
        row = self.jobs.get(job_id)
        known = row is not None and tenant in {None, row.job.tenant}
        return row if known and row is not None and row.state == "dead_letter" else None

    def replay(
        self,
        job_ids: Sequence[str],
        *,
        by: str,
        now: float,
        expires_after_s: float,
        tenant: str | None = None,
        edit: Edit | None = None,
    ) -> list[Accepted]:
        replayed = []
        for job_id in job_ids:
            row = self._dead(job_id, tenant)
            if row is None or self._twin(row.job) is not None:
                continue
            row.queue(now, now + expires_after_s)
            row.generation += 1
            row.crashes = row.silences = row.deferrals = row.revivals = 0
            row.started_at = row.cancel_at = row.error = row.error_class = row.progress = None
            old = msgspec.UNSET if edit is None else msgspec.Raw(row.input)
            row.history.append(Entry(outcome="replayed", at=now, generation=row.generation, by=by, input=old))
            if edit is not None:
                row.input, row.steps = edit.input, {}
                row.job = msgspec.structs.replace(row.job, model=edit.model or row.job.model)
            replayed.append(Accepted(job_id))
        return replayed

    def discard(self, job_ids: Sequence[str], *, by: str, now: float, tenant: str | None = None) -> list[str]:
        discarded = []
        for job_id in job_ids:
            if row := self._dead(job_id, tenant):
                row.end("cancelled", now, "discarded", Entry(outcome="discarded", at=now, by=by))
                row.revive_at = None
                discarded.append(job_id)
        return discarded

    # ---- Batches ----------------------------------------------------------------------------------------

    def _of_batch(self, batch_id: str, tenant: str) -> list[Row]:
        rows = sorted(self.jobs.values(), key=lambda row: row.job.id)
        return [row for row in rows if (row.job.batch_id, row.job.tenant) == (batch_id, tenant)]

    def batch_counts(self, batch_id: str, *, tenant: str) -> dict[str, int]:
        states = [row.seen().state for row in self._of_batch(batch_id, tenant)]
        return {str(state): states.count(state) for state in JobState}

    def batch_jobs(self, batch_id: str, *, tenant: str, limit: int, after: str | None = None) -> list[Job]:
        shown = [row.seen() for row in self._of_batch(batch_id, tenant)]
        rest = [job for job in shown if after is None or job.id > after]
        return [msgspec.structs.replace(job, input=None, history=()) for job in rest[:limit]]

    def cancel_batch(self, batch_id: str, *, tenant: str, now: float, limit: int) -> int:
        rows = self._of_batch(batch_id, tenant)
        pending = [row for row in rows if row.state in WAITING]
        unmarked = [row for row in rows if row.state == "running" and row.cancel_at is None]
        chosen = [*pending, *unmarked][:limit]
        for row in chosen:
            self.cancel(row.job.id, now=now)
        return len(chosen)

    # ---- Claims -----------------------------------------------------------------------------------------

    def join(self, node: str) -> None:
        self.nodes.setdefault(node, Node())

    def renew(self, node: str) -> Renewal:
        if not self.lives(node):
            return Renewal(alive=False)
        self.nodes[node] = Node(self.nodes[node].beat + 1)
        asked = [row for row in self.rows("running") if row.owner == node and row.cancel_at is not None]
        beats = {name: other.beat for name, other in self.nodes.items() if name != node and self.lives(name)}
        return Renewal(alive=True, beats=beats, cancelled=tuple((row.job.id, row.lease) for row in asked))

    def leave(self, node: str) -> None:
        self.nodes.pop(node, None)

    def ready(self, *, now: float) -> Ready:
        for row in self.rows("scheduled"):
            if row.run_at <= now:
                row.state = "suspect" if row.crashes >= 2 else "ready"
        pairs = sorted({(row.job.tenant, row.job.model) for row in self.rows("ready")})
        lines: dict[str, tuple[str, ...]] = {}
        for tenant, model in pairs:
            lines[tenant] = (*lines.get(tenant, ()), model)
        next_at = min((row.run_at for row in self.rows("scheduled")), default=None)
        return Ready(lines, bool(self.rows("suspect")), next_at)

    def claim(self, wants: Sequence[Want], *, node: str, suspects: int, now: float) -> list[Claim]:
        if not self.lives(node):
            return []
        line = sorted(self.rows("suspect"), key=lambda row: (row.due, row.seq))
        taken = [self._take(row, node, now) for row in line[:suspects]]
        for want in wants:
            taken += [self._take(row, node, now) for row in self._line(want)]
        return taken

    def _line(self, want: Want) -> list[Row]:
        line = sorted(self.rows("ready"), key=lambda row: (row.due, row.seq))
        mine = [row for row in line if (row.job.tenant, row.job.model) == (want.tenant, want.model)]
        return mine[: want.places]

    def _take(self, row: Row, node: str, now: float) -> Claim:
        row.state, row.owner, row.started_at, row.cancel_at = "running", node, now, None
        row.lease += 1
        row.attempts += 1
        return row.claim()

    def settle(self, settlements: Sequence[Settlement], *, now: float) -> list[Settled]:
        answers = []
        for settlement in settlements:
            try:
                with self.all_or_nothing():
                    answers.append(self._settle(settlement, now))
            except RecordExists:
                answers.append(Settled.CONFLICT)
        return answers

    def _settle(self, settlement: Settlement, now: float) -> Settled:
        row = self._held(settlement.id, settlement.lease)
        if row is None:
            return Settled.STALE
        asked_to_stop = row.cancel_at is not None
        for name in ("attempts", "crashes", "deferrals", "error", "error_class", "finished_at", "revive_at"):
            setattr(row, name, getattr(settlement, name))
        row.state, row.reason, row.result, row.owner = (
            str(settlement.state),
            settlement.reason,
            settlement.result,
            None,
        )
        row.history += [] if settlement.entry is None else [settlement.entry]
        if settlement.state is JobState.PENDING:
            row.state = (
                "scheduled" if settlement.run_at > now else "suspect" if settlement.suspect else "ready"
            )
            row.run_at, row.due = settlement.run_at, settlement.due
            if asked_to_stop:
                self.cancel(row.job.id, now=now)
        row.cancel_at = None
        self.put_records(row.job.tenant, settlement.records, now=now)
        for job in settlement.follow_ups:
            self._accept(job, now)
        stopped = asked_to_stop and settlement.state is JobState.PENDING
        return Settled.CANCELLED if stopped else Settled.APPLIED

    def _held(self, job_id: str, lease: int) -> Row | None:
        row = self.jobs.get(job_id)
        return row if row is not None and (row.state, row.lease) == ("running", lease) else None

    def save_step(self, job_id: str, lease: int, *, name: str, result: bytes, now: float) -> bool:
        if row := self._held(job_id, lease):
            row.steps[name] = result
        return row is not None

    def save_progress(self, job_id: str, lease: int, *, progress: bytes) -> bool:
        if row := self._held(job_id, lease):
            row.progress = progress
        return row is not None

    # ---- Upkeep -----------------------------------------------------------------------------------------

    def bury_dead(self, nodes: Iterable[str]) -> int:
        return sum([self._bury(node, "dead") for node in dict.fromkeys(nodes)])

    def bury_silent(self, node: str, beat: int) -> bool:
        return node in self.nodes and self.nodes[node].beat == beat and self._bury(node, "silent")

    def _bury(self, node: str, how: str) -> bool:
        if not self.lives(node):
            return False
        self.nodes[node] = self.nodes[node]._replace(gone=how)
        held = [row for row in self.rows("running") if row.owner == node]
        for row in held:
            row.silences += how == "silent"
            row.alone = len(held) == 1
        return True

    def lost(self, *, limit: int) -> list[Lost]:
        lost = []
        for row in self.rows("running"):
            gone = self.nodes[row.owner].gone if row.owner in self.nodes else "left"
            if gone is not None:
                silences = row.silences if gone == "silent" else 0
                lost.append(Lost(row.claim(), silences, row.alone and gone != "left"))
        return lost[:limit]

    def forget_nodes(self) -> int:
        held = {row.owner for row in self.rows("running")}
        forgotten = [name for name, node in self.nodes.items() if node.gone and name not in held]
        for name in forgotten:
            del self.nodes[name]
        return len(forgotten)

    def uncancelled(self, *, before: float, limit: int) -> list[Claim]:
        asked = [row for row in self.rows("running") if row.cancel_at is not None and row.cancel_at < before]
        return [row.claim() for row in asked][:limit]

    def expire(self, *, now: float, limit: int, follow_ups: FollowUps = nothing_follows) -> list[Ended]:
        with self.all_or_nothing():
            ended = self._expire(now, limit)
            for job in [job for one in ended for job in follow_ups(one)]:
                self._accept(job, now)
        return ended

    def _expire(self, now: float, limit: int) -> list[Ended]:
        late = [row for row in self.rows(*WAITING) if row.expires_at <= now][:limit]
        for row in late:
            row.end("dead_letter", now, "expired", Entry(outcome="expired", at=now, kind="expired"))
            row.error = row.error or "it was not done before it expired"
            row.error_class = row.error_class or "expired"
        return [row.ended() for row in late]

    def revivable(self, *, now: float, limit: int) -> list[tuple[str, str]]:
        cooled = [
            row for row in self.rows("dead_letter") if row.revive_at is not None and row.revive_at <= now
        ]
        return [(row.job.id, row.job.model) for row in cooled][:limit]

    def revive(self, job_ids: Sequence[str], *, now: float, expires_after_s: float) -> int:
        revived = 0
        for job_id in job_ids:
            row = self._dead(job_id, None)
            if row is None or row.revive_at is None:
                continue
            if self._twin(row.job) is not None:
                row.revive_at = now + COOL_AGAIN_S
                continue
            row.queue(now, now + expires_after_s)
            row.state = "suspect" if row.crashes >= 2 else "ready"
            row.revivals += 1
            row.history.append(Entry(outcome="revived", at=now))
            revived += 1
        return revived

    def cool(self, job_ids: Sequence[str], *, until: float) -> int:
        rows = [row for row in map(self.jobs.get, job_ids) if row is not None and row.revive_at is not None]
        for row in rows:
            row.revive_at = until
        return len(rows)

    def prune(self, *, before: float, limit: int) -> int:
        old = [row for row in self.jobs.values() if row.finished_at is not None and row.finished_at < before][
            :limit
        ]
        for row in old:
            del self.jobs[row.job.id]
        return len(old)

    def purge_keys(self, *, now: float, limit: int) -> int:
        old = [name for name, key in self.keys.items() if key.expires_at <= now][:limit]
        for name in old:
            del self.keys[name]
        return len(old)
