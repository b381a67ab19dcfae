"""Asking the feeds: hosts side by side, the feeds of one host one after the other and not too fast.

A feed that fails is told about and never stops the others.
"""

import asyncio
import urllib.parse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import headgate
from headgate.apps.newsletter.feed_list import Feed
from headgate.apps.newsletter.items import Item
from headgate.apps.newsletter.ledger import FeedReport, KnownFeed, Ledger
from headgate.apps.newsletter.parsing import NoFeed
from headgate.apps.untrusted import Parser, ParserDied, ParserMissing, Unreadable

AGENT: Final = f"headgate-newsletter/{headgate.__version__}"
PARSE: Final = "headgate.apps.newsletter.parsing:parse_feed"
LARGEST_FILE_BYTES: Final = 5 * 1024 * 1024
MOST_HOSTS_AT_ONCE: Final = 8


class Unanswered(Exception):
    """The feed's server answered, with no feed."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What one feed gave."""

    report: FeedReport
    items: Sequence[Item] = ()


class Collector:
    """Collects the items of all feeds, once: its parsing processes end with that."""

    def __init__(self, ledger: Ledger, *, private: bool, spacing_s: float) -> None:
        self._ledger = ledger
        self._rules = (
            headgate.FetchRules(allow_private=True, ports=None) if private else headgate.FetchRules()
        )
        self._spacing_s = spacing_s
        self._hosts = asyncio.Semaphore(MOST_HOSTS_AT_ONCE)
        self._parser = Parser(PARSE)

    async def collect(self, feeds: Sequence[Feed], *, within_s: float | None) -> list[Collected]:
        """In the order of the feeds; those without a turn in time say so."""
        by_host: defaultdict[str, list[Feed]] = defaultdict(list)
        for feed in feeds:
            by_host[urllib.parse.urlsplit(feed.url).netloc.lower()].append(feed)
        done: dict[str, Collected] = {}
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as hosts:
                for several in by_host.values():
                    hosts.create_task(self._ask_host(several, done))
        except TimeoutError:
            pass
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._parser.close()
        late = FeedReport(feed="", error="there was no time left for it")
        return [
            done.get(feed.name) or Collected(msgspec.structs.replace(late, feed=feed.name)) for feed in feeds
        ]

    async def _ask_host(self, feeds: Sequence[Feed], done: dict[str, Collected]) -> None:
        async with self._hosts:
            for number, feed in enumerate(feeds):
                if number and feed.url:
                    await asyncio.sleep(self._spacing_s)
                done[feed.name] = await self._ask(feed)

    async def _ask(self, feed: Feed) -> Collected:
        try:
            return await (self._read(feed.path) if feed.path else self._fetch(feed.url))
        except headgate.ProviderFailure as error:
            why = f"{error.failure.error}: {error}"
        except (Unreadable, ParserDied, ParserMissing, Unanswered, OSError) as error:
            why = str(error)
        return Collected(FeedReport(feed=feed.name, error=why[:500]))

    async def _read(self, path: Path) -> Collected:
        found = await self._parse(await asyncio.to_thread(_content, path), name=path.stem)
        return Collected(FeedReport(feed=str(path), items=len(found)), found)

    async def _parse(self, content: bytes, *, name: str) -> list[Item]:
        return await self._parser.call(name, list[Item], content=content, name=name)

    async def _fetch(self, url: str) -> Collected:
        known = await self._ledger.feed(url)
        fetched = await headgate.fetch(url, self._rules, headers=_asking(known))
        if fetched.status == 304 and known is not None:
            return Collected(FeedReport(feed=url, items=len(known.items), unchanged=True), known.items)
        if fetched.status != 200:
            raise Unanswered(f"it answered with status {fetched.status}")
        name = urllib.parse.urlsplit(url).hostname or url
        items = await self._parse(fetched.body, name=name)
        headers = fetched.headers
        await self._ledger.save_feed(
            KnownFeed(
                url=url,
                etag=headers.get("etag"),
                last_modified=headers.get("last-modified"),
                items=tuple(items),
            )
        )
        return Collected(FeedReport(feed=url, items=len(items)), items)


def _content(path: Path) -> bytes:
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise NoFeed(f"it has more than {LARGEST_FILE_BYTES:,} bytes")
    return path.read_bytes()


def _asking(known: KnownFeed | None) -> dict[str, str]:
    headers = {
        "User-Agent": AGENT,
        "Accept": "application/atom+xml, application/rss+xml, application/xml;q=0.9, */*;q=0.5",
    }
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.last_modified:
        headers["If-Modified-Since"] = known.last_modified
    return headers
