"""Settlements: many workers' in one fenced statement, or one with records and follow-ups in its own transaction."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headgate.core.errors import RecordExists
from headgate.core.job import JobState, Settled, Settlement
from headgate.stores.listeners import SOON_S
from headgate.stores.postgres.accepting import Call, accept_calls
from headgate.stores.postgres.base import SQL
from headgate.stores.postgres.columns import back_row, cancelled_row, columns, final_row, settled_row
from headgate.stores.postgres.database import Connection, Database, Row
from headgate.stores.postgres.group import Group
from headgate.stores.postgres.records import Writing, put_records

VERB: Final = "settle"
MOST_DOUBTS: Final = 10_000
Shape: TypeAlias = Callable[[int, Settlement, float], tuple[Any, ...]]
Step: TypeAlias = tuple[str, Shape, Settled]
"""A fenced statement, what its arguments are made of, and the answer to those it wrote."""
FINAL: Final[tuple[Step, ...]] = ((SQL.settle_final, final_row, Settled.APPLIED),)
# Those that do not go back are stale, or somebody asked to stop them: perhaps just before the statement got there.
BACK: Final[tuple[Step, ...]] = (
    (SQL.settle_back, back_row, Settled.APPLIED),
    (SQL.settle_cancelled, cancelled_row, Settled.CANCELLED),
)


class Report(NamedTuple):
    """A settlement and when it was handed in."""

    one: Settlement
    now: float

    @property
    def claim(self) -> tuple[str, int]:
        return self.one.id, self.one.lease

    @property
    def makes_ready(self) -> bool:
        waits = self.one.state is JobState.PENDING and self.one.run_at <= self.now + SOON_S
        return waits or bool(self.one.follow_ups)


Lists: TypeAlias = list[Sequence[Report]]
"""What several callers handed in."""


class Settlements:
    """Everything on its way from workers to the tables."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._final: Group[Sequence[Report], list[Settled]] = Group(
            lambda lists: self._together(FINAL, lists)
        )
        self._back: Group[Sequence[Report], list[Settled]] = Group(lambda lists: self._together(BACK, lists))
        self._doubts = Doubts()

    async def settle(self, reports: Sequence[Report]) -> list[Settled]:
        """One answer each."""
        try:
            return await self._settle(reports)
        except BaseException:
            self._doubts.note(reports)
            raise

    async def aclose(self) -> None:
        await self._final.aclose()
        await self._back.aclose()

    async def _settle(self, reports: Sequence[Report]) -> list[Settled]:
        """Each kind with others of its kind; the rest one by one."""
        answers: dict[int, Settled] = {}
        final, back, others = _sort_out(reports)
        for group, chosen in ((self._final, final), (self._back, back)):
            if chosen:
                together = await group.put([reports[number] for number in chosen], len(chosen))
                answers.update(zip(chosen, together, strict=True))
        for number in others:
            answers[number] = await self._whole(reports[number])
        return [answers[number] for number in range(len(reports))]

    async def _together(self, steps: Sequence[Step], lists: Lists) -> list[list[Settled]]:
        """Many callers' settlements of one kind, each by itself. Of two on one claim, the first counts."""
        reports = [report for its_reports in lists for report in its_reports]
        first: dict[tuple[str, int], int] = {}
        for number, report in enumerate(reports):
            first.setdefault(report.claim, number)
        left = list(first.values())
        answers: dict[int, Settled] = {}
        for statement, shape, answer in steps:
            rows = columns(shape(number, *reports[number]) for number in left)
            written = await self._database.write(VERB, statement, *rows)
            answers.update((row[0], answer) for row in written)
            left = [number for number in left if number not in answers]
            if not left:
                break
        answers.update(dict.fromkeys(await self._written_before(reports, left), Settled.APPLIED))
        told = iter([answers.get(number, Settled.STALE) for number in range(len(reports))])
        return [[next(told) for _ in its_reports] for its_reports in lists]

    async def _whole(self, report: Report) -> Settled:
        """With its records and follow-ups, or not at all."""
        try:
            answer = await self._database.transact(VERB, lambda open_: _write_whole(open_, report))
        except RecordExists:
            return Settled.CONFLICT
        if answer is Settled.STALE and await self._written_before([report], [0]):
            return Settled.APPLIED
        return answer

    async def _written_before(self, reports: Sequence[Report], stale: Sequence[int]) -> set[int]:
        """Those of the stale ones that are their own worker's doing."""
        doubted = [number for number in stale if self._doubts.take(reports[number])]
        if not doubted:
            return set()
        rows = columns(settled_row(number, reports[number].one) for number in doubted)
        return {row[0] for row in await self._database.read(SQL.settled_already, *rows)}


class Doubts:
    """Claims whose settlement may have been written although its worker was not told.

    The answer was lost, or that of another in the same list. The worker will say the same again: it finds its
    claim gone, and must not take its own success for a stranger's.
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], None] = {}

    def note(self, reports: Iterable[Report]) -> None:
        self._claims.update((report.claim, None) for report in reports)
        while len(self._claims) > MOST_DOUBTS:
            del self._claims[next(iter(self._claims))]

    def take(self, report: Report) -> bool:
        """Was it in doubt? It is no longer."""
        if report.claim not in self._claims:
            return False
        del self._claims[report.claim]
        return True


def _sort_out(reports: Sequence[Report]) -> tuple[list[int], list[int], list[int]]:
    """The numbers of those that end a job, of those that send one back, and of the others.

    Others have more to write, or are a second word about a job, which waits for the first.
    """
    final: list[int] = []
    back: list[int] = []
    others: list[int] = []
    told: set[str] = set()
    for number, (one, _) in enumerate(reports):
        if one.records or one.follow_ups or one.id in told:
            others.append(number)
        else:
            told.add(one.id)
            (back if one.state is JobState.PENDING else final).append(number)
    return final, back, others


# ---- Inside the transaction -----------------------------------------------------------------------------


async def _write_whole(connection: Connection, report: Report) -> Settled:
    row, answer = await _write(connection, report)
    if row is None:
        return answer
    await put_records(connection, [Writing(row[1], write, report.now) for write in report.one.records])
    if report.one.follow_ups:
        await accept_calls(connection, [Call(report.one.follow_ups, report.now)])
    return answer


async def _write(connection: Connection, report: Report) -> tuple[Row | None, Settled]:
    """The fenced row and how it went; no row when the claim was lost."""
    for statement, shape, answer in BACK if report.one.state is JobState.PENDING else FINAL:
        row: Row | None = await connection.fetchrow(statement, *columns([shape(0, *report)]))
        if row is not None:
            return row, answer
    return None, Settled.STALE
