"""Rows to records, the same for both databases: the statements name their columns in this order."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.core.call import Lane
from headgate.core.idempotency import HeldKey, KeyClaim
from headgate.core.job import Attempt, Cause, Claim, Ended, Entry, Job, JobState, Lost, Reason
from headgate.core.ports.jobs import Backlog
from headgate.core.record import Record

PENDING: Final = frozenset({"scheduled", "ready", "suspect"})
"""How a pending job is stored: waiting for its time, for a worker, or for a worker to itself."""

_LANES: Final = {str(lane): lane for lane in Lane}
_decode_entries = msgspec.json.Decoder(tuple[Attempt, ...], strict=False)
_encode = msgspec.json.Encoder().encode


def entry_line(entry: Entry | None) -> str:
    """A history entry as it is appended to what is there: one line, however its input was broken into lines."""
    return "" if entry is None else _encode(entry).decode().replace("\n", " ") + "\n"


def read_history(text: str | None) -> tuple[Attempt, ...]:
    if not text:
        return ()
    # Not `splitlines`: it also breaks at characters that stand unescaped inside JSON text.
    entries = text.removesuffix("\n").replace("\n", ",")
    return _decode_entries.decode(f"[{entries}]")


def public_state(stored: str) -> JobState:
    return JobState.PENDING if stored in PENDING else JobState(stored)


def read_counts(rows: Iterable[Sequence[Any]]) -> dict[str, int]:
    """(stored state, count) as counts of all public states."""
    counts = dict.fromkeys(map(str, JobState), 0)
    for state, count in rows:
        counts[public_state(state)] += count
    return counts


def read_backlog(row: Sequence[Any]) -> Backlog:
    pending, oldest_run_at, running, dead_letters, oldest_dead_at, newly_dead = row
    return Backlog(
        pending=pending,
        running=running,
        oldest_run_at=oldest_run_at,
        dead_letters=dead_letters,
        oldest_dead_at=oldest_dead_at,
        newly_dead=newly_dead,
    )


def moment(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def read_json(text: bytes | str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def read_job(row: Sequence[Any]) -> Job:
    """A row of `find_job` and its like."""
    return Job(
        id=row[0],
        task=row[1],
        state=public_state(row[2]),
        tenant=row[3],
        model=row[4] or None,
        lane=_LANES[row[5]],
        priority=row[6],
        attempts=row[7],
        max_attempts=row[8],
        generation=row[9],
        crashes=row[10],
        deferrals=row[11],
        revivals=row[12],
        dedup_key=row[13],
        hold=bool(row[14]),
        timeout_s=row[15],
        metadata=read_json(row[16]),
        progress=read_json(row[17]),
        input=read_json(row[18]),
        result=read_json(row[19]),
        error=row[20],
        error_class=row[21],
        reason=row[22],
        history=read_history(row[23]),
        created_at=moment(row[24]),
        run_at=moment(row[25]),
        expires_at=moment(row[26]),
        started_at=moment(row[27]),
        finished_at=moment(row[28]),
        batch_id=row[29],
        webhook=row[30],
    )


def read_cause(row: Sequence[Any]) -> Cause:
    """A row of `causes`."""
    tenant, task, model, reason, error_class, count, latest_at = row
    return Cause(
        tenant=tenant,
        task=task,
        model=model or None,
        reason=reason,
        error_class=error_class,
        count=count,
        latest_at=moment(latest_at),
    )


def read_claim(row: Sequence[Any]) -> Claim:
    """A row of `claim` and its like."""
    return Claim(
        id=row[0],
        lease=row[1],
        tenant=row[2],
        task=row[3],
        model=row[4],
        lane=_LANES[row[5]],
        priority=row[6],
        input=row[7],
        attempts=row[8],
        max_attempts=row[9],
        generation=row[10],
        crashes=row[11],
        deferrals=row[12],
        revivals=row[13],
        hold=bool(row[14]),
        revivable=bool(row[15]),
        timeout_s=row[16],
        run_at=row[17],
        expires_at=row[18],
        started_at=row[19],
        webhook=row[20],
        metadata=row[21],
        batch_id=row[22],
        access_key=row[23],
    )


def read_lost(row: Sequence[Any]) -> Lost:
    """A row of `lost`: a claim, and what is known of its node's death."""
    return Lost(read_claim(row), silences=row[24], alone=bool(row[25]))


def read_expired(row: Sequence[Any], now: float) -> Ended:
    """A row of `expire`."""
    return Ended(
        id=row[0],
        task=row[1],
        tenant=row[2],
        model=row[3],
        state=JobState.DEAD_LETTER,
        reason=Reason.EXPIRED,
        error=row[4],
        error_class=row[5],
        attempts=row[6],
        generation=row[7],
        revivals=row[8],
        result=None,
        webhook=row[9],
        metadata=row[10],
        batch_id=row[11],
        finished_at=now,
    )


def read_held_key(row: Sequence[Any]) -> HeldKey:
    tenant, endpoint, key, request_hash, lease, expires_at = row
    claim = KeyClaim(endpoint=endpoint, key=key, request_hash=request_hash, expires_at=expires_at)
    return HeldKey(tenant=tenant, claim=claim, lease=lease)


def read_record(row: Sequence[Any]) -> Record:
    return Record(
        tenant=row[0],
        collection=row[1],
        id=row[2],
        body=read_json(row[3]),
        unique_key=row[4],
        text=row[5],
        job_id=row[6],
        created_at=moment(row[7]),
        updated_at=moment(row[8]),
    )
