"""The navigation, in its order. An entry is there once a page has it; a page belongs to one of these."""

from collections.abc import Iterable
from typing import Final

from headgate.server.dashboard.html import Markup, el
from headgate.server.dashboard.page import Page, Viewer

ENTRIES: Final = (
    "Overview",
    "Models",
    "Requests",
    "Jobs",
    "Dead letters",
    "Batches",
    "Alerts",
    "Keys",
)


def navigation(pages: Iterable[Page], viewer: Viewer, entry: str) -> Markup:
    """Links to the first page of each entry that this viewer may see."""
    first: dict[str, Page] = {}
    for page in pages:
        first.setdefault(page.entry, page)
    links = [
        el("a", name, href=first[name].path, aria_current="page" if name == entry else None)
        for name in ENTRIES
        if name in first and viewer.may(first[name].needs)
    ]
    return el("nav", links, aria_label="Pages")
