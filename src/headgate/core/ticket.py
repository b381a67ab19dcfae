"""A caller's place at a gate: waiting, on its way in, holding a slot, or gone."""

import enum
import math
from typing import Final

import msgspec

from headgate.core.call import Lane
from headgate.core.pacing import Reservation
from headgate.core.start import Start

CHAT: Final = "chat/completions"


class Place(enum.Enum):
    """Where a ticket is. A slot belongs to exactly one ticket that is in transit or holding."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    IN_TRANSIT = "in transit"
    HOLDING = "holding"


class Ticket(msgspec.Struct, kw_only=True, eq=False):
    """One call's token at one gate. It outlives its slot: a long wait gives the slot back and returns."""

    since: float
    """When it began to wait for its answer; age counts from here."""
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    endpoint: str = CHAT
    deadline: float = math.inf
    tokens: int = 0
    size_bytes: int = 0
    """Of the body that is kept while it waits."""
    patient: bool = True
    """Waits while the upstream is closed."""
    movable: bool = False
    """Could go to another upstream: it is asked to choose again when this one closes."""
    place: Place = Place.OUTSIDE
    order: int = 0
    """Its number in the line; a new one each time it waits."""
    returning: bool = False
    """Was admitted before and comes back: it does not count against the depth."""
    overtaken: int = 0
    """How many calls went before it because it did not fit into the tokens that were left."""
    granted_at: float = 0.0
    attempt_at: float = 0.0
    """When its current attempt began."""
    reservation: Reservation | None = None
    start: Start | None = None
    """The call that its slot was granted for, until that has ended."""
    probe: bool = False
    """It probes an upstream that is held."""
    asleep: bool = False
    """Holds its slot through a short wait before the next attempt."""
    calling: bool = False
    """Has a call in flight that can be cancelled; kept only where preemption is on."""
    streaming: bool = False
    """Has handed out a chunk: never preempted."""
    protected: bool = False
    """Got its slot while interactive callers waited (its fair turn): never preempted."""
    preempted: bool = False
