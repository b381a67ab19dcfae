"""How much an upstream takes now, judged by what became of the calls that were started there.

A 429 may mean chance, a quota, too many calls in flight, or a closed door, and nothing in it tells which. What tells:
refusals without a gap are a closed door; refusals that come only at high load are a limit; all others are chance, and
chance is the refused call's own affair. So

- a run of refusals too long to be chance **closes** the upstream: nobody starts until a probe passes;
- a **limit** on calls in flight, starts or tokens a second is set where refusals are seen to depend on our load, and
  stays only if it halves their share;
- where the provider tells its **allowance** in headers, no call starts that it would refuse.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Final

from headgate.core.allowance import Allowance, Quotas
from headgate.core.hold import Hold, Holds
from headgate.core.limit import Learning, Limit, Measure, Window
from headgate.core.start import Outcome, Start

CHANCE: Final = 1e-4
"""A run of refusals that chance brings more rarely than this is not chance."""
FIRST_SHARE: Final = 0.12
"""What is taken to be usual before anything is known."""
MIN_SHARE: Final = 0.05
MAX_SHARE: Final = 0.45
MAX_FAILING_SHARE: Final = 0.9
"""Bounds of the usual share of refusals: 4 to 12 throttles in a row close it, 4 to 88 failures."""
RAMP_SHARE: Final = 0.25
"""After it was closed, so much of the calls in flight that are known to pass may start at once."""
GRACE_S: Final = (0.3, 5.0)
"""A refusal returns within this time, or twice as long as recent ones took. A call in flight for longer has passed."""
RELAPSE_S: Final = 60.0
"""A tenant whose calls were not refused for so long is judged with all others again."""
MEMORY: Final = 100
MEMORY_S: Final = 2.0
PROBE_S: Final = (0.25, 5.0)
"""Without a hint a probe goes after a quarter of the time since it closed, within these bounds."""
PROBE_SHARE: Final = 0.25
HINT_SHARE: Final = 0.5
FIRST_PROBE_S: Final = 1.5
EXACT_HINT_S: Final = 3.0
LONGEST_GAP_S: Final = 60.0
"""A hint is for the call that got it; others may pass sooner. The first probe goes after half of it, at most so many seconds;
then the gaps double, up to half of the hint, and a minute at most. A short hint is waited for: it is the rest of a window."""
AGAIN_S: Final = 3.0
"""Closed again so soon after it opened, it is no closed door but a limit."""
FIRST_BURST_S: Final = 0.002
"""Starts are so far apart where more calls are in flight than ever passed: the first refusals of a burst are seen in time."""


@dataclass(frozen=True, slots=True)
class Closed:
    """No call starts before the next probe. `failing`: it fails; else it throttles."""

    failing: bool
    for_s: float
    tenant: str | None = None
    """Only this tenant's calls are kept out; None: all."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A probe has passed; `failed`: it was closed because it failed."""

    failed: bool
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Limited:
    """The limit changed; None: there is none any more."""

    limit: Limit | None
    tenant: str | None = None


News = Closed | Opened | Limited
MAX_TENANTS: Final = 256
"""Of more tenants than this the one that has been idle longest is forgotten."""


class Intake:
    """The calls of one upstream, and what they say about the next.

    What one tenant's calls show holds for that tenant: each whose calls were refused has an intake of its `own`. What
    closes or limits an upstream for all has to be seen by two tenants.
    """

    def __init__(
        self,
        slots: int,
        *,
        learns: bool = True,
        breaks: bool = True,
        longest_hint_s: float = 300.0,
        tenant: str | None = None,  # Whose calls these are; None: all tenants'.
    ) -> None:
        self.slots = slots
        self.tenant = tenant
        self.own: dict[str, Intake] = {}
        """By tenant; only where these are all tenants' calls."""
        self.learns = learns
        self.breaks = breaks
        """Failures close it as throttles do."""
        self.longest_hint_s = longest_hint_s
        self.in_flight = 0
        self.news: list[News] = []
        """Changes that were not reported yet; the gate clears the list."""
        self.until: float | None = None
        """Closed until then; the next call after that is the probe."""
        self.failing = False
        """Why it is closed: it has failed since it closed; else it throttles."""
        self.share = FIRST_SHARE
        """The usual share of refusals."""
        self._pending = 0
        """Refusals since the last answer: they count towards the usual share only if they do not end in closing."""
        self._allowance = Allowance(longest_hint_s)
        self._log: deque[Start] = deque()
        self._window = Window()
        self.learning = Learning(self._log, self._window, self._limit_changed, for_all=tenant is None)
        self._numbers = 0
        self._last_at = -math.inf
        self._grace_s = GRACE_S[0]
        self._closed_at = 0.0
        self._probe: Start | None = None
        self._gap_s = 0.0
        """How long the current probe was waited for."""
        self._passes_s = 0.0
        """A probe that is in flight for so long has passed: twice as long as what closed it took to fail."""
        self._last_prober: str | None = None
        """Whose probe failed last, where others call as well: the next one goes to another tenant first."""
        self._refused_at = -math.inf
        self._last_refused = -1
        """The latest start among those whose refusal closed it."""
        self._ramped_from = -math.inf
        self._first_in_flight = 2.0
        self._highest: float = slots / 4
        """So many calls in flight are known to pass, or taken to."""

    @property
    def probe_needs_s(self) -> float:
        """A probe that has less time left tells nothing; 0 where no probe is needed."""
        return 0.0 if self.until is None else self._grace_s

    @property
    def refused_lately(self) -> float:
        """The share of the last calls that were refused or failed; 0 before the first."""
        ends = [start.outcome for start in self._log if start.outcome not in {None, Outcome.UNKNOWN}]
        return 1 - ends.count(Outcome.ANSWERED) / len(ends) if ends else 0.0

    def inherit(self, other: "Intake") -> None:
        """Keep what was learned about the same upstream before a reload."""
        self.learning.limit, self.share, self.own = other.learning.limit, other.share, other.own.copy()
        for own in self.own.values():
            own.news = self.news

    # ---- Tenants ------------------------------------------------------------------------------------

    def closed_to(self, tenant: str) -> "Intake | None":
        """What keeps calls of this tenant out until a probe has passed: this intake, or its own."""
        if self.until is not None:
            return self
        own = self.own.get(tenant) if self.own else None
        return own if own is not None and own.until is not None else None

    @property
    def closed(self) -> "Intake | None":
        """The same, if it keeps out all tenants that have called lately."""
        if self.until is not None or not self.own:
            return self if self.until is not None else None
        closed = [self.closed_to(tenant) for tenant in self._lately()]
        return closed[-1] if all(closed) and closed else None

    def held(self, holds: Holds) -> Hold | None:
        """A hold that keeps out all tenants that have called lately."""
        return None if holds.quiet else holds.held(set(self._lately()))

    def first_opens_at(self, now: float) -> float:
        """When a call could start of one of the tenants that have called lately."""
        if not self.own:
            return self.opens_at(now, 0)
        return min((self.next_at(now, 0, tenant) for tenant in self._lately()), default=now)

    def limit_of(self, tenant: str) -> Limit | None:
        """What bounds the calls of this tenant."""
        own = self.own.get(tenant) if self.own else None
        return self.learning.limit or (None if own is None else own.learning.limit)

    @property
    def limit(self) -> Limit | None:
        """The limit of all tenants, or of the only one that has called lately."""
        tenants = self._lately()
        return self.limit_of(tenants[0]) if len(tenants) == 1 else self.learning.limit

    def bound(self, measure: Measure, tenant: str) -> float:
        """How much it takes in this measure from this tenant; infinity where that is not known."""
        own = self.own.get(tenant) if self.own else None
        most = self.learning.settled(measure)
        return most if own is None else min(most, own.learning.settled(measure))

    def _lately(self) -> list[str]:
        return list(dict.fromkeys(start.tenant for start in self._log)) or list(self.own)

    def _judge_alone(self, tenant: str, now: float) -> None:
        """A call of this tenant was refused: from now on its calls are judged by themselves, too."""
        own = Intake(
            self.slots,
            learns=self.learns,
            breaks=self.breaks,
            longest_hint_s=self.longest_hint_s,
            tenant=tenant,
        )
        own.news = self.news
        own.share, own._highest, own._grace_s = self.share, self._highest, self._grace_s
        own._numbers, own._last_at = self._numbers, self._last_at
        own._ramped_from, own._first_in_flight = self._ramped_from, self._first_in_flight
        own._refused_at = now
        for start in self._log:
            if start.tenant != tenant:
                continue
            twin = replace(start, own=None)
            own._log.append(twin)
            own._window.trim(twin.at)
            own._window.add(twin)
            if twin.refused:
                own._window.refuse(twin)
            if start.outcome is None:
                own.in_flight += 1
                start.own = own, twin
        own._window.trim(now)
        if len(self.own) >= MAX_TENANTS:
            self._forget(min(self.own, key=lambda name: self.own[name]._last_at))  # noqa: SLF001 - its own kind
        self.own[tenant] = own

    def _forget(self, tenant: str) -> None:
        """What was seen of one tenant's calls goes. Those in flight still end there, which changes nothing."""
        own = self.own.pop(tenant)
        if own.until is not None:
            self.news.append(Opened(own.failing, tenant))
        own.news = []

    # ---- Starts -------------------------------------------------------------------------------------

    def next_at(self, now: float, tokens: float, tenant: str) -> float:
        """When a call of this size and tenant may start, as far as is known; `now` or earlier: at once."""
        opens_at = self.opens_at(now, tokens)
        if self.until is not None and tenant == self._last_prober and self._probe is None:
            opens_at = max(opens_at, self.until + self._gap_s)
        if self.own and (own := self.own.get(tenant)) is not None:
            return max(opens_at, own.opens_at(now, tokens))
        return opens_at

    def opens_at(self, now: float, tokens: float) -> float:
        """The same, as far as it does not depend on the tenant. Time may end a probe here."""
        if self.until is not None:
            if self._probe is None:
                return max(now, self.until)
            passes_at = self._probe.at + self._passes_s
            if now < passes_at:
                return passes_at
            self._open(now)
        ramp_at = self._ramped_at(now)
        if ramp_at > now:
            return ramp_at
        starts_at = self._allowance.next_at(now, tokens) if self._allowance.known else now
        if (limit := self.learning.limit) is None:
            return starts_at
        return max(starts_at, self.learning.starts_at(limit, now, tokens, self.in_flight, self._last_at))

    def _ramped_at(self, now: float) -> float:
        """After it was closed or limited, calls in flight may double every grace time, and start evenly over it."""
        since_s = now - self._ramped_from
        if since_s > 10 * self._grace_s:
            return now if self.in_flight < self._highest else max(now, self._last_at + FIRST_BURST_S)
        most = self._first_in_flight * 2 ** (since_s / self._grace_s)
        if self.in_flight < most:
            return max(now, self._last_at + self._grace_s / most)
        doublings = math.log2((self.in_flight + 1) / self._first_in_flight)
        return self._ramped_from + self._grace_s * doublings + 1e-6

    def start(self, now: float, tokens: float, tenant: str) -> Start:
        self._numbers += 1
        self.in_flight += 1
        start = Start(now, self._numbers, tokens, tenant, probe=self.until is not None)
        window, log = self._window, self._log
        window.trim(now)
        window.add(start)
        start.loads = (window.passed, self.in_flight, window.passed_tokens)
        if start.probe:
            self._probe = start
        if self._allowance.known:
            start.tests_allowance = self._allowance.started(now, tokens)
        if self.own and (own := self.own.get(tenant)) is not None:
            start.own = own, own.start(now, tokens, tenant)
        log.append(start)
        while len(log) > MEMORY and log[0].at < now - MEMORY_S:
            log.popleft()
        self._last_at = now
        return start

    def read(self, start: Start, quotas: Quotas) -> None:
        """The answer to `start` says what is left of the provider's quotas."""
        self._allowance.read(start, quotas, reversed(self._log))

    # ---- Ends ---------------------------------------------------------------------------------------

    def end(self, now: float, start: Start, outcome: Outcome, hint_s: float = 0.0) -> None:
        failed = outcome is Outcome.FAILED or outcome is Outcome.BROKE
        if self.tenant is None:
            if (
                (outcome is Outcome.THROTTLED or (failed and self.breaks))
                and start.tenant not in self.own
                and self.until is None
            ):
                self._judge_alone(start.tenant, now)
            if start.own is not None:
                self._end_own(now, start.own, outcome, hint_s)
        start.outcome = outcome
        self.in_flight -= 1
        if start.tests_allowance:
            self._allowance.tested(now, outcome)
        if outcome is Outcome.UNKNOWN or (failed and not self.breaks):
            if start is self._probe:
                # Nothing is known of it, but it was a call: the next probe waits as long as this one did.
                self._probe, self.until = None, start.at + self._gap_s
            return
        if outcome is Outcome.ANSWERED:
            self._answered(now, start)
        else:
            self._window.refuse(start)
            start.refused = True
            self._allowance.refused(now, start)
            self._refused(now, start, hint_s)
        if self.learns and not failed and self.learning.ended(now, start, self._grace_s):
            # Those who were held back by the limit do not start all at once.
            self._ramp(now, self.in_flight)

    def _end_own(self, now: float, own: "tuple[Intake, Start]", outcome: Outcome, hint_s: float) -> None:
        intake, twin = own
        closed = intake.until is not None
        # What limits all tenants need not be learned for one.
        intake.learns = self.learns and self.learning.limit is None
        intake.end(now, twin, outcome, hint_s)
        if intake.until is not None:
            if not closed:
                self._pending = 0
        elif now - intake._refused_at > RELAPSE_S and intake.learning.limit is None:  # noqa: SLF001 - its own kind
            self.own.pop(twin.tenant, None)

    def _answered(self, now: float, start: Start) -> None:
        # A moving average, after so many refusals and this answer.
        kept = 1 - 1 / MEMORY
        self.share = (1 - (1 - self.share) * kept**self._pending) * kept
        self._pending = 0
        self._highest = max(self._highest, start.loads[Measure.IN_FLIGHT])
        if self.until is not None and start.number > self._last_refused:
            self._open(now)

    def _refused(self, now: float, start: Start, hint_s: float) -> None:
        throttled = start.outcome is Outcome.THROTTLED
        self._refused_at = now
        if start.outcome is not Outcome.BROKE:
            took_s = min(GRACE_S[1], 2 * (now - start.at))
            self._grace_s = max(GRACE_S[0], 0.98 * self._grace_s, took_s)
        if start is self._probe:
            others = any(other.tenant != start.tenant for other in self._log)
            self._last_prober = start.tenant if others else None
            self._close(now, start, hint_s)
        elif self.until is None and not (
            throttled and (limit := self.learning.limit) is not None and limit.explains(start)
        ):
            if start.own is None or start.own[0].until is None:
                self._pending += 1
            run, share, most = self._run(start), self.share, MAX_SHARE
            if not throttled:
                # Failures that closed it before count as well: no quota explains them.
                earlier = sum(other.refused for other in self._log) - len(run)
                share, most = max(share, earlier / len(self._log)), MAX_FAILING_SHARE
            share = min(max(share, MIN_SHARE), most)
            if share ** self._counted(run, share) <= CHANCE:
                if throttled and self.learns and now - self._ramped_from < AGAIN_S:
                    self.learning.closed_again(now, start)
                self._close(now, start, hint_s)

    def _run(self, start: Start) -> list[Start]:
        """Refused starts around this one with no other between them, in order of start; none if a later one was answered.

        Not in order of return: refusals return first.
        """
        run: list[Start] = []
        found = False
        for other in reversed(self._log):
            if other.refused:
                run.append(other)
                found = found or other is start
            elif found:
                break
            elif other.outcome is Outcome.ANSWERED:
                return []
            else:
                run.clear()
        return run if found else []

    def _counted(self, run: list[Start], share: float) -> int:
        """Where all tenants' calls are judged, one tenant counts for at most half of what closes it."""
        if self.tenant is not None:
            return len(run)
        half = math.ceil(math.log(CHANCE) / math.log(share) / 2)
        return sum(min(count, half) for count in Counter(other.tenant for other in run).values())

    # ---- Closed and open ----------------------------------------------------------------------------

    def _close(self, now: float, start: Start, hint_s: float) -> None:
        throttled = start.outcome is Outcome.THROTTLED
        if self.until is None:
            self._closed_at, self.failing, self._passes_s, self._last_prober = now, False, 0.0, None
            for tenant in list(self.own):
                self._forget(tenant)
        closed_s = now - self._closed_at
        if hint_s > 0:
            hint_s = min(hint_s, self.longest_hint_s)
            longest_s = min(hint_s, max(EXACT_HINT_S, HINT_SHARE * hint_s), LONGEST_GAP_S)
            first_s = min(HINT_SHARE * hint_s, FIRST_PROBE_S)
            wait_s = max(PROBE_S[0], min(max(first_s, closed_s), longest_s))
        else:
            wait_s = min(PROBE_S[1], max(PROBE_S[0], PROBE_SHARE * closed_s))
        self.failing = self.failing or not throttled
        self._passes_s, self._pending = max(self._passes_s, self._grace_s, 2 * (now - start.at)), 0
        self.until, self._gap_s, self._probe = now + wait_s, wait_s, None
        self._last_refused = max(self._last_refused, start.number)
        self.news.append(Closed(self.failing, wait_s, self.tenant))

    def _open(self, now: float) -> None:
        self.until, self._probe = None, None
        self._ramp(now, RAMP_SHARE * self._highest)
        self.news.append(Opened(self.failing, self.tenant))

    def _ramp(self, now: float, in_flight: float) -> None:
        self._ramped_from, self._first_in_flight = now, max(2.0, in_flight)

    def _limit_changed(self, limit: Limit | None) -> None:
        if self.tenant is None and limit is not None:
            for own in self.own.values():
                own.learning.limit = None
        self.news.append(Limited(limit, self.tenant))
