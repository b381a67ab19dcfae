"""What reached a simulated provider, counted as it comes."""

import asyncio
from collections import Counter, deque
from itertools import islice
from types import TracebackType
from typing import Final

from headgate.core.ports.clock import Clock

MOST_STARTS: Final = 100_000
MOST_REQUESTS: Final = 1_000_000


class CallCounts:
    """What reached one provider since its creation. Tests and reports read it."""

    def __init__(self, clock: Clock) -> None:
        self.calls = 0
        """Attempts that reached the provider; a stream is one, and so is a call that carries many."""
        self.cancelled = 0
        """Calls cancelled by the caller, and streams closed before their end."""
        self.in_flight = 0
        self.most_in_flight = 0
        self.requests_seen: Counter[str] = Counter()
        """Request id → how often it was sent here."""
        self.starts: deque[float] = deque(maxlen=MOST_STARTS)
        """When the latest calls started, by the provider's clock."""
        self._clock = clock
        self._counted = _Counted(self)

    def _arrive(self) -> None:
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.starts.append(self._clock.now())

    def _see(self, request_id: str) -> int:
        """Count a request and say which time this is, from 1."""
        seen = self.requests_seen
        # `get`, because a Counter's own way to 0 runs in Python and costs as much as the rest of a call.
        seen[request_id] = count = seen.get(request_id, 0) + 1
        if len(seen) > MOST_REQUESTS:
            self._forget_oldest()
        return count

    def _forget_oldest(self) -> None:
        """Half at a time: a provider may serve for months, and one at a time a dict gets slow."""
        for request_id in list(islice(self.requests_seen, MOST_REQUESTS // 2)):
            del self.requests_seen[request_id]


class _Counted:
    """One call from its arrival to its end, however it ends. Remembers nothing, so all calls share it."""

    __slots__ = ("_counts",)

    def __init__(self, counts: CallCounts) -> None:
        self._counts = counts

    def __enter__(self) -> None:
        self._counts._arrive()  # noqa: SLF001 - the other half of the same count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._counts.in_flight -= 1
        if isinstance(error, asyncio.CancelledError):
            self._counts.cancelled += 1
