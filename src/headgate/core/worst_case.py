"""What one call can cost at the very worst, told before it happens."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorstCase:
    """Calls to providers over all upstreams, and the seconds until the caller gets an answer or an error."""

    calls: int
    seconds: float

    def __str__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"worst case: {calls}, {self.seconds:.15g} s"


def worst_case(max_attempts_per_upstream: Sequence[int], total_s: float) -> WorstCase:
    """Every upstream uses all its attempts; the deadline over everything ends it whatever they do."""
    return WorstCase(sum(max_attempts_per_upstream), total_s)
