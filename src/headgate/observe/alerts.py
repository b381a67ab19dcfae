"""Alerts: counts events as they come, judges every few seconds, tells of each incident once.

Telling is one line in the log and one webhook when it fires, and the same when it clears. Each process judges what it sees.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from headgate.core import events
from headgate.core.alert_rules import FEWEST_SAMPLES, HOUR_S, RATES_S, REPEATS, AlertRules, Rule, words
from headgate.core.alerts import Alert, Board, Reading
from headgate.core.errors import HeadgateError
from headgate.core.job import JobState, Reason
from headgate.core.outcomes import Outcome, outcome_of, outcome_of_answer
from headgate.core.ports.clock import Clock
from headgate.core.sliding import Key, SlidingTally
from headgate.observe.alert_sources import Sources
from headgate.observe.loop_lag import LoopLag

logger = logging.getLogger("headgate")
JUDGE_EVERY_S: Final = 5.0
LOOK_EVERY_S: Final = 30.0
MOST_REMEMBERED: Final = 100
_OURS: Final = "headgate."
STEPS: Final = 200
"""Into how many a latency is divided until it is e times as long: each is off by a quarter of a percent at most."""
_BAD_OUTCOMES: Final[Mapping[Rule, tuple[Outcome, ...]]] = {
    Rule.REJECTIONS: (Outcome.REFUSED,),
    Rule.ERRORS: (Outcome.FAILED, Outcome.INTERNAL),
    Rule.SERVER_ERRORS: (Outcome.INTERNAL,),
}
_DONE: Final = frozenset({JobState.COMPLETED, JobState.SKIPPED, JobState.DEAD_LETTER})
Send = Callable[..., Awaitable[object]]
"""`gateway.webhooks.alert`."""


class Counts:
    """What was heard within the last minutes, and of dead letters within the last hour."""

    def __init__(self, now: Callable[[], float], *, time_answers: bool) -> None:
        self._now = now
        self._requests = SlidingTally[Outcome](RATES_S)
        self._latencies = SlidingTally[int](RATES_S) if time_answers else None
        self._dead = SlidingTally[str](HOUR_S)
        self._retried = SlidingTally[bool](RATES_S)
        """True: it failed all the same."""
        self._keys = SlidingTally[str](RATES_S)
        self._delays = SlidingTally[str](RATES_S)
        """Of `jobs`, and of the `ms` from due to done of all of them."""
        self.hearers: Mapping[type, Callable[[Any], None]] = {
            events.Responded: self._responded,
            events.KeyUsed: self._key_used,
            events.JobSettled: self._job_settled,
            events.HttpAnswered: self._http_answered,
        }

    def readings(self, now: float, *, newly_dead: int, oldest_due_s: float | None) -> Iterator[Reading]:
        """With what the database says: of dead letters elsewhere, and of jobs that nobody does."""
        yield Reading(Rule.DEAD_LETTERS, max(self._dead.counts(now).total(), newly_dead))
        yield from _shares(self._retried.counts(now), {Rule.RETRY_FAILURES: (True,)})
        yield from _shares(self._keys.counts(now), {Rule.DUPLICATE_KEYS: REPEATS})
        delays = self._delays.counts(now)
        if delays["jobs"] >= FEWEST_SAMPLES:
            yield Reading(Rule.JOB_DELAY, delays["ms"] / 1000 / delays["jobs"])
        elif oldest_due_s is not None:
            yield Reading(Rule.JOB_DELAY, oldest_due_s)
        yield from _shares(self._requests.counts(now), _BAD_OUTCOMES)
        if self._latencies is not None:
            steps = self._latencies.counts(now)
            if steps.total() >= FEWEST_SAMPLES:
                yield Reading(Rule.LATENCY, _percentile_s(steps, 0.99))

    def _responded(self, event: events.Responded) -> None:
        now = self._now()
        if event.attempts > 1:
            self._retried.add(now, event.error is not None)
        # Attempts of jobs are left out: a job waits and tries again.
        if event.of_job:
            return
        # The request of an application counts itself, however many calls it makes.
        if event.origin is None:
            self._requests.add(now, outcome_of(event.error))
        if self._latencies is not None and event.error is None:
            self._latencies.add(now, _step(event.latency_ms / 1000))

    def _http_answered(self, event: events.HttpAnswered) -> None:
        self._requests.add(self._now(), outcome_of_answer(event.status, event.error))

    def _key_used(self, event: events.KeyUsed) -> None:
        self._keys.add(self._now(), event.outcome)

    def _job_settled(self, event: events.JobSettled) -> None:
        if event.state not in _DONE:
            return
        dead, now = event.state == JobState.DEAD_LETTER, self._now()
        if dead:
            self._dead.add(now, event.state)
        if event.attempts > 1:
            self._retried.add(now, dead)
        # Headgate's own jobs run for as long as what they watch over; an expired one was never done.
        if not event.task.startswith(_OURS) and event.reason != Reason.EXPIRED:
            self._delays.add(now, "jobs")
            self._delays.add(now, "ms", round(event.wait_ms + event.run_ms))


def _shares(counts: Counter[Key], bad: Mapping[Rule, Iterable[Key]]) -> Iterator[Reading]:
    if (total := counts.total()) >= FEWEST_SAMPLES:
        for rule, keys in bad.items():
            yield Reading(rule, sum(counts[key] for key in keys) / total)


def _step(seconds: float) -> int:
    """The hundredths and less that do not matter are left out, so that equal latencies are counted together."""
    return round(math.log(max(seconds, 0.001)) * STEPS)


def _percentile_s(steps: Counter[int], share: float) -> float:
    left = share * steps.total()
    for step in sorted(steps):
        left -= steps[step]
        if left <= 0:
            break
    return math.exp(step / STEPS)


class Alerts:
    """`gateway.listen(alerts)`, `alerts.start()`; then `active()` and `recent()` say how things stand."""

    def __init__(self, rules: AlertRules, sources: Sources, *, send: Send, clock: Clock) -> None:
        self._sources = sources
        self._send = send
        self._clock = clock
        self._counts = Counts(clock.now, time_answers=rules.latency_p99_s is not None)
        self._lag = LoopLag(clock)
        self._board = Board(rules.levels(), words)
        self._over: deque[Alert] = deque(maxlen=MOST_REMEMBERED)
        self._unsent: deque[Alert] = deque(maxlen=MOST_REMEMBERED)
        self._looked_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    def __call__(self, event: events.Event) -> None:
        hearer = self._counts.hearers.get(type(event))
        if hearer is not None:
            hearer(event)

    def active(self) -> Sequence[Alert]:
        """The incidents that are not over, in the order they fired."""
        return self._board.active

    def recent(self) -> Sequence[Alert]:
        """Those that are over, the latest first."""
        return tuple(reversed(self._over))

    @property
    def loop_lag_s(self) -> float:
        """How late a timer was at worst within the last minute."""
        return self._lag.worst_s

    def start(self) -> None:
        self._lag.start()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="headgate alerts")

    async def aclose(self) -> None:
        await self._lag.aclose()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(JUDGE_EVERY_S)
            try:
                await self._round()
            except Exception:
                # Alerts that died unseen would be worse than none.
                logger.exception("alerts: a round failed; the next one is tried")

    async def _round(self) -> None:
        if self._clock.now() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock.now()
            await self._sources.look()
        self._judge()
        await self._send_all()

    def _judge(self) -> None:
        now, sources = self._clock.now(), self._sources
        counted = self._counts.readings(now, newly_dead=sources.newly_dead, oldest_due_s=sources.oldest_due_s)
        readings = [*sources.readings(now), *counted, Reading(Rule.LOOP_LAG, self._lag.worst_s)]
        for alert in self._board.judge(readings, self._clock.utc().timestamp()):
            if alert.cleared_at is None:
                logger.warning(
                    "alert rule=%s subject=%s: %s", alert.rule, alert.subject or "-", alert.message
                )
            else:
                self._over.append(alert)
                logger.info("alert cleared rule=%s subject=%s", alert.rule, alert.subject or "-")
            self._unsent.append(alert)

    async def _send_all(self) -> None:
        """In their order. What a database that is away does not take goes out when it is back."""
        while self._unsent:
            alert = self._unsent[0]
            try:
                await self._send(alert.rule, fired=alert.cleared_at is None, data=told(alert))
            except HeadgateError as error:
                logger.debug("alerts: a webhook waits: %s", error)
                return
            self._unsent.popleft()


def told(alert: Alert) -> dict[str, Any]:
    """An alert as it goes out, with its moments as people read them."""
    return {
        "rule": alert.rule,
        "subject": alert.subject,
        "message": alert.message,
        "value": alert.value,
        "threshold": alert.threshold,
        "fired_at": datetime.fromtimestamp(alert.fired_at, UTC),
        "cleared_at": None if alert.cleared_at is None else datetime.fromtimestamp(alert.cleared_at, UTC),
    }
