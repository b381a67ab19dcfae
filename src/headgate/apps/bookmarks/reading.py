"""From an address to the text of its page: fetched with care, extracted in a process of its own."""

import email.message
from collections.abc import Awaitable, Callable
from typing import Final

import headgate
from headgate.apps.bookmarks.extraction import Page
from headgate.apps.untrusted import Parser, ParserDied, ParserMissing, Unreadable

MISSING_EXTRA: Final = str(headgate.SettingsError.missing_extra("apps.bookmarks", "bookmarks"))
EXTRACT: Final = "headgate.apps.bookmarks.extraction:extract"
PARSER_DIED: Final = "parser_died"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_PLAIN: Final = frozenset({"text/plain", "text/markdown"})
_MAX_TYPE_CHARS: Final = 1024
"""Of a Content-Type; it is parsed in quadratic time."""
_EXTRA_REST_S: Final = 60.0
"""How often a worker without the extra looks whether somebody has installed it."""

Fetch = Callable[[str, headgate.FetchRules], Awaitable[headgate.Fetched]]


async def read_page(url: str, fetch: Fetch, rules: headgate.FetchRules, parser: Parser) -> Page:
    """Raises what says whether trying again can help: `Reject` when it cannot."""
    fetched = await fetch(url, rules)
    _check_status(fetched)
    kind, charset = _type_of(fetched)
    if kind not in _PAGES | _PLAIN:
        raise headgate.Reject(f"the address leads to {kind}, not to a page that can be read")
    page = await _extracted(parser, rules.tenant or "", fetched, charset, html=kind in _PAGES)
    if not page.excerpt:
        raise headgate.Reject("there is no text on the page; perhaps it needs JavaScript")
    return page


async def _extracted(
    parser: Parser, tenant: str, fetched: headgate.Fetched, charset: str | None, *, html: bool
) -> Page:
    try:
        return await parser.call(tenant, Page, body=fetched.body, charset=charset, html=html, url=fetched.url)
    except Unreadable as error:
        raise headgate.Reject(f"its text cannot be extracted: {error}") from error
    except ParserMissing as error:
        # The operator's to mend, and no fault of the bookmark's: it waits.
        raise headgate.RetryLater(_EXTRA_REST_S, f"{MISSING_EXTRA} ({error})") from error
    except ParserDied as error:
        failure = headgate.Failure(kind=headgate.FailureKind.TRANSIENT, message=str(error), code=PARSER_DIED)
        raise headgate.ProviderFailure(failure) from error


def _check_status(fetched: headgate.Fetched) -> None:
    status = fetched.status
    if status == 200:
        return
    message = f"the site answered {status}"
    if status in {408, 429} or status >= 500:
        kind = headgate.FailureKind.THROTTLED if status == 429 else headgate.FailureKind.TRANSIENT
        raise headgate.ProviderFailure(headgate.Failure(kind=kind, status=status, message=message))
    raise headgate.Reject(message)


def _type_of(fetched: headgate.Fetched) -> tuple[str, str | None]:
    """A page that does not say what it is, is HTML: so do browsers take it."""
    header = email.message.Message()
    header["content-type"] = (fetched.headers.get("content-type") or "text/html")[:_MAX_TYPE_CHARS]
    charset = header.get_param("charset")
    return header.get_content_type(), None if charset is None else str(charset)[:100]
