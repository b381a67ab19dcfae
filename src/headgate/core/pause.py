"""A gate that stands still because the provider asked for it, and how it starts moving again."""

from typing import Final

LONGEST_RAMP_S: Final = 10.0
RAMP_SHARE: Final = 0.25


class Pause:
    """Nobody passes until `until`; then slots come back one by one instead of all at once."""

    __slots__ = ("_full_at", "probing", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self._full_at = float("-inf")
        """When all slots are back."""
        self.probing = False
        """The pause was cut short: one call at a time until one succeeds."""

    def begin(self, now: float, asked_s: float, longest_s: float) -> bool:
        """Pause for what was asked, at most `longest_s`; True when that moves the end of the pause."""
        pause_s = min(asked_s, longest_s)
        # We cut the provider's wait short, so we ask with one call before the others follow.
        self.probing = self.probing or asked_s > longest_s
        if pause_s <= 0 or now + pause_s <= self.until:
            return False
        self.until = now + pause_s
        # A short pause does not cut short the ramp of a long one before it.
        self._full_at = max(self._full_at, self.until + min(LONGEST_RAMP_S, pause_s * RAMP_SHARE))
        return True

    def call_succeeded(self, started_at: float) -> bool:
        """Only a call that began after the pause says that the provider is ready again; True when that is news."""
        if not self.probing or started_at < self.until:
            return False
        self.probing = False
        return True

    def over(self, now: float) -> bool:
        """No trace of a pause is left."""
        return now >= self._full_at and not self.probing

    def slots(self, now: float, slots: int) -> int:
        """How many of the slots may be in use now."""
        if now >= self._full_at and not self.probing:
            return slots
        if now < self.until:
            return 0
        if self.probing:
            return min(1, slots)
        return min(slots, 1 + int((slots - 1) * (now - self.until) / (self._full_at - self.until)))

    def next_change_at(self, now: float, slots: int) -> float | None:
        """When `slots` will next be larger by itself."""
        if now < self.until:
            return self.until
        if self.probing or now >= self._full_at or slots < 2:
            return None
        step = self.slots(now, slots)
        # A hair later than the step itself: rounding must not leave us one step short of it.
        step_at = self.until + (self._full_at - self.until) * step / (slots - 1) + 1e-6
        return min(self._full_at, step_at)
