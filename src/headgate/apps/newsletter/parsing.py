"""A feed's bytes into items: RSS and Atom by feedparser, their HTML into plain text."""

import calendar
import html
import importlib.util
import io
import re
from datetime import UTC, datetime
from typing import Any, Final

import headgate
from headgate.apps.newsletter.addresses import canonical
from headgate.apps.newsletter.items import Item, one_line
from headgate.apps.untrusted import Unreadable
from headgate.apps.untrusted.charsets import decode

LONGEST_DESCRIPTION: Final = 800
LONGEST_TITLE: Final = 300
LONGEST_READ: Final = 20_000
"""Of a text with its tags."""
_MARKUP: Final = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style)\b.*?(?:</\1\s*>|\Z)"
    r"""|<[a-z/!?](?:[^>"']++|"[^"]*+"|'[^']*+')*+(?:>|\Z)"""
    r"|<[a-z/!?][^>]*+(?:>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Comments, scripts, tags with quoted and with broken attributes. What is not closed takes the rest along, and so no time."""
MOST_ITEMS: Final = 500
"""Of one feed."""


class NoFeed(Unreadable):
    """What came is no RSS and no Atom."""


def check_extra() -> None:
    """Told before anything is asked. Looked for, not imported: that takes a while."""
    if importlib.util.find_spec("feedparser") is None:
        raise headgate.SettingsError.missing_extra("the newsletter", "newsletter")


def parse_feed(content: bytes, *, name: str) -> list[Item]:
    """The items that have an address; `name` stands in for a feed without a title. Runs in a parsing process."""
    import feedparser  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra: not everybody has it

    try:
        # What it would clean and resolve in the texts, we drop; on hostile ones that takes hours.
        feed = feedparser.parse(_as_utf8(content), sanitize_html=False, resolve_relative_uris=False)
        source = plain(feed.feed.get("title", ""), LONGEST_TITLE) or name
        items = [_item(entry, source) for entry in feed.entries[:MOST_ITEMS]]
    except MemoryError:
        raise
    except Exception as error:
        # Foreign code over strangers' bytes: whatever breaks there, it is this feed's trouble alone.
        raise NoFeed(f"it cannot be read: {type(error).__name__}") from error
    if not feed.get("version"):
        raise NoFeed("it is no RSS or Atom feed")
    return [item for item in items if item is not None]


def _as_utf8(content: bytes) -> io.BytesIO:
    """Feedparser would take any encoding that Python has, and text without tags for the path of a file to read."""
    return io.BytesIO(decode(content, markup=True).encode("utf-8", "replace"))


def _item(entry: Any, source: str) -> Item | None:
    url = canonical(entry.get("link", ""))
    if url is None:
        return None
    return Item(
        url=url,
        title=plain(entry.get("title", ""), LONGEST_TITLE) or url,
        description=plain(entry.get("summary", ""), LONGEST_DESCRIPTION),
        source=source,
        published=_moment(entry.get("published_parsed") or entry.get("updated_parsed")),
    )


def _moment(parsed: Any) -> datetime | None:
    try:
        return None if parsed is None else datetime.fromtimestamp(calendar.timegm(parsed), UTC)
    except (OverflowError, ValueError, OSError):
        return None


def plain(text: str, longest: int) -> str:
    """Text on one line: no tags, no escapes, no control characters, cut at a word's end where there is one."""
    words = one_line(html.unescape(_MARKUP.sub(" ", text[:LONGEST_READ])))
    if len(words) <= longest:
        return words
    return words[: longest - 1].rsplit(" ", 1)[0] + "…"
