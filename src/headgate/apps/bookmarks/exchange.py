"""Bookmarks to and from files: the Netscape format that every browser reads and writes, and JSON."""

import codecs
import html
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from html.parser import HTMLParser
from typing import Any, Final

import msgspec

import headgate
from headgate.apps.bookmarks.address import canonical
from headgate.apps.bookmarks.describing import tidy

LONGEST_TITLE_CHARS: Final = 300
_SIGN: Final = "<!doctype netscape-bookmark-file"
"""Of a file that may be empty."""
_HEAD: Final = """<!DOCTYPE NETSCAPE-Bookmark-file-1>
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<TITLE>Bookmarks</TITLE>
<H1>Bookmarks</H1>
<DL><p>
"""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """One bookmark of a file. What else the file says of it is left there."""

    url: str
    title: str | None = None
    tags: tuple[str, ...] = ()


def read_file(content: bytes) -> tuple[list[Imported], int]:
    """The bookmarks of a file, each address once, and how many of its links cannot be bookmarks."""
    found: dict[str, Imported] = {}
    left_out = 0
    text = _decoded(content).lstrip("\ufeff \t\r\n")
    for one in _json(text) if text[:1] in {"[", "{"} else _netscape(text):
        try:
            found.setdefault(canonical(one.url), one)
        except headgate.InvalidRequest:
            left_out += 1  # Folders of a browser's own, bookmarklets, files on a disk.
    return list(found.values()), left_out


def netscape(bookmarks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The file, line by line. `bookmarks` are as the API shows them."""
    yield _HEAD
    for one in bookmarks:
        added = int(datetime.fromisoformat(one["created_at"]).timestamp())
        tags = html.escape(",".join(tag.replace(",", " ") for tag in one["tags"]))
        yield (
            f'<DT><A HREF="{html.escape(one["url"])}" ADD_DATE="{added}" TAGS="{tags}">'
            f"{html.escape(one['title'] or one['url'])}</A>\n"
        )
        if one["summary"]:
            yield f"<DD>{html.escape(one['summary'])}\n"
    yield "</DL><p>\n"


def _json(text: str) -> list[Imported]:
    """A list of bookmarks, or the API's own list."""
    try:
        told = msgspec.json.decode(text)
        read = msgspec.convert(told.get("data") if isinstance(told, dict) else told, list[Imported])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise headgate.InvalidRequest(f"the file is no list of bookmarks: {error}", param="file") from None
    return [_tidied(one.url, one.title, one.tags) for one in read]


def _netscape(text: str) -> list[Imported]:
    reader = _Links()
    reader.feed(text)
    reader.close()
    if not reader.found and _SIGN not in text.lower():
        raise headgate.InvalidRequest(
            "the file is no list of bookmarks: there is neither a link in it nor JSON", param="file"
        )
    return reader.found


def _decoded(content: bytes) -> str:
    """Browsers write UTF-8; what was saved by an editor may be UTF-16, and begins with its mark."""
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if marked else "utf-8", errors="replace")


def _tidied(url: str, title: str | None, tags: Iterable[str]) -> Imported:
    kept = tuple(dict.fromkeys(filter(None, (tidy(tag)[:50] for tag in tags))))[:20]
    return Imported(url=url, title=tidy(title or "")[:LONGEST_TITLE_CHARS] or None, tags=kept)


class _Links(HTMLParser):
    """Every link with its text and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Imported] = []
        self._open: dict[str, str | None] | None = None
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._end()
            self._open = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._end()

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._words.append(data)

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        if self._open is not None and self._open.get("href"):
            tags = (self._open.get("tags") or "").split(",")
            self.found.append(_tidied(self._open["href"] or "", "".join(self._words), tags))
        self._open = None
        self._words = []
