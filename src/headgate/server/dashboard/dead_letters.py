"""Dead letters: by cause, with counts that filter, and one by one."""

from collections.abc import Sequence
from typing import Final

from headgate.core.access import Action
from headgate.core.job import Cause, DeadLetter, Reason
from headgate.core.job_rules import ERROR_CLASSES
from headgate.server.dashboard import bulk, dead_letter
from headgate.server.dashboard.dead_filters import NAMES, TENANT, Which
from headgate.server.dashboard.foreign import address, word
from headgate.server.dashboard.forms import choice, filters, text
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.job_words import DEAD_LETTERS, JOBS
from headgate.server.dashboard.lists import add_tenants, id_link, pager
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import badge, empty, heading, table
from headgate.server.dashboard.sources import Sources

SHOWN: Final = 50
MOST_CAUSES: Final = 20
_REASONS: Final = {"": "Any", **{reason.value: reason.value for reason in Reason}}
_CLASSES: Final = {"": "Any", **{name: name for name in ERROR_CLASSES}}


def pages(sources: Sources) -> Sequence[Page]:
    dead = DeadLetters(sources)
    first = Page(path=DEAD_LETTERS, entry="Dead letters", show=dead.show)
    return [first, *bulk.pages(sources), *dead_letter.pages(sources)]


class DeadLetters:
    """`/dead-letters`."""

    def __init__(self, sources: Sources) -> None:
        self._dead = sources.gateway.dead_letters

    async def show(self, visit: Visit) -> Shown:
        which = Which.read(visit.query)
        scope = which.scope(visit.viewer)
        causes = await self._dead.causes(**which.filters(), limit=MOST_CAUSES + 1, tenant=scope)
        found = await self._dead.list(
            **which.filters(), limit=SHOWN + 1, after=visit.asked("after"), tenant=scope
        )
        sections = [
            Section("causes", _causes(causes, which, visit), "section steady"),
            Section("dead-letters", _list(found, which, visit), "section steady"),
        ]
        return Shown("Dead letters", sections, _form(which, visit))


def _form(which: Which, visit: Visit) -> Markup:
    given = which.given
    whose = text(TENANT, "Tenant", which.tenant, kind="text") if visit.viewer.scope is None else None
    return filters(
        choice("reason", "Reason", _REASONS, given.get("reason")),
        text("task", "Task", given.get("task"), kind="text"),
        text("model", "Model", given.get("model"), kind="text"),
        choice("class", "Class", _CLASSES, given.get("class")),
        whose,
        to=DEAD_LETTERS,
    )


def _causes(causes: Sequence[Cause], which: Which, visit: Visit) -> Markup:
    if not causes:
        return group()
    shown_causes, more = causes[:MOST_CAUSES], len(causes) > MOST_CAUSES
    heads = ["Count", "Reason", "Task", "Model", "Class", "Latest"]
    rows = [_cause(cause, visit) for cause in shown_causes]
    add_tenants(heads, rows, [cause.tenant for cause in shown_causes], visit)
    cut = el("p", f"The {MOST_CAUSES} most frequent causes; filter to see others.", class_="faint")
    shown = table(heads, rows, numeric=frozenset({len(heads) - 1}))
    return group(heading("By cause"), shown, cut if more else None, _many(causes, which, visit))


def _cause(cause: Cause, visit: Visit) -> list[Child]:
    alike = Which.alike(cause, everybody=visit.viewer.scope is None)
    return [
        el("a", amount(cause.count), href=address(DEAD_LETTERS, **alike.query), class_="count"),
        badge(cause.reason or "–", "bad"),
        word(cause.task),
        word(cause.model),
        cause.error_class or "–",
        visit.tell.ago(cause.latest_at),
    ]


def _many(causes: Sequence[Cause], which: Which, visit: Visit) -> Markup | None:
    """The way to all that are shown. "All of them" must be meant: without a filter there is none."""
    if not visit.viewer.may(Action.OPERATE):
        return None
    if not which.given:
        return el("p", "Choose a cause by its count to replay or discard all of it at once.", class_="faint")
    count = sum(cause.count for cause in causes)
    words = amount(count) if len(causes) <= MOST_CAUSES else "all"
    links = [
        el("a", f"Replay {words}…", href=address(bulk.REPLAY, **which.query), class_="button"),
        el("a", f"Discard {words}…", href=address(bulk.DISCARD, **which.query), class_="button quiet"),
        el("a", "Show all causes", href=DEAD_LETTERS),
    ]
    return el("p", links, class_="actions")


def _list(found: Sequence[DeadLetter], which: Which, visit: Visit) -> Markup:
    if not found:
        return _nothing(which)
    heads = ["Job", "Task", "Model", "Reason", "What went wrong", "Ended"]
    rows: list[list[Child]] = [
        [
            id_link(DEAD_LETTERS, job.id),
            word(job.task),
            word(job.model),
            badge(job.reason or "–", "bad"),
            word(job.error or job.error_class),
            visit.tell.ago(job.failed_at),
        ]
        for job in found[:SHOWN]
    ]
    add_tenants(heads, rows, [job.tenant for job in found[:SHOWN]], visit)
    last = found[SHOWN - 1].id if len(found) > SHOWN else None
    newer = pager(DEAD_LETTERS, visit, last, *NAMES, TENANT)
    return group(heading("One by one"), table(heads, rows, numeric=frozenset({len(heads) - 1})), newer)


def _nothing(which: Which) -> Markup:
    if which.query:
        return empty("No dead letter fits.", el("a", "Show all", href=DEAD_LETTERS))
    told = (
        "A job that fails for good, or too often, comes to lie here until somebody replays or discards it. "
    )
    return empty("No dead letters: nothing waits for you.", told, el("a", "See the jobs", href=JOBS))
