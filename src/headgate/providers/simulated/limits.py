"""A provider's own limits: so many requests and tokens in any sixty seconds, and how long is left until there is room."""

import math
from collections import deque
from typing import Final

WINDOW_S: Final = 60.0


class MinuteLimits:
    """What was let in during the last minute. Only that counts: a refused call uses nothing up."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests = requests
        self._tokens = tokens
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    @property
    def active(self) -> bool:
        return self._requests is not None or self._tokens is not None

    def take(self, tokens: int, now: float) -> float:
        """Let a call of so many tokens in, and return 0; or return the seconds after which there is room for it."""
        taken = self._taken
        while taken and taken[0][0] + WINDOW_S <= now:
            self._sum -= taken.popleft()[1]
        # The call that is larger than a whole minute's tokens gets in alone: refused for ever, it would mean nothing.
        count, weight = len(taken), self._sum
        for at, size in taken:
            if self._fits(count, weight, tokens):
                break
            count, weight = count - 1, weight - size
            free_at = at + WINDOW_S
        if count < len(taken):
            # In whole milliseconds, upwards: who comes back then finds room.
            return math.ceil((free_at - now) * 1000) / 1000
        taken.append((now, tokens))
        self._sum += tokens
        return 0.0

    def _fits(self, count: int, weight: int, tokens: int) -> bool:
        requests_fit = self._requests is None or count < self._requests
        return requests_fit and (self._tokens is None or weight + tokens <= self._tokens)
