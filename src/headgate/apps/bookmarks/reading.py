"""From an address to the text of its page: fetched with care, extracted in a thread."""

import asyncio
import email.message
import importlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

import headgate
from headgate.apps.bookmarks.describing import tidy

MISSING_EXTRA: Final = str(headgate.SettingsError.missing_extra("apps.bookmarks", "bookmarks"))
HEAD_CHARS: Final = 3000
TAIL_CHARS: Final = 1000
LONGEST_TITLE_CHARS: Final = 300
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_PLAIN: Final = frozenset({"text/plain", "text/markdown"})
_BLANKS: Final = re.compile(r"[^\S\n]+")
_EXTRA_REST_S: Final = 60.0
"""How often a worker without the extra looks whether somebody has installed it."""

Fetch = Callable[[str, headgate.FetchRules], Awaitable[headgate.Fetched]]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a page."""

    title: str | None
    excerpt: str


async def read_page(url: str, fetch: Fetch, rules: headgate.FetchRules) -> Page:
    """Raises what says whether trying again can help: `Reject` when it cannot."""
    fetched = await fetch(url, rules)
    _check_status(fetched)
    kind, charset = _type_of(fetched)
    if kind in _PLAIN:
        page = Page(title=None, excerpt=excerpt(_decoded(fetched.body, charset)))
    elif kind in _PAGES:
        page = await asyncio.to_thread(_extract, fetched.body, fetched.url)
    else:
        raise headgate.Reject(f"the address leads to {kind}, not to a page that can be read")
    if not page.excerpt:
        raise headgate.Reject("there is no text on the page; perhaps it needs JavaScript")
    return page


def excerpt(text: str) -> str:
    """The beginning and the end of what is too long."""
    clean = "\n".join(filter(None, (_BLANKS.sub(" ", line).strip() for line in text.splitlines())))
    clean = clean.replace("\0", "")
    if len(clean) <= HEAD_CHARS + TAIL_CHARS:
        return clean
    return f"{clean[:HEAD_CHARS]}\n[…]\n{clean[-TAIL_CHARS:]}"


def _check_status(fetched: headgate.Fetched) -> None:
    status = fetched.status
    if status == 200:
        return
    message = f"the site answered {status}"
    if status in {408, 429} or status >= 500:
        kind = headgate.FailureKind.THROTTLED if status == 429 else headgate.FailureKind.TRANSIENT
        raise headgate.ProviderFailure(headgate.Failure(kind=kind, status=status, message=message))
    raise headgate.Reject(message)


def _type_of(fetched: headgate.Fetched) -> tuple[str, str]:
    """A page that does not say what it is, is HTML: so do browsers take it."""
    header = email.message.Message()
    header["content-type"] = fetched.headers.get("content-type") or "text/html"
    return header.get_content_type(), str(header.get_param("charset") or "utf-8")


def _decoded(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, errors="replace")
    except (LookupError, ValueError):  # A site may name any codec, or none that there is.
        return body.decode("utf-8", errors="replace")


def _extract(body: bytes, url: str) -> Page:
    try:
        trafilatura: Any = importlib.import_module("trafilatura")
    except ImportError as error:
        # The operator's to mend, and no fault of the bookmark's: it waits.
        raise headgate.RetryLater(_EXTRA_REST_S, f"{MISSING_EXTRA} ({error})") from error
    found = trafilatura.bare_extraction(body, url=url, with_metadata=True, include_comments=False)
    if found is None:
        return Page(title=None, excerpt="")
    title = tidy(found.title or "")[:LONGEST_TITLE_CHARS] or None
    return Page(title=title, excerpt=excerpt(found.text or found.description or ""))
