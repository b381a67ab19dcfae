"""Calls that an upstream answers as misconfigured three times in a row are held back, and probed now and then.

Such an answer may mean that the operator has to act (a wrong key, a missing model) or that one tenant's requests are
wrong. So a hold applies to one endpoint, and to one tenant; to all tenants only if the answers came from two of them, or
if our own check of the upstream failed. An answer ends it.
"""

import enum
import math
from collections import OrderedDict
from typing import Final

import msgspec

from headgate.core.failures import Failure, FailureKind

MISTAKES_IN_A_ROW: Final = 3
MOST_OF_ONE: Final = 2
"""So many answers to one tenant count towards a hold for all, which takes one more than a hold for one tenant."""
HELD_S: Final = (30.0, 300.0)
"""Before the first probe; each that fails doubles it, up to the second."""
MAX_TENANTS: Final = 1000
"""The longest unused entries of tenants are dropped."""
ALL: Final = None
"""In the place of a tenant: every tenant."""


class Condition(enum.StrEnum):
    """How an upstream is, as far as its last calls have shown."""

    OK = "ok"
    OPEN = "open"
    """It keeps failing and is closed: an open breaker."""
    HELD = "held"
    """It is misconfigured."""


class Hold:
    """Misconfigured answers of one endpoint in a row: those to one tenant, or to all."""

    __slots__ = ("ambiguous", "by", "held_s", "in_a_row", "other_came", "probing", "since", "until")

    def __init__(self) -> None:
        self.until: float | None = None
        """Held until a probe after this time is answered; None: not held."""
        self.since = 0.0
        """When the first of these answers came."""
        self.in_a_row = 0
        self.ambiguous = 0
        self.by: dict[str, int] = {}
        """How many answers each tenant got that counted."""
        self.probing = False
        self.other_came = False
        """A tenant that did not cause it was kept out by it."""
        self.held_s = HELD_S[0]

    def keeps_out(self, tenant: str, now: float) -> bool:
        """Its probe is not a call of a tenant that caused it, while another tenant calls."""
        if self.until is None:
            return False
        if tenant in self.by and self.other_came and now < self.until + self.held_s:
            return True
        return self.probing or now < self.until

    @property
    def by_two(self) -> bool:
        """More than one tenant's requests are answered so."""
        return sum(min(count, MOST_OF_ONE) for count in self.by.values()) > MISTAKES_IN_A_ROW

    def note(self, tenant: str, now: float) -> None:
        self.since = self.since if self.in_a_row else now
        self.in_a_row += 1
        if tenant in self.by or len(self.by) <= MISTAKES_IN_A_ROW:
            self.by[tenant] = self.by.get(tenant, 0) + 1

    def probe_failed(self, tenant: str, now: float) -> None:
        """Of a tenant that caused it that says nothing for another one that waits: that one probes next."""
        if tenant in self.by and self.other_came:
            self.probing = False
            self.until = now
        else:
            self.note(tenant, now)
            self.hold(now, min(2 * self.held_s, HELD_S[1]))

    def hold(self, now: float, held_s: float) -> None:
        self.held_s, self.until, self.probing, self.other_came = held_s, now + held_s, False, False


class Holds:
    """What is held back of one upstream."""

    __slots__ = ("_holds", "answered", "last_mistake")

    def __init__(self) -> None:
        self._holds: OrderedDict[tuple[str, str | None], Hold] = OrderedDict()
        """By endpoint and tenant. Empty while all is well."""
        self.answered: dict[str, float] = {}
        """When each endpoint answered a call last."""
        self.last_mistake: Failure | None = None
        """The last answer that was taken for a mistake of the operator."""

    @property
    def quiet(self) -> bool:
        """No misconfigured answer is remembered, so nothing is held."""
        return not self._holds

    def concern(self, endpoint: str, tenant: str) -> bool:
        """Whether anything is remembered that applies to such a call."""
        holds = self._holds
        return bool(holds) and ((endpoint, tenant) in holds or (endpoint, ALL) in holds)

    def kept_out(self, endpoint: str, tenant: str, now: float) -> Hold | None:
        """A call has come: the hold that keeps it out, if there is one. The next probe is rather its than the culprit's."""
        hold = self.blocks(endpoint, tenant, now)
        if hold is not None and tenant not in hold.by:
            hold.other_came = True
        return hold

    def blocks(self, endpoint: str, tenant: str, now: float) -> Hold | None:
        """The hold that keeps such a call out, if there is one."""
        for whom in (ALL, tenant):
            hold = self._holds.get((endpoint, whom))
            if hold is not None and hold.keeps_out(tenant, now):
                return hold
        return None

    def enter(self, endpoint: str, tenant: str) -> bool:
        """A call that is not blocked goes in; True when it goes as the probe."""
        probed = [hold for hold in self._of(endpoint, tenant) if hold.until is not None]
        for hold in probed:
            hold.probing = True
        return bool(probed)

    def put_probe_down(self, endpoint: str, tenant: str) -> None:
        """The probe told nothing, or never came back: the next call probes again."""
        for hold in self._of(endpoint, tenant):
            hold.probing = False

    def read(self, failure: Failure, endpoint: str, tenant: str) -> Failure:
        """The failure as it must be taken here: the third ambiguous one in a row is misconfigured.

        A code that means both "bad request" and "wrong set-up" counts only while nothing has ever been answered: with
        a wrong set-up nothing can.
        """
        if not failure.ambiguous:
            if (hold := self._holds.get((endpoint, tenant))) is not None:
                hold.ambiguous = 0
            return failure
        if endpoint in self.answered:
            return failure
        hold = self._at(endpoint, tenant)
        hold.ambiguous += 1
        if hold.ambiguous < MISTAKES_IN_A_ROW:
            return failure
        for each in (hold, self._at(endpoint, ALL)):
            each.in_a_row = max(each.in_a_row, MISTAKES_IN_A_ROW - 1)
        return msgspec.structs.replace(failure, kind=FailureKind.MISCONFIGURED, ambiguous=False)

    def record(
        self, failure: Failure | None, endpoint: str, tenant: str, *, probe: bool, now: float
    ) -> tuple[tuple[str | None, ...], bool]:
        """Note how a call ended. (for whom that changed a hold, whether it is held now); while it is, only a probe is believed."""
        if failure is None:
            self.answered[endpoint] = now
            return self._answered(endpoint, tenant, probe=probe), False
        if failure.kind is not FailureKind.MISCONFIGURED:
            if probe:
                self.put_probe_down(endpoint, tenant)
            return (), False
        # For those who are kept out: the provider's words may quote the request of another tenant.
        self.last_mistake = failure.without_text()
        held: list[str | None] = []
        for whom in (tenant, ALL):
            hold = self._at(endpoint, whom)
            if hold.until is not None:
                if probe:
                    hold.probe_failed(tenant, now)
                continue
            hold.note(tenant, now)
            if hold.by_two if whom is ALL else hold.in_a_row >= MISTAKES_IN_A_ROW:
                hold.hold(now, HELD_S[0])
                held.append(whom)
        return tuple(held), True

    def checked(self, failure: Failure, endpoint: str, tenant: str, now: float) -> bool:
        """Our own check of the upstream failed: the hold of this tenant is one for all. True: it was none before.

        An answer to another tenant since then says more than the check: a key may call a model that it may not list.
        """
        own = self._holds.get((endpoint, tenant))
        if own is None or self.answered.get(endpoint, -math.inf) >= own.since:
            return False
        hold = self._at(endpoint, ALL)
        fresh = hold.until is None
        if fresh:
            hold.by.setdefault(tenant, MOST_OF_ONE)
            self.last_mistake = failure.without_text()
            hold.hold(now, HELD_S[0])
        return fresh

    def lift(self) -> bool:
        """An operator has acted, or may have. The next misconfigured answer holds at once."""
        held = any(hold.until is not None for hold in self._holds.values())
        for hold in self._holds.values():
            hold.until, hold.probing = None, False
        return held

    def held(self, tenants: set[str]) -> Hold | None:
        """A hold at some endpoint that keeps out all of these tenants: one for all, or one for each."""
        for (endpoint, whom), hold in self._holds.items():
            if hold.until is None:
                continue
            if whom is ALL or all(
                (other := self._holds.get((endpoint, tenant))) is not None and other.until is not None
                for tenant in tenants
            ):
                return hold
        return None

    def _answered(self, endpoint: str, tenant: str, *, probe: bool) -> tuple[str | None, ...]:
        """It is right for this tenant, and so not wrong for all. Its own hold ends with a probe only: other calls are older."""
        lifted: list[str | None] = []
        for whom in (tenant, ALL):
            hold = self._holds.get((endpoint, whom))
            if hold is None or (hold.until is not None and not probe and whom is not ALL):
                continue
            if hold.until is not None:
                lifted.append(whom)
            del self._holds[endpoint, whom]
        return tuple(lifted)

    def _of(self, endpoint: str, tenant: str) -> list[Hold]:
        found = (self._holds.get((endpoint, whom)) for whom in (ALL, tenant))
        return [hold for hold in found if hold is not None]

    def _at(self, endpoint: str, whom: str | None) -> Hold:
        hold = self._holds.get((endpoint, whom))
        if hold is None:
            hold = self._holds[endpoint, whom] = Hold()
            if len(self._holds) > MAX_TENANTS:
                self._holds.popitem(last=False)
        self._holds.move_to_end((endpoint, whom))
        return hold
