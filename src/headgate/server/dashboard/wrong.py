"""What is wrong right now, in words: what, where, for how long, and what to do. Values in, words out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from headgate.core.alerts import Alert
from headgate.core.failures import Failure
from headgate.core.health import Condition
from headgate.core.operator_pause import OperatorPause, pause_over
from headgate.observe.series import Span
from headgate.server.dashboard.html import Child, Markup, el
from headgate.server.dashboard.moments import Moments, amount
from headgate.server.dashboard.upstreams import UpstreamView

LOW_BUDGET: Final = 0.2
MANY_FAILED: Final = 0.05
FEWEST_ENDED: Final = 20


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong: where, in a word, and then the rest. A `grave` one needs somebody."""

    where: str
    state: str
    more: Child
    link: str
    grave: bool = False

    @property
    def tone(self) -> str:
        return "bad" if self.grave else "warn"

    def markup(self) -> Markup:
        where = el("strong", el("a", self.where, href=self.link))
        more = None if self.more is None else [", ", self.more]
        return el("li", where, ": ", self.state, more, class_=self.tone)


def upstream_trouble(
    view: UpstreamView, tell: Moments, others: Iterable[UpstreamView] = ()
) -> Trouble | None:
    """The worst of what is wrong with one upstream. `others` are its model's: they may stand in."""
    status, name, link = view.status, view.name, models_link(view.status.model)
    rest = _meanwhile(view, others)
    if status.condition is Condition.HELD:
        advice = ". Check its key, its model name and its permissions."
        more = [_said(view.mistake), _again(view, tell), rest, advice]
        return Trouble(name, "misconfigured", more, link, grave=True)
    if status.condition is Condition.OPEN:
        more = ["it kept failing and is left alone", _again(view, tell), rest]
        return Trouble(name, "down", more, link, grave=True)
    if status.pause_s > 0:
        return Trouble(name, "throttled", ["paused ", tell.in_s(status.pause_s), " more", rest], link)
    return _strain(view, link)


def _strain(view: UpstreamView, link: str) -> Trouble | None:
    status = view.status
    if not status.accepting and not status.stopped:
        return Trouble(view.name, "full", f"{view.waiting} wait and new calls are refused", link, grave=True)
    if view.budget_left < LOW_BUDGET:
        more = f"{view.budget_left:.0%} of its retry budget is left; without one nothing is retried"
        return Trouble(view.name, "failing often", more, link)
    if status.max_queue_depth and view.waiting * 2 >= status.max_queue_depth:
        return Trouble(view.name, "busy", f"{view.waiting} wait for {status.total_slots} slots", link)
    return None


def pause_troubles(pauses: Mapping[str, OperatorPause], tell: Moments) -> Iterator[Trouble]:
    for pause in pauses.values():
        more = [f"by {pause.by} ", tell.ago(pause.since), "; its calls are refused until it is resumed"]
        yield Trouble(pause.model, "paused", more, models_link(pause.model))


def failing(minute: Span) -> Trouble | None:
    """Many of the last minute's requests failed, whatever the reason."""
    if minute.ended < FEWEST_ENDED or minute.failed < MANY_FAILED * minute.ended:
        return None
    share = f"{minute.failed / minute.ended:.0%} of the last minute's {amount(minute.ended)} failed"
    reason, count = minute.reasons.most_common(1)[0]
    return Trouble(
        "Requests", share, f"{amount(count)} of them: {reason}", "/requests?status=failed", grave=True
    )


def everything(
    views: Sequence[UpstreamView],
    pauses: Mapping[str, OperatorPause],
    minute: Span,
    alerts: Iterable[Alert],
    tell: Moments,
    *,
    store_works: bool,
) -> list[Trouble]:
    """All that is wrong, the grave first."""
    troubles: list[Trouble | None] = []
    if not store_works:
        more = "jobs, batches and keys must wait. Direct calls go on."
        troubles.append(Trouble("The database", "does not answer", more, "/alerts", grave=True))
    troubles += [Trouble("Alert", alert.message, None, "/alerts", grave=True) for alert in alerts]
    troubles += pause_troubles(pauses, tell)
    by_model: dict[str, list[UpstreamView]] = {}
    for view in views:
        by_model.setdefault(view.status.model, []).append(view)
    troubles += [
        upstream_trouble(view, tell, by_model[view.status.model])
        for view in views
        if pause_over(pauses, view.status.model) is None
    ]
    troubles.append(failing(minute))
    return sorted(filter(None, troubles), key=lambda trouble: not trouble.grave)


def models_link(model: str) -> str:
    return f"/models?q={quote(model, safe='')}"


def _said(mistake: Failure | None) -> str:
    if mistake is None:
        return "it refuses us"
    return " ".join(
        ["it answers", *(str(part) for part in (mistake.status, mistake.code) if part is not None)]
    )


def _again(view: UpstreamView, tell: Moments) -> Child:
    if view.probed_in_s is None:
        return "; the next call tries it again"
    return (
        "; being tried now" if view.probed_in_s <= 0 else ["; tried again in ", tell.in_s(view.probed_in_s)]
    )


def _meanwhile(view: UpstreamView, others: Iterable[UpstreamView]) -> str:
    waiting = f"; {view.waiting} wait" if view.waiting else ""
    instead = next(
        (other.status.upstream for other in others if other is not view and other.takes_calls), None
    )
    return waiting if instead is None else f"{waiting}; {instead} takes its calls"
