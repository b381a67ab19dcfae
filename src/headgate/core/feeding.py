"""How often a feeder sends, and how much at a time: more while all is accepted, ever more rarely while it is refused."""

import math
from dataclasses import dataclass, replace
from typing import Final

from headgate.core.errors import InvalidRequest

EVERY_S: Final = 10.0
SERIES_S: Final = (30.0, 60.0, 120.0, 240.0, 300.0)
"""The least wait after the first refusal in a row, the second, …; the last holds for all further ones."""
MAX_TOGETHER: Final = 16
SUCCESSES_FOR_ONE_MORE: Final = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """Where a feeder stands in the series. The first success leads back to the beginning."""

    every_s: float = EVERY_S
    refusals: int = 0
    successes: int = 0
    """Since the last refusal."""

    def __post_init__(self) -> None:
        if not 0 < self.every_s < math.inf:
            raise InvalidRequest("every_s must be a number of seconds greater than 0", param="every_s")

    def succeeded(self) -> "Pace":
        return replace(self, refusals=0, successes=self.successes + 1)

    def refused(self) -> "Pace":
        return replace(self, refusals=self.refusals + 1, successes=0)

    @property
    def together(self) -> int:
        """How many requests may be in flight. One alone after a refusal, because all would be refused with it."""
        return min(1 + self.successes // SUCCESSES_FOR_ONE_MORE, MAX_TOGETHER)

    def wait_s(self, retry_after_s: float = 0.0) -> float:
        """Until the next pass. What the gateway asks for is a floor."""
        if not self.refusals:
            return self.every_s
        return max(SERIES_S[min(self.refusals, len(SERIES_S)) - 1], retry_after_s)
