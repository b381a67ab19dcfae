"""One call in progress: what it asks for, which way it takes, and what it has been through so far."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.core.answer import Answer
from headgate.core.budget import RetryBudget
from headgate.core.call import Call
from headgate.core.errors import CallFailed, HeadgateError, Refused
from headgate.core.failures import CLOSED
from headgate.core.retry import RetryPolicy

if TYPE_CHECKING:
    from headgate.calls.routes import Route

Announce = Callable[[], Awaitable[None]]
Check = Callable[[Answer], object]
"""Raises ValueError (or returns False) when an answer is not usable; the answer is then generated anew."""


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


class RoutedCall(Call, kw_only=True, eq=False):
    """A call with its route, its one deadline and its account.

    In a micro-batch several calls travel together: then this one carries them, and their ids.
    """

    route: "Route"
    """The model's upstreams, looked up once."""
    request_ids: tuple[str, ...]
    started_at: float
    deadline: float
    since: float
    """From when its waiting counts; a job's call has waited since the job was due."""
    tokens: int = 0
    """Reserved for it."""
    check: Check | None = None
    changes: Iterator[Mapping[str, Any]] | None = None
    """After each answer that cannot be used, the next of these sets other fields."""
    plain: bool = False
    """One whole answer, for which nothing but its deadline has a bound of time."""
    alone: bool = False
    """Never part of a micro-batch."""
    many: tuple[Call, ...] = ()
    """The chats that one call of the provider answers together."""
    origin: str | None = None
    """The HTTP request or the job that it is made for, where that is not the call itself."""
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
    answer_cost_usd: float | None = None
    """What its last answer cost; None when the price is not known."""
    unpriced: int = 0
    """Its answers whose price is not known."""
    queue_s: float = 0.0
    first_token_s: float | None = None
    """How long a stream's first content took, from the start."""
    upstream_s: float = 0.0
    """Spent with providers, and asleep between attempts: what is left of the whole is queueing and our own work."""
    tries: dict[str, int] = msgspec.field(default_factory=dict)
    """Attempts by upstream: a call that is dispatched again goes on where it was."""
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    """Failed attempts that count against it, by upstream."""
    later: dict[str, float] = msgspec.field(default_factory=dict)
    """When each upstream that refused this call may be asked again."""
    finished: dict[str, Setback] = msgspec.field(default_factory=dict)
    """The upstreams that have failed this call for good, and how."""
    admitted: set[str] = msgspec.field(default_factory=set)
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
