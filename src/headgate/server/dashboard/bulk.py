"""Replaying or discarding all dead letters that match: a page that says how many, and a second click."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.core.access import Action
from headgate.runner.dead_filter import check_some
from headgate.runner.dead_letters import REPLAYS_PER_S
from headgate.runner.jobs import MOST_LISTED, JobHandle
from headgate.server.dashboard.dead_filters import Which, check_models
from headgate.server.dashboard.foreign import address, word
from headgate.server.dashboard.forms import button
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.job_words import DEAD_LETTERS, JOBS
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Deed, Done, Form, Page, Section, Shown, Visit
from headgate.server.dashboard.parts import empty
from headgate.server.dashboard.sources import Sources

REPLAY: Final = f"{DEAD_LETTERS}/replay"
DISCARD: Final = f"{DEAD_LETTERS}/discard"
MOST_TENANTS: Final = 50


@dataclass(frozen=True, slots=True)
class Order:
    """What is done to all of them."""

    path: str
    verb: str
    means: str
    submit: Callable[..., Awaitable[JobHandle]]
    kind: str


def pages(sources: Sources) -> Sequence[Page]:
    gateway, many = sources.gateway, Bulk(sources)
    orders = (
        Order(
            REPLAY,
            "Replay",
            f"They go back to work beside everything else, {REPLAYS_PER_S:g} a second at most, each with all its attempts.",
            gateway.bulk.replay,
            "loud",
        ),
        Order(
            DISCARD,
            "Discard",
            "They are cancelled for good. They can still be looked at, but not replayed.",
            gateway.bulk.discard,
            "danger",
        ),
    )
    return [
        Page(
            path=order.path,
            entry="Dead letters",
            show=partial(many.ask, order),
            needs=Action.OPERATE,
            refresh_s=2.0,
            deeds=[Deed(path=order.path, do=partial(many.do, order))],
        )
        for order in orders
    ]


class Bulk:
    """`/dead-letters/replay` and `/dead-letters/discard`."""

    def __init__(self, sources: Sources) -> None:
        self._dead = sources.gateway.dead_letters

    async def ask(self, order: Order, visit: Visit) -> Shown:
        """The dry run."""
        which = Which.read(visit.query)
        check_some(which.filters())
        check_models(visit.viewer, which)
        tenants = await self._whose(which, which.scope(visit.viewer))
        back = el("p", el("a", "Back to the dead letters", href=address(DEAD_LETTERS, **which.query)))
        return Shown(f"{order.verb} many", [Section("order", _asked(order, which, tenants))], back)

    async def _whose(self, which: Which, scope: str | None) -> Counter[str]:
        """How many of whose match: to the letter where it is one tenant, by the most frequent causes where several."""
        tenants: Counter[str] = Counter()
        if scope is None:
            for cause in await self._dead.causes(**which.filters(), limit=MOST_LISTED, tenant=None):
                tenants[cause.tenant] += cause.count
            if len(tenants) != 1:
                return tenants
            [scope] = tenants
        return Counter({scope: await self._dead.count(**which.filters(), tenant=scope)})

    async def do(self, order: Order, visit: Visit, form: Form) -> Done:
        which = Which.read(form)
        check_models(visit.viewer, which)
        tenant = which.tenant or visit.viewer.tenant
        handle = await order.submit(**which.filters(), by=visit.by, tenant=tenant)
        return Done(address(JOBS, handle.id), f"{order.verb} is under way. This page shows how far it is.")


def _asked(order: Order, which: Which, tenants: Counter[str]) -> Markup:
    if not tenants.total():
        return empty("No dead letter matches any more.", el("a", "Show all", href=DEAD_LETTERS))
    if len(tenants) > 1:
        return _choose(order, which, tenants)
    [(tenant, count)] = tenants.items()
    words = f"{amount(count)} dead letter{'' if count == 1 else 's'}"
    meant = Which(which.given, tenant)
    sure = button(f"{order.verb} {words}", order.path, kind=order.kind, **meant.query)
    leave = el("a", "No, leave them", href=address(DEAD_LETTERS, **which.query))
    return el(
        "div",
        el("p", el("strong", words), " match: ", meant.words(), "."),
        el("p", order.means),
        el("div", sure, leave, class_="actions"),
        class_="card",
    )


def _choose(order: Order, which: Which, tenants: Counter[str]) -> Markup:
    """One order is about one tenant: it runs as a job of theirs."""
    links = [
        el(
            "li",
            el("a", word(tenant), href=address(order.path, **Which(which.given, tenant).query)),
            f": {amount(count)}",
        )
        for tenant, count in tenants.most_common(MOST_TENANTS)
    ]
    return group(el("p", "They belong to several tenants. Whose are meant?"), el("ul", links))
