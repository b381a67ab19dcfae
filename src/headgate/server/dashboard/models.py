"""Models and their upstreams: gate, health, budget, the last failures; operators pause and resume them here."""

from collections.abc import Iterable, Sequence
from typing import Final

from headgate.calls.routes import Route
from headgate.core.access import Action
from headgate.core.errors import ModelNotAllowed
from headgate.core.operator_pause import OperatorPause, pause_over
from headgate.server.dashboard.foreign import word
from headgate.server.dashboard.forms import button, filters, needed, text
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.lists import id_link
from headgate.server.dashboard.moments import Moments
from headgate.server.dashboard.page import Deed, Done, Form, Page, Section, Shown, Visit
from headgate.server.dashboard.parts import badge, empty, heading, table
from headgate.server.dashboard.requests import PATH as REQUESTS
from headgate.server.dashboard.sources import Sources
from headgate.server.dashboard.upstreams import UpstreamView, look
from headgate.server.dashboard.wrong import LOW_BUDGET, upstream_trouble

PATH: Final = "/models"
MOST_SHOWN: Final = 50


def pages(sources: Sources) -> Sequence[Page]:
    models = Models(sources)
    deeds = (
        Deed(path="/models/pause", do=models.pause),
        Deed(path="/models/resume", do=models.resume),
    )
    return [Page(path=PATH, entry="Models", show=models.show, deeds=deeds)]


class Models:
    """`/models`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def show(self, visit: Visit) -> Shown:
        routes = self._sources.gateway.routes
        known = {route.model: route for route in routes.known()}
        wanted = visit.asked("q")
        configured, scope = routes.names(), visit.viewer.scope
        # A member of a family may be called as its tenant is, or as what it works on: that is for those who called it.
        members = self._sources.recent.models(scope) if scope is not None else {*known, *routes.pauses}
        names = [
            name
            for name in dict.fromkeys((*configured, *known, *routes.pauses))
            if (name in configured or name in members)
            and visit.viewer.sees(name)
            and (wanted is None or wanted.lower() in name.lower())
        ]
        cards = [self._card(name, known.get(name), visit) for name in names[:MOST_SHOWN]]
        if len(names) > MOST_SHOWN:
            cards.append(el("p", f"{len(names) - MOST_SHOWN} more: search for a name.", class_="faint"))
        search = filters(text("q", "Model", wanted, placeholder="Search ( / )"), to=PATH)
        return Shown("Models", [Section("models", group(cards or _nothing(wanted)))], search)

    async def pause(self, visit: Visit, form: Form) -> Done:
        model = _allowed(visit, needed(form, "model"))
        await self._sources.gateway.models.pause(model, by=visit.by)
        return Done(PATH, f"{model} is paused: its calls are refused until it is resumed.")

    async def resume(self, visit: Visit, form: Form) -> Done:
        model = _allowed(visit, needed(form, "model"))
        ended = await self._sources.gateway.models.resume(model)
        return Done(PATH, f"{model} goes on." if ended else f"{model} was not paused.")

    def _card(self, name: str, route: Route | None, visit: Visit) -> Markup:
        pause = pause_over(self._sources.gateway.routes.pauses, name)
        act = _pause_form(name, pause) if visit.viewer.operates(name) else None
        told = None if pause is None else [badge("paused", "warn"), _paused(pause, name, visit)]
        return el("article", heading(name, told, act), self._inside(name, route, visit), class_="card")

    def _inside(self, name: str, route: Route | None, visit: Visit) -> Child:
        if not visit.viewer.may(Action.WATCH):
            return None
        if route is None:
            family = name.endswith("/*")
            words = "A family: its members appear here when they are called." if family else "Not called yet."
            return el("p", words, class_="faint")
        views = look([route])
        return [gates(views, visit.tell, named=False), [self._failures(view, visit) for view in views]]

    def _failures(self, view: UpstreamView, visit: Visit) -> Markup | None:
        """Everybody's, but for the ids of other tenants' requests."""
        status = view.status
        failures = self._sources.failures.of(status.model, status.upstream)
        if not failures:
            return None
        rows = [
            (
                visit.tell.ago(past.at),
                word(past.error),
                id_link(REQUESTS, past.request_id) if visit.viewer.scope in {None, past.tenant} else "–",
            )
            for past in failures
        ]
        return el(
            "details",
            el("summary", f"Last failures of {status.upstream}"),
            table(("When", "What", "Request"), rows),
        )


def gates(views: Iterable[UpstreamView], tell: Moments, *, named: bool = True) -> Markup:
    """A table of gates; `named` with their models."""
    heads = ("Upstream", "State", "Slots in use", "Waiting", "Refused or failed", "Retry budget")
    rows = [
        (
            view.name if named else view.status.upstream,
            _state(view, tell),
            f"{view.in_use} of {view.status.total_slots}",
            _waiting(view),
            f"{view.status.refused_share:.0%}",
            _budget(view),
        )
        for view in views
    ]
    return table(heads, rows, numeric=frozenset({2, 3, 4, 5}))


def _state(view: UpstreamView, tell: Moments) -> Child:
    if view.status.stopped:
        return badge("paused by an operator", "warn")
    trouble = upstream_trouble(view, tell)
    if trouble is None:
        state = badge("working", "good") if view.in_use else badge("idle")
        return group(state, el("span", view.status.limit, class_="faint"))
    return group(badge(trouble.state, trouble.tone), el("span", trouble.more, class_="faint"))


def _waiting(view: UpstreamView) -> str:
    """`0`, `12`, `12, 3 batch`."""
    status = view.status
    return f"{status.rt_queue}, {status.be_queue} batch" if status.be_queue else str(status.rt_queue)


def _budget(view: UpstreamView) -> Child:
    words = f"{view.budget_left:.0%}"
    return badge(words, "warn") if view.budget_left < LOW_BUDGET else words


def _pause_form(name: str, pause: OperatorPause | None) -> Markup | None:
    if pause is None:
        return button("Pause", "/models/pause", model=name)
    # A pause of a family is ended where it was made.
    return button("Resume", "/models/resume", kind="", model=pause.model) if pause.model == name else None


def _paused(pause: OperatorPause, name: str, visit: Visit) -> Markup:
    """Who did it is for operators: it may be the name of another tenant's key."""
    by = f"by {pause.by}" if visit.viewer.may(Action.OPERATE) else "by an operator"
    through = "" if pause.model == name else f" with all of {pause.model}"
    return el("span", f"{by}{through}, ", visit.tell.ago(pause.since), class_="faint")


def _allowed(visit: Visit, model: str) -> str:
    if not visit.viewer.operates(model):
        raise ModelNotAllowed(f"your key may not pause or resume the model {model[:100]!r}")
    return model


def _nothing(wanted: str | None) -> Markup:
    if wanted is not None:
        return empty(f"No model is called like {wanted[:100]!r}.", el("a", "Show all", href=PATH))
    return empty("There are no models.", "List some under ", el("code", "models:"), " in headgate.yaml.")
