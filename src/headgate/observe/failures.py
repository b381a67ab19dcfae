"""The last failures of each upstream: when, which class and status, of which call. Never the provider's words."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from headgate.core.events import AttemptEnded, Event
from headgate.core.failures import FailureKind

MOST_EACH: Final = 5
MOST_UPSTREAMS: Final = 1000
_OURS: Final = frozenset({FailureKind.CANCELLED, FailureKind.PREEMPTED, FailureKind.EXPIRED})
"""We stopped these ourselves: they say nothing about the upstream."""


class PastFailure(msgspec.Struct, frozen=True):
    """One attempt that went wrong."""

    at: datetime
    request_id: str
    tenant: str
    error: str
    """Class, status and the provider's code."""


class RecentFailures:
    """`gateway.listen(failures)`, then ask. What does not fail costs a look at its type."""

    def __init__(self, utc: Callable[[], datetime]) -> None:
        self._utc = utc
        self._kept: OrderedDict[tuple[str, str], deque[PastFailure]] = OrderedDict()

    def __call__(self, event: Event) -> None:
        if type(event) is AttemptEnded and event.failure is not None and event.failure.kind not in _OURS:
            key = (event.model, event.upstream)
            kept = self._kept.setdefault(key, deque(maxlen=MOST_EACH))
            kept.append(PastFailure(self._utc(), event.request_ids[0], event.tenant, event.failure.error))
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_UPSTREAMS:
                self._kept.popitem(last=False)

    def of(self, model: str, upstream: str) -> Sequence[PastFailure]:
        """The latest first."""
        return tuple(reversed(self._kept.get((model, upstream), ())))
