"""What the verbs share: the database, its time, the statements."""

from datetime import datetime
from typing import Final

from headgate.core.errors import QuotaExceeded
from headgate.core.ports.clock import Clock
from headgate.stores import sql
from headgate.stores.postgres.database import Connection, Database


def _load() -> sql.Statements:
    """With the columns filled in that a job takes along when it moves between the tables."""
    loaded = sql.load("headgate.stores.postgres")
    return sql.Statements(
        **{name: text.replace("{kept}", loaded.kept) for name, text in vars(loaded).items()}
    )


SQL: Final = _load()


CLOCK_GRAIN_S: Final = 0.001


class Verbs:
    """Verbs reach the database and its time through these."""

    _clock: Clock
    _database: Database

    clock_ahead_s: float
    """How far the database's clock is ahead of this machine's."""

    async def _look_at_the_clock(self) -> None:
        asked_at = self._clock.utc()
        answer = await self._database.read(SQL.what_time)
        self._follow(asked_at, answer[0][0])

    def _follow(self, asked_at: datetime, database: float) -> None:
        """All nodes go by the database's clock: `database` is its time, somewhere between `asked_at` and now."""
        now = self._clock.utc().timestamp()
        doubt_s = (now - asked_at.timestamp()) / 2
        ahead_s = database + doubt_s - now
        if abs(ahead_s) <= doubt_s + CLOCK_GRAIN_S:
            # It cannot tell the two apart: times must not jitter.
            ahead_s = 0.0
        self.clock_ahead_s += ahead_s
        self._clock.follow(now + ahead_s)

    def _ring(self) -> None:
        """Jobs may have become ready."""
        raise NotImplementedError


async def refuse_over(connection: Connection, tenant: str, quota: int | None, *, more: int = 0) -> None:
    """Raises when the tenant stores more bytes than it may, or would with `more`."""
    if quota is None:
        return
    stored = dict(await connection.fetch(SQL.stored_bytes, [tenant])).get(tenant, 0)
    if stored + more > quota:
        raise QuotaExceeded(tenant, stored=stored, quota=quota)


def sayable(text: str) -> str:
    """PostgreSQL's text knows no NUL. Ids that have one are nobody's, and messages lose nothing by it."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


def sayable_or_none(text: str | None) -> str | None:
    return None if text is None else sayable(text)
