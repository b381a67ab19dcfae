"""Whether an upstream may be called at all: the breaker for outages, the hold for an operator's mistake.

Only transient failures move the breaker; only misconfigured ones move the hold. All else is neutral: a
provider that answers "your request is wrong" or "slow down" is alive.
"""

import enum
from collections import deque
from dataclasses import dataclass
from typing import Final

from headgate.core.failures import Failure, FailureKind
from headgate.core.probation import Probation

FAILURES_IN_A_ROW: Final = 5
WINDOW_S: Final = 30
FEWEST_SAMPLES: Final = 20
FAILED_SHARE: Final = 0.5
OPEN_S: Final = (5.0, 15.0)
MISTAKES_IN_A_ROW: Final = 3
HELD_S: Final = (30.0, 300.0)


class Change(enum.StrEnum):
    """What a recorded result changed; the caller tells the listeners."""

    OPENED = "open"
    CLOSED = "closed"
    HELD = "held"
    RELEASED = "released"


class Condition(enum.StrEnum):
    """How an upstream is, as far as its last calls have shown."""

    OK = "ok"
    OPEN = "open"
    """Its breaker is open, or a probe is on its way."""
    HELD = "held"
    """It is misconfigured."""


@dataclass(frozen=True, slots=True)
class Block:
    """Why nobody may pass, and when the next probe goes."""

    kind: FailureKind
    until: float


class Breaker:
    """Opens at five transient failures in a row, or at half of twenty or more within thirty seconds."""

    __slots__ = ("_failed", "_in_a_row", "_seconds", "_succeeded", "probation")

    def __init__(self) -> None:
        self.probation = Probation(*OPEN_S)
        self._in_a_row = 0
        self._succeeded = 0
        self._failed = 0
        self._seconds: deque[list[int]] = deque()
        """[second, successes, failures], oldest first."""

    def record(self, *, failed: bool, now: float) -> bool:
        """Note a result; True when the breaker must open."""
        self._count(failed=failed, now=now)
        self._in_a_row = self._in_a_row + 1 if failed else 0
        total = self._succeeded + self._failed
        return failed and (
            self._in_a_row >= FAILURES_IN_A_ROW
            or (total >= FEWEST_SAMPLES and self._failed >= FAILED_SHARE * total)
        )

    def forget(self) -> None:
        self._in_a_row = self._succeeded = self._failed = 0
        self._seconds.clear()

    def _count(self, *, failed: bool, now: float) -> None:
        second = int(now)
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            _, succeeded, failures = self._seconds.popleft()
            self._succeeded -= succeeded
            self._failed -= failures
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        self._seconds[-1][2 if failed else 1] += 1
        if failed:
            self._failed += 1
        else:
            self._succeeded += 1


class Hold:
    """Holds an upstream back after three misconfigured answers in a row.

    A code that means both "bad request" and "wrong set-up" counts as misconfigured only while nothing
    has ever succeeded: with a wrong set-up nothing can.
    """

    __slots__ = ("_ambiguous", "_ever_succeeded", "_in_a_row", "probation")

    def __init__(self) -> None:
        self.probation = Probation(*HELD_S)
        self._in_a_row = 0
        self._ambiguous = 0
        self._ever_succeeded = False

    def succeeded(self) -> None:
        self._ever_succeeded = True
        self._in_a_row = self._ambiguous = 0

    def read(self, failure: Failure) -> Failure:
        """The failure as it must be taken here: the third ambiguous one in a row is misconfigured."""
        if not failure.ambiguous:
            self._ambiguous = 0
            return failure
        if self._ever_succeeded:
            return failure
        self._ambiguous += 1
        if self._ambiguous < MISTAKES_IN_A_ROW:
            return failure
        self._in_a_row = MISTAKES_IN_A_ROW - 1
        return Failure(
            kind=FailureKind.MISCONFIGURED,
            message=failure.message,
            status=failure.status,
            code=failure.code,
        )

    def failed(self) -> bool:
        """Note a misconfigured answer; True when the upstream must be held."""
        self._in_a_row += 1
        return self._in_a_row >= MISTAKES_IN_A_ROW


class Health:
    """The breaker and the hold of one upstream, asked and told together."""

    __slots__ = ("breaker", "breaker_on", "clear", "hold", "last_mistake")

    def __init__(self, *, breaker: bool = True) -> None:
        self.breaker = Breaker()
        self.breaker_on = breaker
        self.hold = Hold()
        self.clear = True
        """Nothing blocks and nothing is on probation: the fast answer for the hot path."""
        self.last_mistake: Failure | None = None
        """What the upstream said when it was last found misconfigured: shown to whoever is kept out."""

    @property
    def condition(self) -> Condition:
        if self.hold.probation.active:
            return Condition.HELD
        return Condition.OPEN if self.breaker.probation.active else Condition.OK

    def block(self, now: float) -> Block | None:
        if self.clear:
            return None
        for probation, kind in (
            (self.hold.probation, FailureKind.MISCONFIGURED),
            (self.breaker.probation, FailureKind.TRANSIENT),
        ):
            if probation.blocks(now):
                return Block(kind, max(now, probation.until or now))
        return None

    def enter(self) -> bool:
        """A caller that is not blocked goes in; True when it goes as the probe."""
        if self.clear:
            return False
        for probation in (self.hold.probation, self.breaker.probation):
            if probation.active:
                probation.send_probe()
        return True

    def read(self, failure: Failure) -> Failure:
        return self.hold.read(failure)

    def record(self, failure: Failure | None, *, probe: bool, now: float) -> tuple[Change, ...]:
        """Note how a call ended. While on probation only the probe is believed."""
        if not self.clear and not probe:
            return ()
        changes = self._record(failure, probe=probe, now=now)
        self.clear = not (self.hold.probation.active or self.breaker.probation.active)
        return changes

    def _record(self, failure: Failure | None, *, probe: bool, now: float) -> tuple[Change, ...]:
        if failure is None:
            self.hold.succeeded()
            self.breaker.record(failed=False, now=now)
            return self._end_probation() if probe else ()
        if failure.kind is FailureKind.MISCONFIGURED:
            self.last_mistake = failure
            return self._misconfigured(probe=probe, now=now)
        if failure.kind is FailureKind.TRANSIENT and self.breaker_on:
            return self._transient(probe=probe, now=now)
        if probe:
            self.abandon_probe()
        return ()

    def _misconfigured(self, *, probe: bool, now: float) -> tuple[Change, ...]:
        probation = self.hold.probation
        if probe:
            self.breaker.probation.probe_told_nothing()
        if probe and probation.active:
            probation.probe_failed(now)
        elif self.hold.failed():
            probation.start(now)
            return (Change.HELD,)
        return ()

    def _transient(self, *, probe: bool, now: float) -> tuple[Change, ...]:
        probation = self.breaker.probation
        if probe:
            self.hold.probation.probe_told_nothing()
        if probe and probation.active:
            probation.probe_failed(now)
            return (Change.OPENED,)
        if self.breaker.record(failed=True, now=now):
            probation.start(now)
            return (Change.OPENED,)
        return ()

    def lift_hold(self) -> bool:
        """An operator has fixed the mistake: calls go through again. The next misconfigured answer holds at once."""
        if not self.hold.probation.active:
            return False
        self.hold.probation.end()
        self.clear = not self.breaker.probation.active
        return True

    def abandon_probe(self) -> None:
        """The probe ended neutrally or never came back: the next caller probes again."""
        self.hold.probation.probe_told_nothing()
        self.breaker.probation.probe_told_nothing()

    def _end_probation(self) -> tuple[Change, ...]:
        ended = ((self.hold.probation, Change.RELEASED), (self.breaker.probation, Change.CLOSED))
        changes = tuple(change for probation, change in ended if probation.active)
        self.hold.probation.end()
        self.breaker.probation.end()
        self.breaker.forget()
        return changes
