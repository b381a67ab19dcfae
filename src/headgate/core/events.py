"""What happened, as frozen records. Log, metrics, alerts and screens listen to these and to nothing else.

No event carries a prompt, an answer's text or a key: failures are told without their message. Listeners stamp the time.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from headgate.core.answer import Usage
from headgate.core.call import Lane
from headgate.core.failures import Failure
from headgate.core.idempotency import KeyOutcome


class AttemptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """One call to a provider is over; `failure` is None when it succeeded."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    attempt: int
    duration_ms: float
    failure: Failure | None = None
    usage: Usage | None = None
    tenant: str = "local"


class RetryScheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt will be repeated on the same upstream after exactly `delay_ms`."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    attempt: int
    failure: Failure
    delay_ms: float
    tenant: str = "local"


class FellBack(msgspec.Struct, frozen=True, kw_only=True):
    """A request moved on to its model's next upstream."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    next_upstream: str
    reason: str
    tenant: str = "local"


class Hedged(msgspec.Struct, frozen=True, kw_only=True):
    """A slow call got a second attempt; `won`: that one answered first."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    second_upstream: str
    won: bool
    tenant: str = "local"


class Responded(msgspec.Struct, frozen=True, kw_only=True):
    """A request is over: answered (`error` is None) or failed. Cancelled ones are `Cancelled`."""

    request_id: str
    agent_id: str | None
    model: str
    upstream: str | None
    lane: Lane
    attempts: int
    latency_ms: float
    queue_ms: float
    usage: Usage | None = None
    error: str | None = None
    first_token_ms: float | None = None
    """From the request to its first content; only streams have it."""
    cost_usd: float | None = None
    """What the answer cost; None when nobody knows the price."""
    tenant: str = "local"
    upstream_ms: float = 0.0
    """How long providers took, over all attempts."""
    operation: str = "chat"
    """What was asked for, in the words of OpenTelemetry: `chat`, `text_completion` or `embeddings`."""
    origin: str | None = None
    """The HTTP request or the job that it was made for; None when it is that request itself, or was made by neither."""
    of_job: bool = False
    """One of a job's attempts: the job decides what follows."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The caller went away; the provider's call was cancelled with it. No error."""

    request_id: str
    model: str
    lane: Lane
    tenant: str = "local"
    operation: str = "chat"
    origin: str | None = None


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True):
    """A gate's door said no: `reason` is the error code the caller gets if no other upstream takes it."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    lane: Lane
    reason: str
    retry_after_s: float | None = None
    tenant: str = "local"


class HttpAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the API was answered, and no `Responded` says so: it was not itself a call of a model."""

    request_id: str
    status: int
    error: str | None = None
    """As in `Responded`; None also where an application or a route that does not exist answered with 4xx or 5xx."""


class WaitEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A call has waited at a gate, for a millisecond or more: until it got a slot, or in vain."""

    request_ids: tuple[str, ...]
    model: str
    upstream: str
    lane: Lane
    wait_ms: float
    tenant: str = "local"


class GatePaused(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream throttles: no call goes through its gate for `pause_s`; no call of `tenant`, where that is set."""

    upstream: str
    pause_s: float
    tenant: str | None = None


class BreakerChanged(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's breaker opened (again, after each failed probe) or `closed`."""

    upstream: str
    state: str
    retry_in_s: float = 0.0
    tenant: str | None = None
    """Only this tenant's calls are kept out; None: all."""


class UpstreamHeld(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream was found misconfigured (`held`), or works again. Somebody must look."""

    upstream: str
    held: bool
    failure: Failure | None = None
    tenant: str | None = None
    """Only this tenant's calls are held; None: all."""


class ModelPauseChanged(msgspec.Struct, frozen=True, kw_only=True):
    """An operator paused a model (`name/*`: a family), or ended its pause. Told by each process that hears of it."""

    model: str
    paused: bool
    by: str | None = None


class LimitChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of how much an upstream takes: the limit in words; empty: there is none any more."""

    upstream: str
    limit: str
    tenant: str | None = None
    """It bounds only this tenant's calls; None: all."""


class HolderPreempted(msgspec.Struct, frozen=True, kw_only=True):
    """A batch call was cancelled in flight to make room for an interactive one."""

    upstream: str
    request_ids: tuple[str, ...]
    tenant: str = "local"


class KeyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """A request came with an idempotency key. No event carries the key itself."""

    endpoint: str
    outcome: KeyOutcome


class JobAccepted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job is durable; `created` is False when its key or dedup key led to one that was there already."""

    job_id: str
    task: str
    model: str | None
    tenant: str
    created: bool


class JobSettled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt at a job is over and written down: `state` is where the job is now."""

    job_id: str
    task: str
    model: str | None
    tenant: str
    state: str
    attempts: int
    wait_ms: float
    """From the time it was due to its start."""
    run_ms: float
    reason: str | None = None
    """Why it is a dead letter, was skipped or cancelled."""
    failure: str | None = None
    """The class of what went wrong; `deferred` and `crashed` cost no attempt."""


class JobsReplayed(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters were sent back to work."""

    by: str
    count: int
    waited_s: tuple[float, ...] = ()
    """How long each of them had been a dead letter."""
    tenant: str = "local"


class WebhookAttempted(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery was tried: `delivered`, `failed`, `gone` (410), `refused` (its address) or `skipped`."""

    job_id: str
    tenant: str
    attempt: int
    outcome: str
    duration_ms: float


class StoreChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The database stopped working, or works again. Nothing that was accepted is lost meanwhile."""

    store: str
    health: str
    error: str = ""


class StrayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer came for a request nobody waits for: logged, never raised."""

    request_id: str


Event: TypeAlias = (
    AttemptEnded
    | RetryScheduled
    | FellBack
    | Hedged
    | Responded
    | Cancelled
    | RequestRefused
    | HttpAnswered
    | WaitEnded
    | GatePaused
    | BreakerChanged
    | UpstreamHeld
    | ModelPauseChanged
    | LimitChanged
    | HolderPreempted
    | KeyUsed
    | JobAccepted
    | JobSettled
    | JobsReplayed
    | WebhookAttempted
    | StoreChanged
    | StrayAnswer
)
Listener: TypeAlias = Callable[[Event], None]
