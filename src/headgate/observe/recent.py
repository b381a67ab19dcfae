"""The last calls, for whoever asks what became of one: metadata only, never a prompt or an answer.

Events are kept as they come and put together when somebody asks: a call pays for two appends.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from headgate.core.answer import Usage
from headgate.core.call import Lane
from headgate.core.errors import Draining, UnknownRequest
from headgate.core.events import (
    AttemptEnded,
    Cancelled,
    Event,
    RequestRefused,
    Responded,
    RetryScheduled,
)
from headgate.core.outcomes import REFUSED

MOST_KEPT: Final = 10_000
MOST_STEPS: Final = 100
"""What is kept of one call: attempts, waits and refusals together."""
MOST_OPEN: Final = 20_000
"""Calls that have begun and not ended; held slots never end as one call."""
Step: TypeAlias = AttemptEnded | RetryScheduled | RequestRefused
End: TypeAlias = Responded | Cancelled
REFUSALS: Final = REFUSED | {Draining.code}
_Kept: TypeAlias = tuple[datetime, End, Sequence[Step]]
"""When it ended, how, and what came before. A plain tuple: it is made once for every call."""


class Status(enum.StrEnum):
    """How a call ended. `refused`: there was no room for it, and later there may be."""

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


class AttemptStory(msgspec.Struct, frozen=True, kw_only=True):
    """One call to a provider."""

    upstream: str
    attempt: int
    duration_ms: float
    error: str | None
    """Class, status and the provider's code; None when it succeeded."""
    wait_ms: float | None = None
    """Slept afterwards, before the next one at the same upstream."""


class RefusalStory(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that did not let the call in."""

    upstream: str
    reason: str
    retry_after_s: float | None


class RequestStory(msgspec.Struct, frozen=True, kw_only=True):
    """One call from end to end, or several that were made for one request. Cancelled ones have no times."""

    object: str = "request"
    id: str
    tenant: str
    model: str
    upstream: str | None = None
    lane: Lane
    status: Status
    error: str | None = None
    agent_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime
    latency_ms: float | None = None
    queue_ms: float | None = None
    first_token_ms: float | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    attempts: tuple[AttemptStory, ...]
    refusals: tuple[RefusalStory, ...]
    origin: str | None = None
    """The HTTP request or the job that the call was made for, where it is another."""
    calls: tuple[str, ...] = ()
    """The ids of the calls that were made for this request, oldest first; none for a call itself."""


class RecentRequests:
    """`gateway.listen(recent)`, then ask. `tenant=None` sees everybody's."""

    def __init__(self, utc: Callable[[], datetime], most: int = MOST_KEPT) -> None:
        self._utc = utc
        self._open: dict[str, list[Step]] = {}
        self._kept: deque[_Kept] = deque(maxlen=most)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is AttemptEnded or kind is RetryScheduled or kind is RequestRefused:
            self._note(event)  # type: ignore[arg-type]  # `isinstance` costs several times as much here
        elif kind is Responded or kind is Cancelled:
            self._kept.append((self._utc(), event, self._open.pop(event.request_id, ())))  # type: ignore[arg-type, union-attr]

    def get(self, request_id: str, *, tenant: str | None) -> RequestStory:
        """One call by its id, or all that were made for one HTTP request or one job, by that one's.

        Raises UnknownRequest for what is not known any more, never was, or is another tenant's.
        """
        calls = []
        for kept in self._of(tenant):
            if kept[1].request_id == request_id:
                return _story(kept)
            if kept[1].origin == request_id:
                calls.append(_story(kept))
        if calls:
            return _together(request_id, calls[::-1])
        raise UnknownRequest(request_id)

    def list(
        self,
        *,
        tenant: str | None,
        model: str | None = None,
        status: Status | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> "list[RequestStory]":
        """The latest end first. After one that is forgotten there is nothing: all before it is forgotten, too."""
        found = self._of(tenant)
        if after is not None:
            # Read up to that one, which is all that this does.
            any(end.request_id == after for _, end, _ in found)
        fitting = (
            kept
            for kept in found
            if (model is None or kept[1].model == model) and (status is None or _status(kept[1]) is status)
        )
        return [_story(kept) for kept in islice(fitting, limit)]

    def models(self, tenant: str) -> frozenset[str]:
        """The models of a tenant's calls."""
        return frozenset(end.model for _, end, _ in self._of(tenant))

    def _note(self, event: Step) -> None:
        for request_id in event.request_ids:
            steps = self._open.get(request_id)
            if steps is None:
                self._open[request_id] = [event]
                if len(self._open) > MOST_OPEN:
                    del self._open[next(iter(self._open))]
            elif len(steps) < MOST_STEPS:
                steps.append(event)

    def _of(self, tenant: str | None) -> Iterator[_Kept]:
        return (kept for kept in reversed(self._kept) if tenant is None or kept[1].tenant == tenant)


def _status(end: End) -> Status:
    if isinstance(end, Cancelled):
        return Status.CANCELLED
    if end.error is None:
        return Status.OK
    return Status.REFUSED if end.error in REFUSALS else Status.FAILED


def _story(kept: _Kept) -> RequestStory:
    at, end, steps = kept
    story = RequestStory(
        id=end.request_id,
        tenant=end.tenant,
        model=end.model,
        lane=end.lane,
        status=_status(end),
        ended_at=at,
        origin=end.origin,
        attempts=tuple(_attempts(steps)),
        refusals=tuple(
            RefusalStory(upstream=step.upstream, reason=step.reason, retry_after_s=step.retry_after_s)
            for step in steps
            if isinstance(step, RequestRefused)
        ),
    )
    if isinstance(end, Cancelled):
        return story
    return msgspec.structs.replace(
        story,
        upstream=end.upstream,
        error=end.error,
        agent_id=end.agent_id,
        started_at=at - timedelta(milliseconds=end.latency_ms),
        latency_ms=end.latency_ms,
        queue_ms=end.queue_ms,
        first_token_ms=end.first_token_ms,
        usage=end.usage,
        cost_usd=end.cost_usd,
    )


def _together(request_id: str, calls: Sequence[RequestStory]) -> RequestStory:
    """Sums of the calls, and the end of the last one. Attempts are numbered over all of them."""
    attempts = [attempt for call in calls for attempt in call.attempts]
    return msgspec.structs.replace(
        calls[-1],
        id=request_id,
        origin=None,
        calls=tuple(call.id for call in calls),
        started_at=min((call.started_at for call in calls if call.started_at), default=None),
        latency_ms=_sum(call.latency_ms for call in calls),
        queue_ms=_sum(call.queue_ms for call in calls),
        first_token_ms=calls[0].first_token_ms,
        usage=_usage(call.usage for call in calls),
        cost_usd=_sum(call.cost_usd for call in calls),
        attempts=tuple(
            msgspec.structs.replace(attempt, attempt=number) for number, attempt in enumerate(attempts, 1)
        ),
        refusals=tuple(refusal for call in calls for refusal in call.refusals),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _usage(usages: Iterable[Usage | None]) -> Usage | None:
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    return Usage(
        sum(usage.input_tokens for usage in known),
        sum(usage.output_tokens for usage in known),
        estimated=any(usage.estimated for usage in known),
    )


def _attempts(steps: Sequence[Step]) -> Iterator[AttemptStory]:
    waits = {
        (step.upstream, step.attempt): step.delay_ms for step in steps if isinstance(step, RetryScheduled)
    }
    for step in steps:
        if isinstance(step, AttemptEnded):
            yield AttemptStory(
                upstream=step.upstream,
                attempt=step.attempt,
                duration_ms=step.duration_ms,
                error=None if step.failure is None else step.failure.error,
                wait_ms=waits.get((step.upstream, step.attempt)),
            )
