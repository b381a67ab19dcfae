"""What bookmarks have cost, and whether the next call may be made: a ceiling for the day and one for the month (UTC).

Every process keeps its own tally per tenant and day, so nobody overwrites another's; the sum of the tallies is what counts.
A call's price is reserved before it and corrected after it: a process that dies in between has spent the reservation.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

import headgate
from headgate.apps.bookmarks.options import BookmarkOptions

COLLECTION: Final = "bookmark_costs"
RESERVED_USD: Final = 0.001
"""What a call is taken to cost until it has ended."""
_PAGE: Final = 200


class Tally(msgspec.Struct):
    """What one process spent for one tenant on one day."""

    usd: float = 0.0
    calls: int = 0


class Spent(msgspec.Struct, frozen=True):
    today_usd: float
    month_usd: float


def why_held(spent: Spent, options: BookmarkOptions, now: datetime) -> tuple[float, str] | None:
    """How many seconds until the next call may be made, and what people are told; None: it may be made now."""
    tomorrow = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    next_month = (datetime(now.year, now.month, 1, tzinfo=UTC) + timedelta(days=32)).replace(day=1)
    ceilings = (
        ("monthly", spent.month_usd, options.monthly_usd, next_month),
        ("daily", spent.today_usd, options.daily_usd, tomorrow),
    )
    for name, usd, most_usd, reset_at in ceilings:
        if most_usd is not None and usd >= most_usd:
            until = reset_at.strftime("%Y-%m-%d %H:%M UTC")
            words = f"held: the {name} ceiling of ${most_usd:.2f} is reached; it goes on at {until}"
            return (reset_at - now).total_seconds(), words
    return None


class Spending:
    """The tallies of this process. One for all its jobs."""

    def __init__(self, options: BookmarkOptions, new_id: Callable[[], str]) -> None:
        self._options = options
        self._name = new_id()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def paying(self, ctx: headgate.Context) -> AsyncIterator[None]:
        """Around a call: `RetryLater` when a ceiling is reached, else what it costs is written down."""
        now = datetime.fromtimestamp(ctx.now(), UTC)
        async with self._lock:
            if held := why_held(await spent(ctx.records.list, now), self._options, now):
                raise headgate.RetryLater(*held)
            await self._add(ctx, now, RESERVED_USD, calls=1)
        llm = ctx.llm
        calls, usd, unpriced = llm.calls, llm.cost_usd, llm.unpriced
        try:
            yield
        finally:
            # Every answer is paid for, also one that had to be generated again.
            cost_usd = llm.cost_usd - usd + (llm.unpriced - unpriced) * self._options.call_usd
            # The tally is kept in here, too: what cannot be written now is written with the next call's.
            with contextlib.suppress(headgate.StoreUnavailable):
                async with self._lock:
                    more = max(0, llm.calls - calls - 1)
                    await self._add(ctx, now, cost_usd - RESERVED_USD, calls=more)

    async def _add(self, ctx: headgate.Context, now: datetime, usd: float, *, calls: int = 0) -> None:
        day = now.date().isoformat()
        # A call that began before midnight is still to be corrected; older tallies are in the store alone.
        oldest = (now - timedelta(days=1)).date().isoformat()
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[1] >= oldest}
        tally = self._tallies.setdefault((ctx.job.tenant, day), Tally())
        tally.usd += usd
        tally.calls += calls
        await ctx.records.put(COLLECTION, f"{day}-{self._name}", msgspec.to_builtins(tally))


async def spent(tallies: Callable[..., Awaitable[Sequence[headgate.Record]]], now: datetime) -> Spent:
    """`tallies` lists one tenant's records. Ids begin with their day, and lists with the newest: no more than the month is read."""
    day, month = now.date().isoformat(), now.strftime("%Y-%m")
    today_usd = month_usd = 0.0
    after: str | None = None
    while page := await tallies(COLLECTION, limit=_PAGE, after=after):
        for tally in page:
            if not tally.id.startswith(month):
                return Spent(today_usd, month_usd)
            month_usd += tally.body["usd"]
            today_usd += tally.body["usd"] if tally.id.startswith(day) else 0.0
        after = page[-1].id
    return Spent(today_usd, month_usd)
