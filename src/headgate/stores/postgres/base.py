"""What the verbs share: the database, its time, the statements."""

from typing import Final

from headgate.core.ports.clock import Clock
from headgate.stores import sql
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.times import DatabaseTime


def _load() -> sql.Statements:
    """With the columns filled in that a job takes along when it moves between the tables."""
    loaded = sql.load("headgate.stores.postgres")
    return sql.Statements(
        **{name: text.replace("{kept}", loaded.kept) for name, text in vars(loaded).items()}
    )


SQL: Final = _load()


class Verbs:
    """Verbs reach the database and its time through these."""

    _clock: Clock
    _database: Database
    _times: DatabaseTime

    async def _look_at_the_clock(self) -> None:
        before = self._clock.utc()
        told = await self._database.read(SQL.what_time)
        self._times.measure(before, told[0][0], self._clock.utc())

    def _ring(self) -> None:
        """Jobs may have become ready."""
        raise NotImplementedError


def sayable(text: str) -> str:
    """PostgreSQL's text knows no NUL. Ids that have one are nobody's, and messages lose nothing by it."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


def sayable_or_none(text: str | None) -> str | None:
    return None if text is None else sayable(text)
