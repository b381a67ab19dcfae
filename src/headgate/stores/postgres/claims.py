"""A worker's side, on PostgreSQL.

Every claim carries a number. When its answer is lost (a broken connection, a cancelled caller), the jobs may be
running for a node that knows nothing of them; what carries such a number is given back at the node's next claim
or renewal.
"""

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headgate.core.errors import StoreUnavailable
from headgate.core.job import Claim, Settled, Settlement
from headgate.core.ports.claims import MAX_LINES, Ready, Renewal, Want
from headgate.stores.postgres.base import SQL, Verbs, sayable
from headgate.stores.postgres.database import Row
from headgate.stores.postgres.settling import Report, Settlements
from headgate.stores.postgres.sweeping import Sweeper
from headgate.stores.rows import read_claim

MOST_PROMOTED: Final = 1000
UNSURE_S: Final = 60.0
"""How long a statement whose answer was lost may still be at work in the database."""
_TENANT: Final = 2
_MODEL: Final = 4
_DUE: Final = 24


class ClaimVerbs(Verbs):
    """`core.ports.claims.Claims`."""

    _settlements: Settlements
    _sweeper: Sweeper
    _numbers: Iterator[int]
    _unsure: dict[int, float]

    def _prepare_claims(self) -> None:
        self._settlements = Settlements(self._database)
        self._sweeper = Sweeper(self._database)
        # From anywhere, so that two stores of one node do not use the same ones.
        self._numbers = itertools.count(secrets.randbits(48))
        self._unsure = {}

    async def join(self, node: str) -> None:
        await self._database.write("join", SQL.join_node, node, again=True)

    async def renew(self, node: str) -> Renewal:
        asked_at = self._clock.utc()
        rows = await self._database.write("renew", SQL.renew_node, node, again=True)
        if not rows:
            return Renewal(alive=False)
        time, ids, beats = rows[0][:3]
        self._follow(asked_at, time)
        await self._give_back(node)
        cancelled = tuple((row[3], row[4]) for row in rows if row[3] is not None)
        return Renewal(alive=True, beats=dict(zip(ids or (), beats or (), strict=True)), cancelled=cancelled)

    async def leave(self, node: str) -> None:
        await self._database.write("leave", SQL.leave_node, node, again=True)

    async def bury_dead(self, nodes: Sequence[str]) -> int:
        return len(await self._database.write("bury_dead", SQL.bury_nodes, list(nodes), None))

    async def bury_silent(self, node: str, beat: int) -> bool:
        return bool(await self._database.write("bury_silent", SQL.bury_nodes, [node], beat))

    async def ready(self, *, now: float, after: Ready | None = None) -> Ready:
        ready = await self._look(after)
        if ready.next_at is None or ready.next_at > now:
            return ready
        await self._database.write("promote", SQL.promote, now, MOST_PROMOTED, again=True)
        return await self._look(after)

    async def claim(self, wants: Sequence[Want], *, node: str, suspects: int, now: float) -> list[Claim]:
        await self._give_back(node)
        rows: list[Row] = []
        try:
            if suspects:
                rows += sorted(await self._claim(SQL.claim_suspects, node, now, suspects), key=_line)
            if wants:
                names = [want.tenant for want in wants], [want.model for want in wants]
                claimed = await self._claim(SQL.claim, *names, [want.places for want in wants], node, now)
                # The database keeps no order.
                place = {(want.tenant, want.model): number for number, want in enumerate(wants)}
                rows += sorted(claimed, key=lambda row: (place[row[_TENANT], row[_MODEL]], *_line(row)))
        except StoreUnavailable:
            # What was claimed before the trouble is this worker's; to fail now would strand it.
            if not rows:
                raise
        self._sweeper.note(len(rows))
        return [read_claim(row) for row in rows]

    async def settle(self, settlements: Sequence[Settlement], *, now: float) -> list[Settled]:
        self._database.check_open()
        reports = [Report(one, now) for one in settlements]
        answers = await self._settlements.settle(reports)
        if any(report.makes_ready for report in reports):
            self._ring()
        return answers

    async def steps(self, job_id: str) -> Mapping[str, bytes]:
        rows = await self._database.read(SQL.steps_of, sayable(job_id))
        return {row[0]: row[1] for row in rows}

    async def save_step(self, job_id: str, lease: int, *, name: str, result: bytes, now: float) -> bool:
        asked = (job_id, lease, name, result, now)
        return bool(await self._database.write("save_step", SQL.save_step, *asked, again=True))

    async def save_progress(self, job_id: str, lease: int, *, progress: bytes) -> bool:
        asked = (job_id, lease, progress)
        return bool(await self._database.write("save_progress", SQL.save_progress, *asked, again=True))

    # ---- How it is done -----------------------------------------------------------------------------------

    async def _look(self, after: Ready | None) -> Ready:
        last_tenant, last_models = ("", {}) if after is None else after.last
        turns = last_tenant, list(last_models), list(last_models.values())
        rows = await self._database.read(SQL.look, *turns, MAX_LINES)
        suspects, next_at = rows[0][:2]
        lines = {row[2]: tuple(row[3]) for row in rows if row[2] is not None}
        return Ready.of(lines, suspects=suspects, next_at=next_at)

    async def _claim(self, statement: str, *asked: Any) -> list[Row]:
        number = next(self._numbers)
        try:
            return await self._database.write("claim", statement, *asked, number)
        except BaseException:
            self._unsure[number] = self._clock.now()
            raise

    async def _give_back(self, node: str) -> None:
        """What was claimed for this node without its knowing. Looked for as long as it may still happen."""
        if not self._unsure:
            return
        looked_at = self._clock.now()
        given = await self._database.write("claim", SQL.give_back, node, list(self._unsure), again=True)
        self._unsure = {number: at for number, at in self._unsure.items() if looked_at - at < UNSURE_S}
        if given:
            self._ring()


def _line(row: Row) -> tuple[float, str]:
    return row[_DUE], row[0]
