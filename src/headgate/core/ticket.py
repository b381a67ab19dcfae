"""A caller's place at a gate: waiting, on its way in, holding a slot, or gone."""

import enum
import math

from headgate.core.messages import Lane
from headgate.core.pacing import Reservation


class Place(enum.Enum):
    """Where a ticket is. A slot belongs to exactly one ticket that is in transit or holding."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    IN_TRANSIT = "in transit"
    HOLDING = "holding"


class Ticket:
    """One call's token at one gate. It outlives its slot: a long wait gives the slot back and returns."""

    __slots__ = (
        "asleep",
        "attempt_at",
        "calling",
        "deadline",
        "ends_pause",
        "granted_at",
        "lane",
        "order",
        "patient",
        "place",
        "preempted",
        "probe",
        "protected",
        "reservation",
        "returning",
        "since",
        "streaming",
        "tenant",
        "tokens",
    )

    def __init__(
        self,
        *,
        since: float,
        lane: Lane = Lane.INTERACTIVE,
        tenant: str = "local",
        deadline: float = math.inf,
        tokens: int = 0,
        patient: bool = True,
    ) -> None:
        self.lane = lane
        self.tenant = tenant
        self.since = since
        """When it began to wait for its answer; age counts from here."""
        self.deadline = deadline
        self.tokens = tokens
        self.patient = patient
        """Waits out a pause; without patience it has another upstream to go to."""
        self.place = Place.OUTSIDE
        self.order = 0
        """Its number in the line; a new one each time it waits."""
        self.returning = False
        """Was admitted before and comes back: it does not count against the depth."""
        self.granted_at = 0.0
        self.attempt_at = 0.0
        """When its current attempt began."""
        self.reservation: Reservation | None = None
        self.probe = False
        self.asleep = False
        """Holds its slot through a short wait before the next attempt."""
        self.calling = False
        """Has a call in flight that can be cancelled; kept only where preemption is on."""
        self.ends_pause = False
        """Went in as the one call that asks whether a pause that was cut short is over."""
        self.streaming = False
        """Has handed out a chunk: never preempted."""
        self.protected = False
        """Got its slot while interactive callers waited (its fair turn): never preempted."""
        self.preempted = False
