"""The frame around every page, and the headers that go with it."""

from typing import Final

from headgate.server.dashboard.assets import address
from headgate.server.dashboard.html import Child, Markup, document, el

HEADERS: Final = {
    # Nothing from elsewhere, nothing inline: what a model or a stranger wrote cannot run here.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not no-referrer: that would take the Origin from our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def frame(
    title: str,
    *content: Child,
    navigation: Markup | None = None,
    who: Child = None,
    live: str | None = None,
    wide: bool = True,
    onward: str | None = None,
) -> bytes:
    """A whole page. `live` is the address of the stream that keeps it fresh; `onward` is where it leads at once."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        None if onward is None else el("meta", http_equiv="refresh", content=f"0;url={onward}"),
        el("title", f"{title} · Headgate"),
        el("link", rel="icon", href=address("icon.svg")),
        el("link", rel="stylesheet", href=address("style.css")),
        None if live is None else el("script", src=address("live.js"), type="module"),
    )
    bar = el(
        "header", el("a", "Headgate", class_="brand", href="/"), navigation, el("div", who, class_="who")
    )
    skip = el("a", "Skip to the content", class_="skip", href="#main")
    main = el("main", content, id="main", data_live=live, class_=None if wide else "small")
    return document(el("html", head, el("body", skip, bar, main), lang="en"))
