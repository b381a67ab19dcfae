"""The overview: what is wrong, in words; then the numbers, the last minutes, and every gate."""

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.core.access import Action
from headgate.core.job import JobState
from headgate.core.ports.store import StoreHealth
from headgate.observe.series import SPAN_S, Span
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.minutes import Minutes
from headgate.server.dashboard.models import gates
from headgate.server.dashboard.moments import Moments, amount, milliseconds
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import empty, heading, tile, tiles
from headgate.server.dashboard.requests import request_table
from headgate.server.dashboard.sources import Sources
from headgate.server.dashboard.upstreams import UpstreamView, look
from headgate.server.dashboard.wrong import MANY_TROUBLED, everything

MINUTE: Final = 60 // SPAN_S
MOST_GATES: Final = 30


def pages(sources: Sources) -> Sequence[Page]:
    return [Page(path="/", entry="Overview", show=Overview(sources).show)]


class Overview:
    """`/`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._minutes = Minutes(sources.series, sources.clock.now)

    async def show(self, visit: Visit) -> Shown:
        if not visit.viewer.may(Action.WATCH):
            return self._own(visit)
        views = look(self._sources.gateway.routes.known())
        minute, jobs = (
            self._sources.series.together(MINUTE),
            await self._sources.job_look.counts(visit.viewer.scope),
        )
        sections = [
            Section("wrong", self._wrong(views, minute, visit.tell)),
            Section("numbers", self._numbers(views, minute, jobs)),
            Section("charts", self._minutes.draw()),
            Section("gates", _gates(views, visit.tell)),
        ]
        return Shown("Overview", sections)

    def _own(self, visit: Visit) -> Shown:
        """For keys that may not see how the gateway is: their models and their calls."""
        names = [name for name in self._sources.gateway.routes.names() if visit.viewer.sees(name)]
        listed = el("ul", [el("li", name) for name in names])
        found = self._sources.recent.list(tenant=visit.viewer.scope, limit=20)
        calls = request_table(found, visit) if found else empty("No call of yours has ended yet.")
        return Shown(
            "Overview",
            [
                Section("own-models", group(heading("Models you may use"), listed)),
                Section("own-requests", group(heading("Your last requests"), calls)),
            ],
        )

    def _wrong(self, views: Sequence[UpstreamView], minute: Span, tell: Moments) -> Markup:
        sources = self._sources
        troubles = everything(
            views,
            sources.gateway.routes.pauses,
            minute,
            sources.alerts.active(),
            tell,
            store_works=sources.gateway.durable.store.health is StoreHealth.OK,
        )
        if not troubles:
            return el("p", "Nothing is wrong.", class_="well")
        return el(
            "ul", [trouble.markup() for trouble in troubles], class_="troubles", aria_label="What is wrong"
        )

    def _numbers(self, views: Sequence[UpstreamView], minute: Span, jobs: Mapping[str, int] | None) -> Markup:
        series = self._sources.series
        per_s = series.together(2).ended / series.covered_s(2)
        p50, p99 = (milliseconds(minute.latency.percentile_ms(share)) for share in (0.5, 0.99))
        ended = f"{amount(minute.ended)} in a minute"
        return tiles(
            tile("Requests", f"{amount(round(per_s, 1))}/s", ended),
            _share_tile("Failed", minute.failed, minute.ended, "bad"),
            _share_tile("Refused", minute.refused, minute.ended, "warn"),
            tile("Latency", p50, f"p99 {p99}"),
            tile("Retries", amount(minute.retries), "in a minute"),
            *_gate_tiles(views),
            _job_tile(jobs),
        )


def _gate_tiles(views: Sequence[UpstreamView]) -> list[Markup]:
    interactive = sum(view.status.rt_queue for view in views)
    batch = sum(view.status.be_queue for view in views)
    slots = sum(view.status.total_slots for view in views)
    waiting = tile("Waiting", amount(interactive + batch), f"{interactive} interactive, {batch} batch")
    return [waiting, tile("Slots in use", amount(sum(view.in_use for view in views)), f"of {amount(slots)}")]


def _job_tile(jobs: Mapping[str, int] | None) -> Markup:
    if jobs is None:
        return tile("Jobs waiting", "–")
    dead = jobs.get(JobState.DEAD_LETTER, 0)
    return tile(
        "Jobs waiting",
        amount(jobs.get(JobState.PENDING, 0)),
        f"{amount(dead)} dead letter{'' if dead == 1 else 's'}",
    )


def _share_tile(label: str, count: int, ended: int, tone: str) -> Markup:
    share = count / ended if ended else 0.0
    return tile(
        label, f"{share:.1%}", f"{amount(count)} in a minute", tone=tone if share >= MANY_TROUBLED else None
    )


def _gates(views: Sequence[UpstreamView], tell: Moments) -> Markup:
    if not views:
        return empty(
            "No model has been called yet.",
            "Send a request to ",
            el("code", "POST /v1/chat/completions"),
            ", or add models to ",
            el("code", "headgate.yaml"),
            ".",
        )
    first = sorted(views, key=lambda view: (view.takes_calls, -view.waiting, -view.in_use))[:MOST_GATES]
    shown = views if len(views) <= MOST_GATES else first
    more = el("a", f"all {len(views)}", href="/models") if len(views) > len(shown) else None
    return group(heading("Gates", more), gates(shown, tell))
