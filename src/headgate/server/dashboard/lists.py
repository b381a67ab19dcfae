"""What lists have in common: a shortened id that leads to its page, whose each row is, and the way to older ones."""

from collections.abc import Sequence
from typing import Final

from headgate.server.dashboard.foreign import address, word
from headgate.server.dashboard.html import Child, Markup, el
from headgate.server.dashboard.page import Visit

SHORT_ID_CHARS: Final = 22
"""The time, which many share, and some of what is by chance."""


def id_link(path: str, id_: str) -> Markup:
    """Shortened: an id is looked at here and copied from its own page."""
    shown = id_ if len(id_) <= SHORT_ID_CHARS else f"{id_[:SHORT_ID_CHARS]}…"
    return el("a", shown, href=address(path, id_), title=id_, class_="mono id")


def add_tenants(heads: list[str], rows: list[list[Child]], tenants: Sequence[str], visit: Visit) -> None:
    """A column that says whose each is, where not all are the viewer's own."""
    if all(tenant == visit.viewer.tenant for tenant in tenants):
        return
    heads.insert(1, "Tenant")
    for row, tenant in zip(rows, tenants, strict=True):
        row.insert(1, word(tenant))


def pager(path: str, visit: Visit, last: str | None, *kept: str) -> Markup | None:
    """To older ones, after `last`, and back to the newest. `kept` are the filters that go along."""
    asked = {name: visit.asked(name) for name in kept}
    newest = None if visit.asked("after") is None else el("a", "Newest", href=address(path, **asked))
    older = None if last is None else el("a", "Older", href=address(path, **asked, after=last), rel="next")
    return None if newest is None and older is None else el("p", newest, older, class_="pager")
