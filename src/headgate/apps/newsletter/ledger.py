"""Runs, verdicts and feeds as the gateway's records: what is here survives whatever happens to the process."""

import asyncio
import enum
import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

import headgate
from headgate.apps.newsletter.items import Item
from headgate.apps.newsletter.verdicts import Verdict

RUNS: Final = "newsletter.runs"
VERDICTS: Final = "newsletter.verdicts"
SEEN: Final = "newsletter.seen"
FEEDS: Final = "newsletter.feeds"
LONGEST_RUN: Final = timedelta(hours=6)
"""One that still judges after this was killed."""
STORE_RESTS_S: Final = (0.2, 1.0, 3.0, 5.0)
T = TypeVar("T")


class RunState(enum.StrEnum):
    """Where a run is. All but `delivered` can go on."""

    JUDGING = "judging"
    ABORTED = "aborted"
    PARTIAL = "partial"
    """Delivered, but some items have no verdict yet."""
    DELIVERED = "delivered"


class FeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking one feed."""

    feed: str
    items: int = 0
    unchanged: bool = False
    error: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from its candidates to its mails. Its items do not change any more: who goes on judges the same."""

    id: str
    started_at: datetime
    items: tuple[Item, ...]
    feeds: tuple[FeedReport, ...] = ()
    collected: int = 0
    """Items of all feeds, before any was left out."""
    state: RunState = RunState.JUDGING
    mailed: tuple[tuple[str, ...], ...] = ()
    """The ids in each mail that a mail server took; a run that was cut short and goes on mails what is new."""
    written: tuple[tuple[str, ...], ...] = ()
    """The ids in each mail that is a file only, because there is no mail server."""
    why: str | None = None
    """Why it was aborted."""
    dry_run: bool = False
    """It began without the intent to deliver."""

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """All its mails so far."""
        return (*self.mailed, *self.written)

    @property
    def unread(self) -> bool:
        """No feed could be read: there is nothing to go on with."""
        return all(feed.error is not None for feed in self.feeds)


class KnownFeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed said last time: asked politely, it says "unchanged" and sends nothing."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    items: tuple[Item, ...] = ()


class Ledger:
    """Reads and writes the records of one gateway."""

    def __init__(self, gateway: headgate.Gateway) -> None:
        self._records = gateway.records

    async def run(self, run_id: str) -> Run | None:
        return await self._get(RUNS, run_id, Run)

    async def save_run(self, run: Run) -> None:
        await self._records.put(RUNS, run.id, _body(run))

    async def runs(self, limit: int, after: str | None = None) -> list[Run]:
        """The latest ids first."""
        found = await self._records.list(RUNS, limit=limit, after=after)
        return [msgspec.convert(record.body, Run) for record in found]

    async def save_verdict(self, item: Item, verdict: Verdict) -> None:
        """When this returns, it is durable. It is paid for: a database that restarts just now is waited for."""
        body = {"url": item.url, **_body(verdict)}
        for rest_s in (*STORE_RESTS_S, None):
            try:
                await self._records.put(VERDICTS, _key(verdict.run_id, item), body)
                break
            except headgate.StoreUnavailable as error:
                if rest_s is None or not error.waiting_helps:
                    raise
                await asyncio.sleep(rest_s)

    async def verdicts(self, run: Run) -> dict[str, Verdict]:
        """Those that are known, by item."""
        known = {item.id: await self._get(VERDICTS, _key(run.id, item), Verdict) for item in run.items}
        return {item_id: verdict for item_id, verdict in known.items() if verdict is not None}

    async def is_seen(self, item: Item) -> bool:
        return await self._records.get(SEEN, item.id) is not None

    async def mark_seen(self, run_id: str, items: Iterable[Item]) -> None:
        await asyncio.gather(
            *(self._records.put(SEEN, item.id, {"url": item.url, "run_id": run_id}) for item in items)
        )

    async def feed(self, url: str) -> KnownFeed | None:
        return await self._get(FEEDS, _short(url), KnownFeed)

    async def save_feed(self, feed: KnownFeed) -> None:
        await self._records.put(FEEDS, _short(feed.url), _body(feed))

    async def _get(self, collection: str, record_id: str, kind: type[T]) -> T | None:
        record = await self._records.get(collection, record_id)
        return None if record is None else msgspec.convert(record.body, kind)


def failed_in_a_row(runs: Iterable[Run], now: datetime) -> int:
    """How many of the latest failed since the last delivery. Of one that was just begun nobody knows yet."""
    failed = 0
    for run in sorted(runs, key=lambda run: run.started_at, reverse=True):
        if run.state in {RunState.DELIVERED, RunState.PARTIAL}:
            break
        killed = not run.dry_run and now - run.started_at > LONGEST_RUN
        failed += run.state is RunState.ABORTED or killed
    return failed


def _key(run_id: str, item: Item) -> str:
    return f"{run_id}:{item.id}"


def _body(value: Any) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(value)
    return body


def _short(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:20]
