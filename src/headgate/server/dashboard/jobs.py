"""The jobs: how many in each state, searched by id, filtered, page by page."""

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.core.batch_order import is_batch_id, job_id_of
from headgate.core.errors import InvalidRequest
from headgate.core.job import Job, JobState
from headgate.server.dashboard import job
from headgate.server.dashboard.foreign import address, word
from headgate.server.dashboard.forms import choice, filters, text
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.job_words import BATCHES, DEAD_LETTERS, JOBS, job_table
from headgate.server.dashboard.lists import pager
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import empty, tile, tiles
from headgate.server.dashboard.sources import Sources

SHOWN: Final = 50
_STATES: Final = {"": "All", **{state.value: state.replace("_", " ") for state in JobState}}


def pages(sources: Sources) -> Sequence[Page]:
    jobs = Jobs(sources)
    return [Page(path=JOBS, entry="Jobs", show=jobs.show), *job.pages(sources)]


class Jobs:
    """`/jobs`."""

    def __init__(self, sources: Sources) -> None:
        self._jobs = sources.gateway.jobs
        self._look = sources.job_look

    async def show(self, visit: Visit) -> Shown:
        found = await self._found(visit)
        last = found[SHOWN - 1].id if len(found) > SHOWN else None
        form = filters(
            text("id", "Job id", visit.asked("id"), placeholder="Search ( / )"),
            choice("state", "State", _STATES, visit.asked("state")),
            text("task", "Task", visit.asked("task"), kind="text"),
            text("model", "Model", visit.asked("model"), kind="text"),
            to=JOBS,
        )
        body = job_table(found[:SHOWN], visit) if found else _nothing(visit)
        listed = group(body, pager(JOBS, visit, last, "state", "task", "model"))
        counts = await self._look.counts(visit.viewer.scope)
        return Shown(
            "Jobs", [Section("states", _states(counts)), Section("jobs", listed, "section steady")], form
        )

    async def _found(self, visit: Visit) -> Sequence[Job]:
        """One more than is shown, to know whether there are more."""
        if (wanted := visit.asked("id")) is not None:
            return await self._one(wanted, visit)
        return await self._jobs.list(
            state=visit.asked("state"),
            task=visit.asked("task"),
            model=visit.asked("model"),
            limit=SHOWN + 1,
            after=visit.asked("after"),
            tenant=visit.viewer.scope,
        )

    async def _one(self, wanted: str, visit: Visit) -> Sequence[Job]:
        job_id = job_id_of(wanted) if is_batch_id(wanted) else wanted
        try:
            return [await self._jobs.get(job_id, tenant=visit.viewer.scope)]
        except InvalidRequest:
            return []


def _states(counts: Mapping[str, int] | None) -> Markup:
    if counts is None:
        return group()
    return tiles(*(_tile(state, counts.get(state, 0)) for state in JobState))


def _tile(state: JobState, count: int) -> Markup:
    dead = state is JobState.DEAD_LETTER
    link = el("a", amount(count), href=DEAD_LETTERS if dead else address(JOBS, state=state.value))
    return tile(state.replace("_", " ").capitalize(), link, tone="bad" if dead and count else None)


def _nothing(visit: Visit) -> Markup:
    if (wanted := visit.asked("id")) is not None:
        return empty("No job has this id.", word(wanted), " ", el("a", "Show all", href=JOBS))
    if visit.query:
        return empty("No job fits.", el("a", "Show all", href=JOBS))
    return empty(
        "There are no jobs yet.",
        "Hand one in: ",
        el("code", "headgate jobs submit chat '{…}'"),
        " or ",
        el("code", "POST /v1/jobs"),
        ". A whole file goes as a ",
        el("a", "batch", href=BATCHES),
        ".",
    )
