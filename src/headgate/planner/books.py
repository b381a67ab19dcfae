"""The books of one run: every item from its arrival to its end, and every call, retry, refusal and pause on the way."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headgate.core import events
from headgate.core.call import Lane
from headgate.core.failures import FailureKind
from headgate.core.job import JobState
from headgate.core.job_rules import DEFERRED

ANSWERED: Final = "answered"
REFUSED: Final = "refused"
EXPIRED: Final = "expired"
FAILED: Final = "failed"
DEAD: Final = "dead letters"
UNFINISHED: Final = "unfinished"
LIVING: Final = frozenset({str(JobState.PENDING), str(JobState.RUNNING)})


@dataclass(slots=True)
class Item:
    """One call or job: when it came, when its last provider call began, when and how it ended."""

    lane: Lane
    arrived_at: float
    hurried: bool = False
    """It has a deadline of its own."""
    called_at: float = math.nan
    ended_at: float = math.nan
    end: str = UNFINISHED

    @property
    def wait_s(self) -> float:
        """From its arrival to the beginning of the call that answered it."""
        return self.called_at - self.arrived_at

    @property
    def took_s(self) -> float:
        """From its arrival to its end."""
        return self.ended_at - self.arrived_at


@dataclass
class UpstreamBooks:
    """What one upstream did."""

    calls: int = 0
    throttled: int = 0
    """Of these, answered with 429."""
    busy_s: float = 0.0
    tokens: int = 0
    answered: int = 0
    paused_s: float = 0.0
    paused_until: float = 0.0
    open_s: float = 0.0
    opened_at: float = math.nan


@dataclass
class Books:
    """A listener like any other, and the place where callers and tasks note how they fared."""

    now: Callable[[], float]
    expected: int
    items: list[Item] = field(default_factory=list)
    upstreams: dict[str, UpstreamBooks] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    """What callers were told, by its code: one that comes back may be refused often."""
    retries: int = 0
    fallbacks: int = 0
    put_back: int = 0
    """Jobs that went back to waiting and lost no attempt."""
    cost_usd: float | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _jobs: dict[str, Item] = field(default_factory=dict)
    _requests: dict[str, Item] = field(default_factory=dict)
    _called_at: dict[str, float] = field(default_factory=dict)
    _ended: int = 0

    def arrive(self, lane: Lane, *, hurried: bool = False) -> Item:
        item = Item(lane, self.now(), hurried)
        self.items.append(item)
        return item

    def end(self, item: Item, how: str) -> None:
        """An item is over. Only its first end counts: a dead letter may be revived, much later."""
        if item.end == UNFINISHED:
            item.end, item.ended_at = how, self.now()
            self._ended += 1
            if self._ended == self.expected:
                self.finished.set()

    def called(self, item: Item, request_id: str) -> None:
        """The item was answered by this request."""
        item.called_at = self._called_at.pop(request_id, self.now())

    def own_job(self, job_id: str, item: Item) -> None:
        self._jobs[job_id] = item

    def own_request(self, request_id: str, item: Item) -> None:
        """Of those whose answers are handed out together: each ends when it is answered."""
        self._requests[request_id] = item

    def hear(self, event: events.Event) -> None:
        match event:
            case events.AttemptEnded():
                self._attempt(event)
            case events.Responded():
                self._responded(event)
            case events.RetryScheduled():
                self.retries += 1
            case events.FellBack():
                self.fallbacks += 1
            case events.GatePaused(upstream=name, pause_s=pause_s):
                self._pause(self._of(name), pause_s)
            case events.BreakerChanged(upstream=name, state=state):
                self._breaker(self._of(name), state)
            case events.JobSettled():
                self._settled(event)
            case _:
                pass

    def _responded(self, event: events.Responded) -> None:
        if event.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + event.cost_usd
        if event.error is None and (item := self._requests.get(event.request_id)) is not None:
            self.called(item, event.request_id)
            self.end(item, ANSWERED)

    def _of(self, upstream: str) -> UpstreamBooks:
        return self.upstreams.setdefault(upstream, UpstreamBooks())

    def _attempt(self, event: events.AttemptEnded) -> None:
        upstream, duration_s = self._of(event.upstream), event.duration_ms / 1000
        upstream.calls += 1
        upstream.busy_s += duration_s
        upstream.tokens += event.usage.total_tokens if event.usage is not None else 0
        upstream.throttled += event.failure is not None and event.failure.kind is FailureKind.THROTTLED
        if event.failure is None:
            upstream.answered += 1
            self._called_at[event.request_ids[0]] = self.now() - duration_s

    def _pause(self, upstream: UpstreamBooks, pause_s: float) -> None:
        """Pauses overlap: only what is new of each counts."""
        until = self.now() + pause_s
        upstream.paused_s += max(0.0, until - max(self.now(), upstream.paused_until))
        upstream.paused_until = max(upstream.paused_until, until)

    def _breaker(self, upstream: UpstreamBooks, state: str) -> None:
        if state == "closed" and not math.isnan(upstream.opened_at):
            upstream.open_s += self.now() - upstream.opened_at
            upstream.opened_at = math.nan
        elif state != "closed" and math.isnan(upstream.opened_at):
            upstream.opened_at = self.now()

    def _settled(self, event: events.JobSettled) -> None:
        if event.state in LIVING:
            self.put_back += event.failure == DEFERRED
            self.retries += event.failure != DEFERRED
        elif (item := self._jobs.get(event.job_id)) is not None:
            self.end(item, ANSWERED if event.state == JobState.COMPLETED else DEAD)
