"""When a call that is slower than nearly all others gets a second attempt elsewhere, and how many may."""

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from headgate.core.problems import Review

MEMORY: Final = 200
ENOUGH: Final = 10
"""Calls that must have been seen before a quantile means anything."""
LOOK_EVERY: Final = 5
BURST: Final = 10.0
"""So many second attempts may come at once."""
_QUANTILE: Final = re.compile(r"p(\d{2}(?:\.\d)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeRules:
    """`after` is a quantile of the recent calls (`p95`) or seconds; `share` bounds the extra calls."""

    after: str | float = "p95"
    share: float = 0.05

    def __post_init__(self) -> None:
        review = Review()
        if not isinstance(self.after, str):
            review.number("after", self.after, above=0)
        elif self.quantile is None or self.quantile < 0.5:
            review.add("after", f"must be a quantile from p50 to p99.9, or seconds, not {self.after!r}")
        review.number("share", self.share, above=0, most=1)
        review.refuse()

    @property
    def quantile(self) -> float | None:
        """None: `after` is a time."""
        found = _QUANTILE.fullmatch(self.after) if isinstance(self.after, str) else None
        return None if found is None else float(found[1]) / 100


class Hedging:
    """How long one model's calls take, and the second attempts that it may still make."""

    def __init__(self, rules: HedgeRules) -> None:
        self.rules = rules
        self._left = BURST
        self._took_s: dict[bool, deque[float]] = {}
        """Whole answers, and streams until their first content: the latest times."""
        self._seen: dict[bool, int] = {}
        self._after_s: dict[bool, float] = {}

    def begun(self) -> None:
        """Every call allows a share of a second attempt."""
        self._left = min(BURST, self._left + self.rules.share)

    def after_s(self, *, streamed: bool) -> float | None:
        """How long to wait for the first attempt; None while too little is known."""
        if isinstance(self.rules.after, float | int):
            return self.rules.after
        return self._after_s.get(streamed)

    def take(self) -> bool:
        """Pay for a second attempt."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left = min(BURST, self._left + 1)

    def took(self, seconds: float, *, streamed: bool) -> None:
        """An attempt took so long; one that was cancelled, at least so long."""
        quantile = self.rules.quantile
        if quantile is None:
            return
        times = self._took_s.setdefault(streamed, deque(maxlen=MEMORY))
        times.append(seconds)
        seen = self._seen[streamed] = self._seen.get(streamed, 0) + 1
        if seen >= ENOUGH and seen % LOOK_EVERY == 0:
            ordered = sorted(times)
            self._after_s[streamed] = ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
