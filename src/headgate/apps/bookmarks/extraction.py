"""From the bytes of a page to its title and text. Runs in a parsing process: strangers wrote the page."""

import importlib
import re
from typing import Any, Final

import msgspec

from headgate.apps.bookmarks.describing import tidy
from headgate.apps.untrusted.charsets import decode

HEAD_CHARS: Final = 3000
TAIL_CHARS: Final = 1000
LONGEST_TITLE_CHARS: Final = 300
MAX_MARKUP_CHARS: Final = 200_000
"""The extractor takes seconds for a megabyte of tags; what comes later than this is seldom the article."""
_BLANKS: Final = re.compile(r"[^\S\n]+")
_NO_TEXT: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|svg)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a page."""

    title: str | None
    excerpt: str


def extract(body: bytes, *, charset: str | None, html: bool, url: str) -> Page:
    """Of HTML the article, of plain text the text."""
    if not html:
        return Page(title=None, excerpt=excerpt(decode(body, charset)))
    trafilatura: Any = importlib.import_module("trafilatura")
    markup = decode(body, charset, markup=True)
    if len(markup) > MAX_MARKUP_CHARS:
        markup = _NO_TEXT.sub("", markup)[:MAX_MARKUP_CHARS]
    found = trafilatura.bare_extraction(markup, url=url, with_metadata=True, include_comments=False)
    if found is None:
        return Page(title=None, excerpt="")
    title = tidy(found.title or "")[:LONGEST_TITLE_CHARS] or None
    return Page(title=title, excerpt=excerpt(found.text or found.description or ""))


def excerpt(text: str) -> str:
    """The beginning and the end of what is too long."""
    clean = "\n".join(filter(None, (_BLANKS.sub(" ", line).strip() for line in text.splitlines())))
    clean = clean.replace("\0", "")
    if len(clean) <= HEAD_CHARS + TAIL_CHARS:
        return clean
    return f"{clean[:HEAD_CHARS]}\n[…]\n{clean[-TAIL_CHARS:]}"
