"""A worker's side, on SQLite."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec

from headgate.core.errors import RecordExists
from headgate.core.job import Claim, Entry, JobState, Settled, Settlement
from headgate.core.ports.claims import MAX_LINES, Ready, Renewal, Want, share_of_lines
from headgate.stores.listeners import SOON_S
from headgate.stores.rows import entry_line, read_claim
from headgate.stores.sqlite.base import SQL, Verbs, changes, rows, value
from headgate.stores.sqlite.jobs import accept_job
from headgate.stores.sqlite.records import put_record

_encode = msgspec.json.Encoder().encode
MOST_PROMOTED: Final = 1000
_SEQ: Final = 24
"""Where a line's rows have it."""


class ClaimVerbs(Verbs):
    """`core.ports.claims.Claims`."""

    async def join(self, node: str) -> None:
        await self._write("join", lambda db: changes(db, SQL.join_node, (node,)))

    async def renew(self, node: str) -> Renewal:
        def renew(db: apsw.Connection) -> Renewal:
            if not changes(db, SQL.raise_beat, (node,)):
                return Renewal(alive=False)
            beats = dict(rows(db, SQL.other_beats, (node,)))
            return Renewal(alive=True, beats=beats, cancelled=tuple(rows(db, SQL.to_cancel, (node,))))

        return await self._write("renew", renew)

    async def leave(self, node: str) -> None:
        await self._write("leave", lambda db: changes(db, SQL.leave_node, (node,)))

    async def bury_dead(self, nodes: Sequence[str]) -> int:
        return await self._write("bury_dead", lambda db: sum(_bury(db, node) for node in nodes))

    async def bury_silent(self, node: str, beat: int) -> bool:
        return await self._write("bury_silent", lambda db: _bury(db, node, beat) > 0)

    async def ready(self, *, now: float, after: Ready | None = None) -> Ready:
        ready = await self._read(lambda db: _look(db, after))
        if ready.next_at is None or ready.next_at > now:
            return ready

        def promote(db: apsw.Connection) -> Ready:
            db.execute(SQL.promote, {"now": now, "limit": MOST_PROMOTED})
            return _look(db, after)

        return await self._write("promote", promote)

    async def claim(self, wants: Sequence[Want], *, node: str, suspects: int, now: float) -> list[Claim]:
        def claim(db: apsw.Connection) -> list[Claim]:
            # A node that was declared dead claims nothing: its claims would be lost at once.
            if value(db, SQL.lives, (node,)) is None:
                return []
            claimed: list[Any] = []
            if suspects:
                line = rows(db, SQL.suspects_line, {"now": now, "places": suspects})
                claimed += _take(db, line, node, now)
            for want in wants:
                asked = {"now": now, "tenant": want.tenant, "model": want.model, "places": want.places}
                claimed += _take(db, rows(db, SQL.line, asked), node, now)
            return [read_claim(row) for row in claimed]

        return await self._write("claim", claim)

    async def settle(self, settlements: Sequence[Settlement], *, now: float) -> list[Settled]:
        answers = await self._write("settle", lambda db: _settle(db, settlements, now))
        if any(
            one.follow_ups or (one.state is JobState.PENDING and one.run_at <= now + SOON_S)
            for one in settlements
        ):
            self._ring()
        return answers

    async def steps(self, job_id: str) -> Mapping[str, bytes]:
        return dict(await self._read(lambda db: rows(db, SQL.steps_of, (job_id,))))

    async def save_step(self, job_id: str, lease: int, *, name: str, result: bytes, now: float) -> bool:
        def save(db: apsw.Connection) -> bool:
            tenant = value(db, SQL.holds, (job_id, lease))
            if tenant is None:
                return False
            db.execute(SQL.save_step, (job_id, name, result, now, tenant))
            return True

        return await self._write("save_step", save)

    async def save_progress(self, job_id: str, lease: int, *, progress: bytes) -> bool:
        asked = (progress, job_id, lease)
        return await self._write("save_progress", lambda db: changes(db, SQL.save_progress, asked) > 0)


# ---- Inside the transaction -----------------------------------------------------------------------------


def _bury(db: apsw.Connection, node: str, beat: int | None = None) -> int:
    """Its death is proven, or (with a beat) it was silent and the beat is still the same."""
    silent = beat is not None
    named = {"id": node, "how": "silent" if silent else "dead", "beat": beat}
    buried = changes(db, SQL.bury_node, named)
    if buried:
        db.execute(SQL.mark_lost, {"node": node, "silent": silent})
    return buried


def _look(db: apsw.Connection, after: Ready | None) -> Ready:
    last_tenant, last_models = ("", {}) if after is None else after.last
    tenants = _round(db, SQL.ready_tenants, last_tenant or None, MAX_LINES)
    share = share_of_lines(len(tenants))
    lines = {
        tenant: tuple(_round(db, SQL.ready_models, last_models.get(tenant), share, tenant))
        for tenant in tenants
    }
    suspects = value(db, SQL.any_suspect) is not None
    return Ready.of(lines, suspects=suspects, next_at=value(db, SQL.next_scheduled))


def _round(
    db: apsw.Connection, walk: str, after: str | None, limit: int, tenant: str | None = None
) -> list[str]:
    """Up to so many names, from the one after `after` on, round and round."""
    asked = {"tenant": tenant, "limit": limit}
    if after is None:
        return [name for (name,) in rows(db, walk, {**asked, "from": ""})]
    # Names are printable: none comes between a name and the same with a control character behind it.
    names = [name for (name,) in rows(db, walk, {**asked, "from": after + "\x01"})]
    if len(names) < limit:
        asked["limit"] = limit - len(names)
        names += [name for (name,) in rows(db, walk, {**asked, "from": ""}) if name <= after]
    return names


def _take(db: apsw.Connection, line: list[Any], node: str, now: float) -> list[Any]:
    if line:
        seqs = _encode([row[_SEQ] for row in line]).decode()
        db.execute(SQL.take, {"node": node, "now": now, "seqs": seqs})
    return line


def _settle(db: apsw.Connection, settlements: Sequence[Settlement], now: float) -> list[Settled]:
    """Those that only change their job together, in one statement; those that bring more one by one."""
    answers: dict[int, Settled] = {}
    together: dict[str, tuple[int, Settlement]] = {}
    for number, settlement in enumerate(settlements):
        # A second word about the same job waits for the first.
        if settlement.records or settlement.follow_ups or settlement.id in together:
            answers[number] = Settled.STALE
        else:
            together[settlement.id] = (number, settlement)
    written = _write(db, [settlement for _, settlement in together.values()], now)
    for job_id, (number, _) in together.items():
        answers[number] = written[job_id][1] if job_id in written else Settled.STALE
    for number, settlement in enumerate(settlements):
        if settlement.id not in together or together[settlement.id][0] != number:
            answers[number] = _settle_alone(db, settlement, now)
    return [answers[number] for number in range(len(settlements))]


def _settle_alone(db: apsw.Connection, settlement: Settlement, now: float) -> Settled:
    """A record that collides takes back all of this settlement, and nothing of anybody else's."""
    try:
        with db:  # apsw makes it a savepoint
            written = _write(db, [settlement], now)
            for tenant, _ in written.values():
                for record in settlement.records:
                    put_record(db, tenant, record, now)
                for job in settlement.follow_ups:
                    accept_job(db, job, now)
    except RecordExists:
        return Settled.CONFLICT
    return written[settlement.id][1] if written else Settled.STALE


def _write(
    db: apsw.Connection, settlements: Sequence[Settlement], now: float
) -> dict[str, tuple[str, Settled]]:
    """One statement, so that SQLite works through all of them while Python does something else.

    The tenants of those jobs whose claim still held, and how it went, by job.
    """
    if not settlements:
        return {}
    document = _encode([_row(settlement, now) for settlement in settlements]).decode()
    written: dict[str, tuple[str, Settled]] = {}
    stopped: set[str] = set()
    for job_id, tenant, cancel_at in rows(db, SQL.settle, (document,)):
        written[job_id] = (tenant, Settled.APPLIED)
        if cancel_at is not None:
            stopped.add(job_id)
    for settlement in settlements if stopped else ():
        if settlement.id in stopped and settlement.state is JobState.PENDING:
            _cancel_instead(db, settlement.id, now)
            written[settlement.id] = (written[settlement.id][0], Settled.CANCELLED)
    return written


def _row(settlement: Settlement, now: float) -> tuple[Any, ...]:
    """The order of `settle`."""
    waits = settlement.state is JobState.PENDING
    return (
        settlement.id,
        settlement.lease,
        _waiting_state(settlement, now) if waits else settlement.state,
        settlement.attempts,
        settlement.crashes,
        settlement.deferrals,
        settlement.run_at if waits else None,
        settlement.due if waits else None,
        settlement.finished_at,
        settlement.revive_at,
        settlement.reason,
        settlement.error,
        settlement.error_class,
        entry_line(settlement.entry),
        None if settlement.result is None else settlement.result.decode(),
    )


def _waiting_state(settlement: Settlement, now: float) -> str:
    if settlement.run_at > now:
        return "scheduled"
    return "suspect" if settlement.suspect else "ready"


def _cancel_instead(db: apsw.Connection, job_id: str, now: float) -> None:
    """Somebody asked to stop it while it ran: it does not wait for another try."""
    entry = entry_line(Entry(outcome="cancelled", at=now, message="cancelled"))
    db.execute(
        SQL.cancel_pending, {"id": job_id, "tenant": None, "now": now, "why": "cancelled", "entry": entry}
    )
