"""One call on its way: what it needs from a gate, and what it has been through so far."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from headgate.core.embeddings import EmbeddingRequest, embedding_tokens
from headgate.core.errors import HeadgateError
from headgate.core.messages import Lane, Request, reserve_tokens
from headgate.core.retry import RetryPolicy
from headgate.core.wire import WireRequest, wire_tokens

Announce = Callable[[], Awaitable[None]]

AnyRequest: TypeAlias = Request | EmbeddingRequest | WireRequest
"""What a call may carry. Only the work it does knows which."""


@dataclass(frozen=True, slots=True)
class Setback:
    """One upstream's no. `moves_on` when the model's next upstream may be tried."""

    error: HeadgateError
    moves_on: bool = True
    reason: str = ""


class Call(msgspec.Struct, kw_only=True, eq=False):
    """The envelope of one or more requests that travel together. One deadline over everything."""

    model: str
    request_ids: tuple[str, ...]
    started_at: float
    deadline: float
    since: float
    """From when its waiting counts; a job's call has waited since the job was due."""
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    tokens: int = 0
    origin: str | None = None
    """The HTTP request or the job that it is made for, where that is not the request it carries."""
    policy: RetryPolicy | None = None
    """Overrides the model's own policy; a job's calls are single attempts."""
    announce: Announce | None = None
    """Called once, before anything is sent; what it raises is the caller's to hear, not the upstream's fault."""
    goes_back: bool = False
    """A job's call: preempted, it does not come back to the gate by itself, its job does."""
    repeats: bool = False
    """A job's later attempt: it pays from the budget like any other retry."""
    attempts: int = 0
    """Provider calls made, over all upstreams."""
    cost_usd: float = 0.0
    """What its answers cost, the unusable ones too, as far as their price is known."""
    unpriced: int = 0
    """Its answers whose price is not known."""
    queue_s: float = 0.0
    first_token_s: float | None = None
    """How long a stream's first content took, from the start."""
    upstream_s: float = 0.0
    """Spent with providers, and asleep between attempts: what is left of the whole is queueing and our own work."""
    tries: dict[str, int] = {}
    """Attempts that count, by upstream: a call that is dispatched again goes on where it was."""
    finished: dict[str, Setback] = {}
    """The upstreams that have failed this call for good, and how."""
    prepaid: float = 0.0
    """A retry's price already taken from the budget by whoever sent the call again."""

    @classmethod
    def of(
        cls, request: AnyRequest, *, started_at: float, deadline: float, policy: RetryPolicy | None = None
    ) -> "Call":
        return cls(
            model=request.model,
            request_ids=(request.id,),
            started_at=started_at,
            deadline=deadline,
            since=started_at,
            lane=request.lane,
            tenant=request.tenant,
            tokens=_tokens(request),
            policy=policy,
        )


def _tokens(request: AnyRequest) -> int:
    match request:
        case WireRequest():
            return wire_tokens(request)
        case EmbeddingRequest():
            return embedding_tokens(request)
        case _:
            return reserve_tokens(request)
