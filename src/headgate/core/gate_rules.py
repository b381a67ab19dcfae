"""What a gate is told and what it tells: its rules, its refusals, its status."""

import enum
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headgate.core.pacing import PacingRules
from headgate.core.problems import Review

BATCH_DEPTH_SHARE: Final = 0.75
SHORT_WAIT_S: Final = 1.0
"""Also those who do not wait for a closed upstream wait so long under a limit."""


class Order(enum.StrEnum):
    """Which interactive waiter of a tenant goes first: the oldest, or the newest."""

    FIFO = "fifo"
    LIFO = "lifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """One upstream's gate. `depth` bounds the waiters of both lanes together; 0 means no bound.

    `adaptive` learns limits from refusals; without `breaker` only throttles close the upstream, failures do not.
    """

    slots: int = 8
    reserved_slots: int = 0
    depth: int = 1000
    promote_after_s: float = 120.0
    hold_wait_s: float = 0.0
    longest_pause_s: float = 300.0
    adaptive: bool = True
    breaker: bool = True
    preempt: bool = False
    interactive_order: Order = Order.FIFO
    pacing: PacingRules = field(default_factory=PacingRules)

    def __post_init__(self) -> None:
        review = Review()
        review.number("slots", self.slots, least=1, most=100_000, whole=True)
        review.number("reserved_slots", self.reserved_slots, whole=True)
        review.number("depth", self.depth, whole=True)
        review.number("promote_after_s", self.promote_after_s)
        review.number("hold_wait_s", self.hold_wait_s)
        review.number("longest_pause_s", self.longest_pause_s, above=0)
        if (order := review.choice("interactive_order", self.interactive_order, Order)) is not None:
            object.__setattr__(self, "interactive_order", order)
        wrong = {problem.path for problem in review.problems}
        if wrong.isdisjoint({"slots", "reserved_slots"}) and self.reserved_slots > self.slots:
            review.add("reserved_slots", f"must be at most slots ({self.slots}), not {self.reserved_slots}")
        review.refuse()


class Door(enum.Enum):
    """Why a caller is not let in."""

    FULL = "full"
    DEADLINE = "deadline"
    LATE = "late"
    """It waited, and what is left of its time is less than an answer takes."""
    PAUSED = "paused"
    UNHEALTHY = "unhealthy"
    MISCONFIGURED = "misconfigured"
    CLOSED = "closed"
    STOPPED = "stopped"
    """An operator paused the model."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A no, with the seconds after which asking again makes sense (None: nothing was measured yet)."""

    door: Door
    retry_in_s: float | None


class GateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of `/queue/status`: `rt_queue` waits interactively, `be_queue` as batch."""

    rt_queue: int
    be_queue: int
    total_slots: int
    available_slots: int
    accepting: bool
    max_queue_depth: int
