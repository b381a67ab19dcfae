"""What a provider's headers say is left of its quotas, mirrored as the bucket they describe.

OpenAI and many servers in its format send `x-ratelimit-limit-requests`, `-remaining-requests` and `-reset-requests` ("1s",
"6m0s", "12ms"), and the same for tokens; Anthropic `anthropic-ratelimit-requests-limit` and so on, with a reset in RFC 3339.

`remaining: 0` does not mean "wait until the reset": at OpenAI and Anthropic the reset is when the bucket will be full
again, up to a minute, while the next call may pass in milliseconds. The refill is (limit - remaining) / reset.

Headers are believed until a test disproves them: some servers send zeros, and some count tokens otherwise than we do. So a
call that they keep waiting starts now and then all the same. If it passes, they are ignored until they prove right.
"""

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from headgate.core.start import Outcome, Start

_FIELDS: Final = {
    name.encode(): (what, part)
    for what in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
    for name in (f"x-ratelimit-{part}-{what}", f"anthropic-ratelimit-{what}-{part}")
}
_SPAN: Final = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_UNITS_S: Final = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
REFILLS: Final = (1e-9, 1e12)
"""A second: what is outside makes no sense."""


class Quota(NamedTuple):
    """One quota as the headers describe it: so much at most, so much left (less than that), full again in so many seconds."""

    limit: float
    remaining: float
    reset_s: float


class Quotas(NamedTuple):
    """What one answer's headers say."""

    requests: Quota | None = None
    tokens: Quota | None = None


class _Bucket:
    """What is left of one quota: refilled all the time, lowered by each start."""

    __slots__ = ("_at", "_left", "_limit", "_refill", "believed_until", "number")

    def __init__(self, start: Start, quota: Quota, used: float, believed_until: float) -> None:
        self.believed_until = believed_until
        """No call waits for longer, whatever the headers said."""
        self.number = start.number
        """The start whose answer described it."""
        self._at = start.at
        self._limit = quota.limit
        self._refill = (quota.limit - quota.remaining) / quota.reset_s
        self._left = quota.remaining - used

    def take(self, now: float, cost: float) -> None:
        self._left = min(self._limit, self._left + self._refill * (now - self._at)) - cost
        self._at = now

    def next_at(self, now: float, cost: float) -> float:
        short = min(cost, self._limit) - self._left - self._refill * (now - self._at)
        if short <= 0 or now >= self.believed_until:
            return now
        return min(now + short / self._refill + 1e-6, self.believed_until)


TEST_S: Final = (2.0, 60.0)
"""Between two tests of what the headers say: each that proves them right doubles it, up to the second."""
TEST_CALLS: Final = 3
"""Headers are wrong if so many calls in a row pass that they would have kept waiting; they are right again if as many in a row
are refused."""


class Allowance:
    """The quotas that the last answers described."""

    __slots__ = ("_believed", "_buckets", "_gap_s", "_in_a_row", "_longest_s", "_test_at", "_unsent", "known")

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._buckets: list[_Bucket | None] = [None, None]
        """Of requests and of tokens."""
        self.known = False
        self._believed = True
        self._in_a_row = 0
        """Tests that spoke against what is believed."""
        self._unsent = TEST_CALLS
        """Calls that the next test may still send."""
        self._gap_s = TEST_S[0]
        self._test_at: float | None = None
        """When calls that have to wait start all the same; None: none has had to wait yet."""

    def read(self, start: Start, quotas: Quotas, later: Iterable[Start]) -> None:
        """What came with the answer to `start`; `later` are the starts, latest first."""
        used = [0.0, 0.0]
        for other in later:
            if other.number <= start.number:
                break
            if not other.refused:
                used = [used[0] + 1, used[1] + other.tokens]
        for place, quota in enumerate(quotas):
            bucket = self._buckets[place]
            if quota is not None and (bucket is None or start.number >= bucket.number):
                self._buckets[place] = _Bucket(start, quota, used[place], start.at + self._longest_s)
                self.known = True

    def started(self, now: float, tokens: float) -> bool:
        """A call starts. True: by the headers it should be refused, so its end tests them."""
        tests = self._has_room_at(now, tokens) > now
        for bucket, cost in zip(self._buckets, (1.0, tokens), strict=True):
            if bucket is not None:
                bucket.take(now, cost)
        if tests and self._believed:
            self._unsent -= 1
        return tests

    def tested(self, now: float, outcome: Outcome) -> None:
        """How a call ended that the headers would have kept waiting."""
        if outcome not in {Outcome.ANSWERED, Outcome.THROTTLED}:
            self._unsent = max(1, self._unsent)  # It says nothing: another one has to.
        elif (outcome is Outcome.THROTTLED) is self._believed:
            self._in_a_row = 0
            if self._believed:
                self._gap_s = min(2 * self._gap_s, TEST_S[1])
                self._test_at, self._unsent = now + self._gap_s, TEST_CALLS
        else:
            self._in_a_row += 1
            if self._in_a_row >= TEST_CALLS:
                self._believed, self._in_a_row, self._gap_s = not self._believed, 0, TEST_S[0]
                self._test_at, self._unsent = now + self._gap_s, TEST_CALLS

    def refused(self, now: float, start: Start) -> None:
        """A refused call took nothing."""
        for bucket, cost in zip(self._buckets, (1.0, start.tokens), strict=True):
            if bucket is not None and start.number > bucket.number:
                bucket.take(now, -cost)

    def next_at(self, now: float, tokens: float) -> float:
        """When a call of this size may start: when both quotas have room for it, or as a test."""
        if not self._believed:
            return now
        room_at = self._has_room_at(now, tokens)
        if room_at <= now:
            return now
        if self._test_at is None:
            self._test_at = now + self._gap_s
        return max(now, min(room_at, self._test_at)) if self._unsent > 0 else room_at

    def _has_room_at(self, now: float, tokens: float) -> float:
        costs = zip(self._buckets, (1.0, tokens), strict=True)
        return max([now, *(bucket.next_at(now, cost) for bucket, cost in costs if bucket is not None)])


# ---- Headers --------------------------------------------------------------------------------------


def read_quotas(headers: Iterable[tuple[bytes, bytes]], utc: Callable[[], datetime]) -> Quotas | None:
    """None when they say nothing that can be used. Names are lower-case, as the transport gives them."""
    said: dict[tuple[str, str], float] = {}
    for name, value in headers:
        if (field := _FIELDS.get(name)) is not None:
            said[field] = _number(value.decode("latin-1").strip(), utc())
    if not said:
        return None
    quotas = Quotas(_quota(said, "requests"), _quota(said, "tokens"))
    return None if quotas == Quotas() else quotas


def _quota(said: dict[tuple[str, str], float], what: str) -> Quota | None:
    limit, remaining, reset_s = (said.get((what, part), math.nan) for part in ("limit", "remaining", "reset"))
    # Some send -1 or 0 where they know nothing; a full bucket shows no refill. With nan nothing holds.
    if 0 <= remaining < limit < math.inf and 0 < reset_s < math.inf:
        refill = (limit - remaining) / reset_s
        return Quota(limit, remaining, reset_s) if REFILLS[0] < refill < REFILLS[1] else None
    return None


def _number(text: str, now: datetime) -> float:
    """A plain number, a span ("1m30.5s", "12ms") or a time, in seconds from now; nan: none of them."""
    try:
        return float(text)
    except ValueError:
        pass
    if text and (match := _SPAN.fullmatch(text)) is not None:
        return sum(float(part or 0) * unit for part, unit in zip(match.groups(), _UNITS_S, strict=True))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()
