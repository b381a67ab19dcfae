"""A provider's own limits: on requests and tokens in a span of time, and on calls in flight; and when there is room again."""

import math
from collections import deque
from typing import Final

from headgate.providers.simulated.options import SimulatedOptions

MINUTE_S: Final = 60.0


class Sliding:
    """So many requests and tokens in any span of this length."""

    def __init__(self, span_s: float, requests: int | None, tokens: int | None = None) -> None:
        self._span_s = span_s
        self._requests = requests
        self._tokens = tokens
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    def wait_s(self, tokens: int, now: float) -> float:
        """The seconds after which there is room for a call of so many tokens; 0: now."""
        taken = self._taken
        while taken and taken[0][0] + self._span_s <= now:
            self._sum -= taken.popleft()[1]
        # The call that is larger than a whole span's tokens gets in alone: refused for ever, it would mean nothing.
        count, weight, free_at = len(taken), self._sum, now
        for at, size in taken:
            if self._fits(count, weight, tokens):
                break
            count, weight, free_at = count - 1, weight - size, at + self._span_s
        # In whole milliseconds, upwards: who comes back then finds room.
        return math.ceil((free_at - now) * 1000) / 1000

    def take(self, tokens: int, now: float) -> None:
        self._taken.append((now, tokens))
        self._sum += tokens

    def _fits(self, count: int, weight: int, tokens: int) -> bool:
        requests_fit = self._requests is None or count < self._requests
        return requests_fit and (self._tokens is None or weight + tokens <= self._tokens)


class Windows:
    """So many requests in each window, one after the other. When it is used up, nothing passes until it ends."""

    def __init__(self, requests: int, span_s: float, begin: float) -> None:
        self._requests = requests
        self._span_s = span_s
        self._begin = begin
        self._window = -1
        self._used = 0

    def wait_s(self, _tokens: int, now: float) -> float:
        window = int((now - self._begin) / self._span_s)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used < self._requests:
            return 0.0
        ends_in_s = (window + 1) * self._span_s - (now - self._begin)
        return math.ceil(ends_in_s * 1000) / 1000

    def take(self, _tokens: int, _now: float) -> None:
        self._used += 1


class Limits:
    """All limits of one provider. A refused call uses nothing up."""

    def __init__(self, options: SimulatedOptions, begin: float) -> None:
        self._max_in_flight = options.max_in_flight
        self._spans: list[Sliding | Windows] = []
        if options.requests_per_minute is not None or options.tokens_per_minute is not None:
            self._spans.append(Sliding(MINUTE_S, options.requests_per_minute, options.tokens_per_minute))
        if options.requests_per_second is not None:
            self._spans.append(Sliding(1.0, options.requests_per_second))
        if options.requests_per_window is not None:
            self._spans.append(Windows(*options.requests_per_window, begin))
        self.active = bool(self._spans) or self._max_in_flight is not None

    def take(self, tokens: int, now: float, in_flight: int) -> float | None:
        """Let a call in beside so many, and return None; or return the seconds until there is room, 0: unknown."""
        if self._max_in_flight is not None and in_flight >= self._max_in_flight:
            return 0.0
        if wait_s := max((span.wait_s(tokens, now) for span in self._spans), default=0.0):
            return wait_s
        for span in self._spans:
            span.take(tokens, now)
        return None
