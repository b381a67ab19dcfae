"""A gate that stands still because the provider asked for it, and how it starts moving again."""

from typing import Final

LONGEST_RAMP_S: Final = 10.0
RAMP_SHARE: Final = 0.25


class Pause:
    """Nobody passes until `until`; then slots come back one by one instead of all at once."""

    __slots__ = ("_probing", "_ramp_s", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self._ramp_s = 0.0
        self._probing = False

    def begin(self, now: float, asked_s: float, longest_s: float) -> bool:
        """Pause for what was asked, at most `longest_s`; True when that moves the end of the pause."""
        pause_s = min(asked_s, longest_s)
        if now + pause_s <= self.until:
            return False
        self.until = now + pause_s
        self._ramp_s = min(LONGEST_RAMP_S, pause_s * RAMP_SHARE)
        # We cut the provider's wait short, so we ask with one call before the others follow.
        self._probing = asked_s > longest_s
        return True

    def end(self) -> None:
        self.until = float("-inf")
        self._probing = False

    def call_succeeded(self) -> None:
        self._probing = False

    def over(self, now: float) -> bool:
        """No trace of a pause is left."""
        return now >= self.until + self._ramp_s and not self._probing

    def slots(self, now: float, slots: int) -> int:
        """How many of the slots may be in use now."""
        elapsed_s = now - self.until
        if elapsed_s >= self._ramp_s and not self._probing:
            return slots
        if elapsed_s < 0:
            return 0
        if self._probing:
            return min(1, slots)
        return min(slots, 1 + int((slots - 1) * elapsed_s / self._ramp_s))

    def next_change_at(self, now: float, slots: int) -> float | None:
        """When `slots` will next be larger by itself."""
        if now < self.until:
            return self.until
        if self._probing or now >= self.until + self._ramp_s or slots < 2:
            return None
        # A hair later than the step itself: rounding must not leave us one step short of it.
        step = self.slots(now, slots)
        return min(self.until + self._ramp_s, self.until + self._ramp_s * step / (slots - 1) + 1e-6)
