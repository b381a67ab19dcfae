"""Alerts: what fires now, and what has cleared."""

from collections.abc import Sequence

from headgate.core.access import Action
from headgate.core.alerts import Alert
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.moments import duration
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import badge, empty, heading, prose, table
from headgate.server.dashboard.sources import Sources


def pages(sources: Sources) -> Sequence[Page]:
    return [Page(path="/alerts", entry="Alerts", show=AlertsPage(sources).show, needs=Action.WATCH)]


class AlertsPage:
    """`/alerts`."""

    def __init__(self, sources: Sources) -> None:
        self._alerts = sources.alerts

    async def show(self, visit: Visit) -> Shown:
        active = self._alerts.active()
        past = self._alerts.recent()
        return Shown(
            "Alerts",
            [Section("active", _active(active, visit)), Section("past", _past(past, visit))],
        )


def _active(alerts: Sequence[Alert], visit: Visit) -> Markup:
    if not alerts:
        return el("p", "No alert is active.", class_="well")
    told = [
        el(
            "li",
            el("strong", prose(alert.message)),
            el("div", f"{_about(alert)}, fired ", visit.tell.ago(alert.fired_at), class_="faint"),
            class_="bad",
        )
        for alert in alerts
    ]
    return el("ul", told, class_="troubles", aria_label="Active alerts")


def _past(alerts: Sequence[Alert], visit: Visit) -> Markup:
    title = heading("Cleared")
    if not alerts:
        words = "Rules and their bounds are under alerts: in headgate.yaml."
        return group(title, empty("Nothing has fired and cleared since this process started.", words))
    rows = [
        (
            visit.tell.ago(alert.cleared_at),
            group(badge(alert.rule), " ", alert.subject),
            group(prose(alert.message)),
            "–" if alert.cleared_at is None else duration(alert.cleared_at - alert.fired_at),
        )
        for alert in alerts
    ]
    return group(title, table(("Cleared", "Rule", "What", "Lasted"), rows, numeric=frozenset({3})))


def _about(alert: Alert) -> str:
    """`breaker_open of openai/gpt-5-mini`. The numbers are in its message."""
    return f"{alert.rule} of {alert.subject}" if alert.subject else alert.rule
