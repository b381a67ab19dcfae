"""One call that was started at an upstream, and what became of it."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.core.intake import Intake


class Outcome(enum.Enum):
    """How a started call ended, as far as it tells something of the upstream."""

    ANSWERED = "answered"
    """Also an answer that says the request is wrong: whoever judges requests takes calls."""
    THROTTLED = "throttled"
    FAILED = "failed"
    BROKE = "broke"
    """It failed after it had been accepted: it took too long, or the answer broke off."""
    UNKNOWN = "unknown"
    """We stopped it ourselves."""


@dataclass(slots=True, eq=False)
class Start:
    """A started call, with the loads at that moment: the last second's starts, calls in flight, the last second's tokens."""

    at: float
    number: int
    tokens: float
    tenant: str
    probe: bool
    loads: tuple[float, float, float] = (0.0, 0.0, 0.0)
    outcome: Outcome | None = None
    refused: bool = False
    """Throttled or failed: it did not pass."""
    tests_allowance: bool = False
    """By the provider's headers it should be refused."""
    own: "tuple[Intake, Start] | None" = None
    """The same call among those of its tenant alone, where they are judged by themselves, too."""
