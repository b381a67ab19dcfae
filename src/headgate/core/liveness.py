"""Which nodes have fallen silent, judged from their beats. A node raises its beat each time it renews its lease.

No wall clock takes part. An observer may call a node silent only when it reached the store all the while and saw the same
beat for a whole lease on its own monotonic clock: an outage of the store is then never taken for the death of a node.
"""

from collections.abc import Mapping, Sequence
from typing import Final

LATE_AFTER_LEASES: Final = 2 / 3
"""Nodes renew three times per lease, and at once when the store returns. A gap between two reads that is longer than
this may hide an outage that left them too little time."""


class Beats:
    """The beats that one observer has seen, and since when."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._since: dict[str, tuple[int, float]] = {}
        """By node: its beat, and when the first read that showed it was answered."""
        self._read_at: float | None = None

    def restart(self) -> None:
        """A read failed: what happened meanwhile is unknown."""
        self._since.clear()
        self._read_at = None

    def read(self, beats: Mapping[str, int], *, sent_at: float, at: float) -> Sequence[tuple[str, int]]:
        """The nodes (each with its beat) that have been silent for a whole lease, after a read answered at `at`."""
        if self._read_at is None or at - self._read_at > LATE_AFTER_LEASES * self._lease_s:
            self._since.clear()
        self._read_at = at
        since = self._since
        self._since = {
            node: since[node] if node in since and since[node][0] == beat else (beat, at)
            for node, beat in beats.items()
        }
        return [
            (node, beat)
            for node, (beat, seen_at) in self._since.items()
            if sent_at - seen_at >= self._lease_s
        ]
