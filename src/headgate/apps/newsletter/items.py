"""An item of a feed, and which items are judged: the newest, each page once, not too many of one domain."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from headgate.apps.newsletter.addresses import domain_of, same_page

JOINERS: Final = "\u200c\u200d"
"""They print nothing, and hold the letters of some scripts and the parts of emoji together."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed says of one page, as plain text."""

    url: str
    """In its canonical spelling."""
    title: str
    description: str = ""
    source: str = ""
    """The feed's own title."""
    published: datetime | None = None

    @property
    def id(self) -> str:
        return hashlib.sha256(same_page(self.url).encode()).hexdigest()[:20]

    @property
    def domain(self) -> str:
        return domain_of(self.url)


def dated_by(now: datetime, item: Item) -> Item:
    """A date in the future is none: it would keep an item at the head of every run. Clocks may differ by a day."""
    if item.published is None or item.published <= now + timedelta(days=1):
        return item
    return msgspec.structs.replace(item, published=None)


def newest_first(items: Iterable[Item]) -> list[Item]:
    """Without a date an item is as old as can be. Equal ones are told apart by their ids: the order is always the same."""
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(items, key=lambda item: (-(item.published or oldest).timestamp(), item.id))


def each_once(items: Iterable[Item]) -> Iterator[Item]:
    """Of several about one page, the first."""
    seen: set[str] = set()
    for item in items:
        if item.id not in seen:
            seen.add(item.id)
            yield item


def one_line(text: str) -> str:
    """Nothing that moves a cursor, turns the direction of writing, or ends a line."""
    kept = (char if char.isprintable() or char in JOINERS else " " for char in text)
    return " ".join("".join(kept).split())


class DomainCap:
    """Lets a few items of each domain through. 0: all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()

    def admits(self, item: Item) -> bool:
        if self._most and self._counts[item.domain] >= self._most:
            return False
        self._counts[item.domain] += 1
        return True
