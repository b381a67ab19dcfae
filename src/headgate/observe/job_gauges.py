"""Jobs as the store has them: those that live, dead letters, history. No scrape waits for a database."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final

from headgate.core.job import JobState
from headgate.core.ports.jobs import Backlog
from headgate.observe.exposition import Tell, gauge
from headgate.observe.look import Look

LOOK_EVERY_S: Final = 5.0
COUNT_EVERY_S: Final = 60.0
"""Counting history touches every job there ever was."""


class JobGauges:
    """A scrape shows the last look at the store and begins another: it never waits for one."""

    def __init__(
        self,
        backlog: Callable[[], Awaitable[Backlog]],
        count: Callable[[], Awaitable[Mapping[str, int]]],
        stored_bytes: Callable[[], Awaitable[Mapping[str, int]]],
        *,
        now: Callable[[], float],
        epoch: Callable[[], float],
    ) -> None:
        self._backlog = Look(backlog, now, LOOK_EVERY_S)
        self._count = Look(count, now, COUNT_EVERY_S)
        self._stored_bytes = Look(stored_bytes, now, LOOK_EVERY_S)
        self._epoch = epoch

    def collect(self) -> Iterator[Tell]:
        backlog, counts = self._backlog.last(), self._count.last()
        if backlog is not None:
            yield from self._live(backlog)
            age = {(): self._backlog.age_s}
            yield partial(
                gauge, "headgate_jobs_look_age_seconds", "How old the numbers of headgate_jobs are.", (), age
            )
        if counts is not None:
            over = {(state.value,): float(counts.get(state, 0)) for state in JobState if state.final}
            yield partial(
                gauge, "headgate_jobs_history", "Jobs in the store that are over.", ("state",), over
            )
        if (stored := self._stored_bytes.last()) is not None:
            # No label holds a tenant; `headgate doctor` names those that store most.
            total, most = float(sum(stored.values())), float(max(stored.values(), default=0))
            yield partial(gauge, "headgate_stored_bytes", "Bytes that all tenants store.", (), {(): total})
            yield partial(
                gauge,
                "headgate_stored_bytes_max",
                "Bytes that the tenant with the most stores.",
                (),
                {(): most},
            )

    def _live(self, backlog: Backlog) -> Iterator[Tell]:
        live = {("pending",): float(backlog.pending), ("running",): float(backlog.running)}
        yield partial(gauge, "headgate_jobs", "Jobs in the store that are not over.", ("state",), live)
        yield partial(
            gauge,
            "headgate_oldest_pending_seconds",
            "How long the job that waits for longest has been due.",
            (),
            {(): self._age_s(backlog.oldest_run_at)},
        )
        yield partial(
            gauge,
            "headgate_dead_letters",
            "Dead letters in the store.",
            (),
            {(): float(backlog.dead_letters)},
        )
        yield partial(
            gauge,
            "headgate_dead_letter_age_seconds",
            "Age of the oldest dead letter in the store.",
            (),
            {(): self._age_s(backlog.oldest_dead_at)},
        )

    async def aclose(self) -> None:
        await self._backlog.aclose()
        await self._count.aclose()
        await self._stored_bytes.aclose()

    def _age_s(self, moment: float | None) -> float:
        return 0.0 if moment is None else max(0.0, self._epoch() - moment)
