"""One call on its way: what it needs from a gate, and what it has been through so far."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from headgate.core.budget import RetryBudget
from headgate.core.embeddings import EmbeddingRequest, embedding_tokens
from headgate.core.errors import CallFailed, HeadgateError, Refused
from headgate.core.failures import CLOSED
from headgate.core.messages import Lane, Request, reserve_tokens
from headgate.core.retry import RetryPolicy
from headgate.core.ticket import CHAT
from headgate.core.wire import Endpoint, WireRequest, wire_tokens

Announce = Callable[[], Awaitable[None]]

AnyRequest: TypeAlias = Request | EmbeddingRequest | WireRequest
"""What a call may carry. Only the work it does knows which."""


@dataclass(frozen=True, slots=True)
class Setback:
    """One upstream's no. `moves_on` when the model's next upstream may be tried."""

    error: HeadgateError
    moves_on: bool = True
    reason: str = ""

    @property
    def refused(self) -> bool:
        """It was not called, or asked to wait: that says nothing of the call."""
        if isinstance(self.error, CallFailed):
            return self.error.failure.code == CLOSED
        return isinstance(self.error, Refused)


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
    endpoint: str = CHAT
    """What is asked of the model: a hold applies to one endpoint."""
    tokens: int = 0
    size_bytes: int = 0
    """Of the body that is kept while it waits."""
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
    waits: bool = True
    """Waits while an upstream is closed; else it is refused."""
    tries: dict[str, int] = {}
    """Attempts by upstream: a call that is dispatched again goes on where it was."""
    faults: dict[str, int] = {}
    """Failed attempts that count against it, by upstream."""
    later: dict[str, float] = {}
    """When each upstream that refused this call may be asked again."""
    finished: dict[str, Setback] = {}
    """The upstreams that have failed this call for good, and how."""
    admitted: set[str] = set()
    """The upstreams that have let it in to wait or to call: it does not count against their depth again."""
    prepaid: RetryBudget | None = None
    """The budget that has paid for its next attempt."""
    spend: Callable[[int], None] | None = None
    """Takes tokens off what its caller's access key may use, where that is limited."""

    def lose(self) -> None:
        """It was sent and ended without a count of its tokens: the provider may have worked, so the estimate counts."""
        if self.spend is not None:
            self.spend(self.tokens)

    def give_back(self) -> None:
        """A retry that was paid for but never sent costs nothing."""
        if self.prepaid is not None:
            self.prepaid.give_back()
            self.prepaid = None

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
            endpoint=_endpoint(request),
            tokens=_tokens(request),
            size_bytes=request.size_bytes if isinstance(request, WireRequest) else 0,
            policy=policy,
            waits=not isinstance(request, WireRequest) or request.wait,
        )


def _endpoint(request: AnyRequest) -> str:
    match request:
        case WireRequest(endpoint=endpoint):
            return endpoint.value
        case EmbeddingRequest():
            return Endpoint.EMBEDDINGS.value
        case _:
            return CHAT


def _tokens(request: AnyRequest) -> int:
    match request:
        case WireRequest():
            return wire_tokens(request)
        case EmbeddingRequest():
            return embedding_tokens(request)
        case _:
            return reserve_tokens(request)
