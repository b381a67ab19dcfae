"""What a caller used in the last minute, against what it may use. Exact, in bounded memory. Time is handed in."""

import math
from collections import deque
from typing import Final, NamedTuple

from headgate.core.errors import RateLimited

WINDOW_S: Final = 60.0
GROUP_S: Final = 0.1
"""What happens within this time is remembered together, as if all of it had happened at the end."""
PARALLEL_RETRY_S: Final = 1.0
"""Nobody knows when a running request ends."""
LONGEST_TURN_S: Final = 600.0
NEAR_S: Final = 5.0
TURN_SLACK_S: Final = 0.01
"""Who comes back then must not be early."""


class Allowance(NamedTuple):
    """How a caller stands with one of its limits per minute."""

    what: str
    """`requests` or `tokens`."""
    most: int
    left: int
    reset_s: float
    """Until nothing of it is used any more."""


class Window:
    """Less than `most` before anything more comes in, in any 60 s. Late costs may go over it; then all wait."""

    __slots__ = ("_groups", "_total", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._total = 0
        self._groups: deque[list[float]] = deque()
        """[first, last, amount], 600 at most."""

    def add(self, amount: int, now: float) -> None:
        groups = self._groups
        self._total += amount
        if groups and now - groups[-1][0] < GROUP_S:
            groups[-1][1] = now
            groups[-1][2] += amount
        else:
            groups.append([now, now, amount])

    def standing(self, what: str, now: float) -> Allowance:
        self._forget(now)
        reset_s = self._groups[-1][1] + WINDOW_S - now if self._groups else 0.0
        return Allowance(what, self.most, max(0, self.most - self._total), reset_s)

    def opens_at(self, now: float) -> float:
        """When something more may come in; `now` when it may at once."""
        self._forget(now)
        left = self._total
        opens_at = now
        for _, last, amount in self._groups:
            if left < self.most:
                break
            left -= int(amount)
            opens_at = last + WINDOW_S
        return opens_at

    def _forget(self, now: float) -> None:
        groups = self._groups
        while groups and groups[0][1] + WINDOW_S <= now:
            self._total -= int(groups.popleft()[2])


class _Turn:
    """When the next job that was refused may come: so many together as a window takes, the others a window later."""

    __slots__ = ("_at", "_requests", "_tokens")

    def __init__(self) -> None:
        self._at = 0.0
        self._requests = 0
        self._tokens = 0

    def next(
        self, opens_at: float, now: float, tokens: int, most_requests: int | None, most_tokens: int | None
    ) -> float:
        if opens_at - now <= NEAR_S:
            # It came in its turn, and those before it a moment late.
            return opens_at + TURN_SLACK_S
        full = (most_requests is not None and self._requests >= most_requests) or (
            most_tokens is not None and self._tokens >= most_tokens
        )
        new = opens_at > self._at + WINDOW_S / 2
        if new or full:
            self._requests = self._tokens = 0
        self._at = max(opens_at, self._at + WINDOW_S if full and not new else self._at)
        # Not later: those ahead of it may be cancelled meanwhile.
        self._at = min(self._at, now + LONGEST_TURN_S)
        self._requests += 1
        self._tokens += tokens
        return self._at + TURN_SLACK_S


class Meter:
    """One caller's requests, tokens and requests in flight. A limit of None is none."""

    __slots__ = ("_parallel", "_requests", "_tokens", "_turn", "in_flight")

    def __init__(self, *, requests: int | None, tokens: int | None, parallel: int | None) -> None:
        self._requests = None if requests is None else Window(requests)
        self._tokens = None if tokens is None else Window(tokens)
        self._parallel = parallel
        self._turn = _Turn()
        self.in_flight = 0

    def enter(self, now: float) -> None:
        """Count one request in, or raise RateLimited with the time that it takes. A refused one is not counted."""
        if self._parallel is not None and self.in_flight >= self._parallel:
            raise RateLimited(
                f"this key may have {_requests(self._parallel)} at a time, and has as many running",
                retry_after_s=PARALLEL_RETRY_S,
                allowances=self.allowances(now),
            )
        if self._requests is not None:
            self._refuse_full(self._requests, "requests", now)
        if self._tokens is not None:
            self._refuse_full(self._tokens, "tokens", now)
        if self._requests is not None:
            self._requests.add(1, now)
        self.in_flight += 1

    def enter_job(self, now: float, *, tokens: int, deferrals: int) -> None:
        """The same for a job, with what its call may use and how often it was sent back.

        Those that are refused are told times of their own: as many come back a minute as there is room for.
        """
        try:
            self.enter(now)
        except RateLimited as refusal:
            windows = [window for window in (self._requests, self._tokens) if window is not None]
            opens_at = max((window.opens_at(now) for window in windows), default=now)
            if opens_at > now:
                bounds = [
                    window.most if window is not None else None for window in (self._requests, self._tokens)
                ]
                refusal.retry_after_s = self._turn.next(opens_at, now, tokens, *bounds) - now
            else:
                # When a running one ends is not known: ever more patiently.
                refusal.retry_after_s = min(PARALLEL_RETRY_S * 2.0 ** min(deferrals, 10), WINDOW_S)
            raise

    def add(self, now: float) -> None:
        """Count a request that cannot be refused any more: a further one of a job that was let in."""
        if self._requests is not None:
            self._requests.add(1, now)

    def used(self, tokens: int, now: float) -> None:
        if self._tokens is not None and tokens > 0:
            self._tokens.add(tokens, now)

    def leave(self) -> None:
        self.in_flight -= 1

    @property
    def limited(self) -> bool:
        """Whether there is a limit per minute, and so something to tell."""
        return self._requests is not None or self._tokens is not None

    def allowances(self, now: float) -> tuple[Allowance, ...]:
        windows = {"requests": self._requests, "tokens": self._tokens}
        return tuple(window.standing(what, now) for what, window in windows.items() if window is not None)

    def _refuse_full(self, window: Window, what: str, now: float) -> None:
        wait_s = window.opens_at(now) - now
        if wait_s > 0:
            # Told in whole milliseconds, and one more: who comes back then must not be early.
            raise RateLimited(
                f"this key may use {window.most:,} {what} a minute; come back in {math.ceil(wait_s)} s",
                retry_after_s=(math.floor(wait_s * 1000) + 1) / 1000,
                allowances=self.allowances(now),
            )


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"
