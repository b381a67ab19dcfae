"""What is wrong right now, in words: what, where, for how long, and what to do. Values in, words out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from headgate.calls.status import State
from headgate.core.alerts import Alert
from headgate.core.errors import (
    CheckBroken,
    DeadlineExceeded,
    Draining,
    HeadgateError,
    ModelPaused,
    Preempted,
    QueueFull,
    RateLimited,
    RetryBudgetSpent,
    StoreUnavailable,
    UpstreamThrottled,
)
from headgate.core.failures import Failure, FailureKind
from headgate.core.operator_pause import OperatorPause, pause_over
from headgate.observe.recent import REFUSALS, Status
from headgate.observe.series import Span
from headgate.server.dashboard.html import Child, Markup, el
from headgate.server.dashboard.moments import Moments, amount
from headgate.server.dashboard.parts import prose
from headgate.server.dashboard.upstreams import UpstreamView

LOW_BUDGET: Final = 0.2
MANY_TROUBLED: Final = 0.05
"""The share of requests that fail, or are refused, from which on it is told."""
FEWEST_ENDED: Final = 20
REASONS: Final[Mapping[str, str]] = {
    QueueFull.code: "the queue was full",
    UpstreamThrottled.code: "the upstream throttled and they could not wait longer",
    ModelPaused.code: "an operator paused the model",
    RetryBudgetSpent.code: "the retry budget was spent",
    RateLimited.code: "a key had used up its limits",
    Draining.code: "the process was shutting down",
    DeadlineExceeded.code: "their time was up",
    CheckBroken.code: "the caller's own check broke",
    Preempted.code: "interactive calls took their slots",
    FailureKind.THROTTLED: "the provider throttled every attempt",
    FailureKind.TRANSIENT: "the provider was down or slow",
    FailureKind.INVALID_OUTPUT: "the answers could not be used",
    FailureKind.REJECTED: "the provider found the requests wrong",
    FailureKind.MISCONFIGURED: "the provider refuses our key, the model's name or our permissions",
    FailureKind.BROKEN: "something broke in the gateway; its log says what",
    StoreUnavailable.code: "the database did not work",
    HeadgateError.code: "something broke in the gateway; its log says what",
    FailureKind.EXPIRED: "their time was up at the provider",
}
"""Why requests end badly, after `because`."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong: where, in a word, and then the rest. A `grave` one needs somebody."""

    where: str
    state: str
    more: Child
    link: str
    grave: bool = False
    joint: str = ": "
    """Between where and the state."""

    @property
    def tone(self) -> str:
        return "bad" if self.grave else "warn"

    def markup(self) -> Markup:
        where = el("strong", el("a", self.where, href=self.link))
        more = None if self.more is None else [", ", self.more]
        return el("li", where, self.joint, prose(self.state), more, class_=self.tone)


def upstream_trouble(
    view: UpstreamView, tell: Moments, others: Iterable[UpstreamView] = ()
) -> Trouble | None:
    """The worst of what is wrong with one upstream. `others` are its model's: they may stand in."""
    status, link = view.status, models_link(view.status.model)
    match status.state:
        case State.HELD:
            advice = ". Check its key, its model name and its permissions."
            why = [_said(view.mistake), _probe(view, tell), _meanwhile(view, others), advice]
        case State.FAILING:
            why = ["too many calls in a row failed", _probe(view, tell), _meanwhile(view, others)]
        case State.THROTTLING:
            why = ["it refused too many calls in a row", _probe(view, tell), _meanwhile(view, others)]
        case _:
            return _strain(view, link)
    grave = status.state is not State.THROTTLING
    return Trouble(view.name, status.state, why, link, grave=grave, joint=" is ")


def _strain(view: UpstreamView, link: str) -> Trouble | None:
    status = view.status
    if not status.accepting and not status.stopped:
        return Trouble(view.name, "full", f"{view.waiting} wait and new calls are refused", link, grave=True)
    if view.at_its_limit:
        return Trouble(view.name, "at its limit", f"{_calls_wait(view)}; it is {status.limit}", link)
    if view.budget_left < LOW_BUDGET:
        then = "failed calls are not retried" if view.budget_strict else "throttled calls wait longer"
        more = f"{view.budget_left:.0%} of its retry budget is left; without one {then}"
        return Trouble(view.name, "failing often", more, link)
    if status.max_queue_depth and view.waiting * 2 >= status.max_queue_depth:
        return Trouble(view.name, "busy", f"{view.waiting} wait for {status.total_slots} slots", link)
    return None


def pause_troubles(pauses: Mapping[str, OperatorPause], tell: Moments) -> Iterator[Trouble]:
    for pause in pauses.values():
        more = [f"by {pause.by} ", tell.ago(pause.since), "; its calls are refused until it is resumed"]
        yield Trouble(pause.model, "paused", more, models_link(pause.model))


def request_troubles(minute: Span) -> Iterator[Trouble]:
    """Many of the last minute's requests failed, or were refused. The one is trouble, the other may be mere load."""
    for status, verb, count in (
        (Status.FAILED, "failed", minute.failed),
        (Status.REFUSED, "were refused", minute.refused),
    ):
        if minute.ended < FEWEST_ENDED or count < MANY_TROUBLED * minute.ended:
            continue
        refused = status is Status.REFUSED
        why = Counter(
            {reason: times for reason, times in minute.reasons.items() if (reason in REFUSALS) is refused}
        )
        yield Trouble(
            f"{amount(count)} of the last minute's {amount(minute.ended)} requests",
            f"{verb}{_commonest(why)}",
            None,
            f"/requests?status={status}",
            grave=not refused,
            joint=" ",
        )


def _commonest(reasons: Counter[str]) -> str:
    """`: the queue was full (queue_full)`."""
    reason, count = reasons.most_common(1)[0]
    words = f"{REASONS[reason]} ({reason})" if reason in REASONS else reason
    return f": {words}" if len(reasons) == 1 else f", {amount(count)} of them because {words}"


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
    troubles += request_troubles(minute)
    return sorted(filter(None, troubles), key=lambda trouble: not trouble.grave)


def models_link(model: str) -> str:
    return f"/models?q={quote(model, safe='')}"


def _said(mistake: Failure | None) -> str:
    if mistake is None:
        return "it refuses us"
    return " ".join(
        ["it answers", *(str(part) for part in (mistake.status, mistake.code) if part is not None)]
    )


def _probe(view: UpstreamView, tell: Moments) -> Child:
    """When it is tried again. A probe is sent when a call is there to be one."""
    probe_in_s = view.status.probe_in_s or 0.0
    if round(probe_in_s) > 0:
        return ["; next probe in ", tell.in_s(probe_in_s)]
    return "; being probed now" if view.in_use or view.waiting else "; the next call is the probe"


def _meanwhile(view: UpstreamView, others: Iterable[UpstreamView]) -> str:
    waiting = f"; {_calls_wait(view)}" if view.waiting else ""
    instead = next(
        (other.status.upstream for other in others if other is not view and other.takes_calls), None
    )
    return waiting if instead is None else f"{waiting}; {instead} takes its calls"


def _calls_wait(view: UpstreamView) -> str:
    return "1 call waits" if view.waiting == 1 else f"{view.waiting} calls wait"
