"""Which upstreams a model's name leads to. `simulated/*` is a family: each member gets its own upstreams."""

import enum
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.calls.upstream import Upstream
from headgate.core.call import check_text
from headgate.core.errors import UnknownModel
from headgate.core.hedging import Hedging
from headgate.core.operator_pause import OperatorPause, pause_over
from headgate.core.timeouts import Timeouts

MOST_FAMILY_MEMBERS: Final = 1000


class Balance(enum.StrEnum):
    """In which order a model's upstreams are tried."""

    ORDERED = "ordered"
    LEAST_BUSY = "least_busy"


@dataclass(frozen=True, slots=True)
class Gather:
    """When a micro-batch closes: at `size` requests, or `wait_ms` after its first."""

    size: int = 10
    wait_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class Route:
    """A model and its upstreams."""

    model: str
    upstreams: tuple[Upstream, ...]
    timeouts: Timeouts
    balance: Balance = Balance.ORDERED
    gather: Gather | None = None
    """Set when single calls to this model are gathered into micro-batches."""
    stream_rescue: bool = False
    """A stream that breaks goes on at the next upstream, if that one tells the same."""
    patience_s: float = 2.0
    """An earlier upstream is preferred if its answer is expected at most so much later."""
    wait: bool = True
    """Calls wait while the upstreams are closed; else they are refused."""
    hedging: Hedging | None = None
    """Slow calls get a second attempt."""
    max_calls: int = field(init=False)
    """How many chats one call of the provider may carry, wherever it ends up."""
    reads: bool = field(init=False)
    """Whether one of its upstreams looks inside requests."""

    def __post_init__(self) -> None:
        providers = [upstream.provider for upstream in self.upstreams]
        object.__setattr__(self, "max_calls", min(getattr(one, "max_calls", 1) for one in providers))
        object.__setattr__(self, "reads", any(one.reads for one in providers))

    @property
    def busy(self) -> bool:
        """Whether somebody waits at its gates or is being served."""
        return any(upstream.visitors or upstream.load for upstream in self.upstreams)

    def close(self) -> None:
        for upstream in self.upstreams:
            upstream.gate.close()

    def obey(self, pause: OperatorPause | None) -> None:
        for upstream in self.upstreams:
            if pause is None:
                upstream.gate.resume()
            else:
                upstream.gate.stop(pause)

    def in_order(self) -> tuple[Upstream, ...]:
        if self.balance is Balance.LEAST_BUSY:
            # Equally busy ones take turns, else an idle model would only ever call its first.
            return tuple(sorted(self.upstreams, key=lambda upstream: (upstream.load, upstream.calls_made)))
        return self.upstreams


BuildRoute = Callable[[str], Route]
"""Builds the route of one member of a family from the member's full name."""


class Routes:
    """Models by name. Members of a family are built when first asked for, and the idlest make room."""

    def __init__(
        self,
        routes: Iterable[Route],
        families: Mapping[str, BuildRoute] | None = None,
        asides: Mapping[str, Callable[[], Route]] | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self._routes = {route.model: route for route in routes}
        self._families = {name.removesuffix("*"): build for name, build in (families or {}).items()}
        self._asides = dict(asides or {})
        """Models that are built when first asked for."""
        self._hints = hints or {}
        """What to say of unknown models whose names begin so."""
        self._members: OrderedDict[str, Route] = OrderedDict()
        self._retired: list[Route] = []
        """Replaced by a reload, with calls still on their way through them."""
        self._closed = False
        self.pauses: Mapping[str, OperatorPause] = {}
        """The models that operators have paused."""

    def find(self, model: str) -> Route:
        if (route := self._routes.get(model)) is not None:
            return route
        if (route := self._members.get(model)) is not None:
            self._members.move_to_end(model)
            return route
        if (build_aside := self._asides.get(model)) is not None:
            return self._join(model, build_aside())
        for prefix, build in self._families.items():
            if model.startswith(prefix) and model != prefix:
                return self._join(model, build(model))
        raise self._unknown(model)

    def check(self, model: str) -> None:
        """Reject a name that no call could use. Nothing is kept: a look changes nothing."""
        if model in self._routes or model in self._members or model in self._asides:
            return
        for prefix, build in self._families.items():
            if model.startswith(prefix) and model != prefix:
                build(model)
                return
        raise self._unknown(model)

    def _unknown(self, model: str) -> UnknownModel:
        reason = next((f". {words}" for prefix, words in self._hints.items() if model.startswith(prefix)), "")
        return UnknownModel.among(model, self.names(), reason=reason)

    def known(self) -> list[Route]:
        self._retired = [route for route in self._retired if route.busy]
        return [*self._routes.values(), *self._members.values(), *self._retired]

    def names(self) -> list[str]:
        """The configured models, families with their star."""
        return [*self._routes, *self._asides, *(f"{prefix}*" for prefix in self._families)]

    def renew(self, new: "Routes", unchanged: Container[str]) -> None:
        """Become the new ones. An unchanged model keeps its gates, with those who wait there and what they have learnt.

        Its holds are lifted: a mistake is often fixed at the provider, or in a file that the settings only name.

        Calls on their way through a model that changed or went end where they began.
        """
        before = self.known()
        kept = {**self._routes, **self._members}
        members = [name for name in self._members if self._family_of(name) in unchanged]
        self._routes = {
            name: kept[name] if name in unchanged and name in kept else route
            for name, route in new._routes.items()  # noqa: SLF001 - one of our own kind
        }
        self._members = OrderedDict((name, kept[name]) for name in members if name not in self._routes)
        self._families, self._asides = new._families, new._asides  # noqa: SLF001 - as above
        now = [*self._routes.values(), *self._members.values()]
        self._retired = [route for route in before if route not in now]
        for upstream in (upstream for route in now for upstream in route.upstreams):
            upstream.lift_hold()
        self.obey(self.pauses)
        if self._closed:
            self.close()

    def _family_of(self, member: str) -> str:
        """The name in the settings that a member was built from."""
        if member in self._asides:
            return member
        return next((f"{prefix}*" for prefix in self._families if member.startswith(prefix)), "")

    def check_name(self, name: str) -> None:
        """Refuses what is neither a model, nor a family, nor a member of one that a call could name."""
        check_text("model", name)
        if name not in self.names():
            self.check(name)

    def obey(self, pauses: Mapping[str, OperatorPause]) -> None:
        """Stop the gates of these models, and of those that will be built under these names; let the others go on."""
        self.pauses = pauses
        for route in self.known():
            route.obey(pause_over(pauses, route.model))

    def close(self) -> None:
        """No new callers at any gate, and those who wait leave."""
        self._closed = True
        for route in self.known():
            route.close()

    def _join(self, model: str, route: Route) -> Route:
        self._members[model] = route
        self._make_room(model)
        if (pause := pause_over(self.pauses, model)) is not None:
            route.obey(pause)
        if self._closed:
            route.close()
        return route

    def _make_room(self, newest: str) -> None:
        """The longest idle member goes, first of those whose gates restrict no call: nothing is lost with them."""
        if len(self._members) <= MOST_FAMILY_MEMBERS:
            return
        idle = [name for name, route in self._members.items() if name != newest and not route.busy]
        free = (name for name in idle if not any(up.restricts for up in self._members[name].upstreams))
        if (leaving := next(free, idle[0] if idle else None)) is not None:
            del self._members[leaving]
