"""What a page is: a path, what it shows to whom, and what can be done there. Pages know no HTTP."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from headgate.core.access import Action, covers
from headgate.server.dashboard.html import Markup, el
from headgate.server.dashboard.moments import Moments

FORM_BYTES: Final = 8 * 1024
"""The most that a form may have, unless its deed says otherwise."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. Two viewers that are equal see the same."""

    tenant: str
    actions: frozenset[Action]
    models: tuple[str, ...] = ()
    """What their key may use; none: every model."""

    def may(self, action: Action) -> bool:
        return action in self.actions

    def sees(self, model: str) -> bool:
        """Those who watch the gateway see all of it; others what they may use."""
        return self.may(Action.WATCH) or covers(self.models, model)

    def operates(self, model: str) -> bool:
        return self.may(Action.OPERATE) and covers(self.models, model)

    @property
    def scope(self) -> str | None:
        """Whose things they see; None: everybody's. For the `tenant` of every lookup."""
        return None if self.may(Action.OPERATE) else self.tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One look at a page."""

    viewer: Viewer
    by: str
    """The name of their key, for the histories of deeds. Not to be shown: others with the same rights see the same."""
    tell: Moments
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    def asked(self, name: str) -> str | None:
        """A filter from the query; an empty field of a form says nothing."""
        return self.query.get(name, "").strip() or None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page that changes on its own. Its id is ours, never a stranger's text."""

    id: str
    content: Markup
    class_: str = "section"
    """`section steady`: stays as it is while somebody points at it."""

    def markup(self) -> Markup:
        return el("section", self.content, id=self.id, class_=self.class_)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows now. The title and the introduction stay; sections are kept fresh."""

    title: str
    sections: Sequence[Section]
    intro: Markup | None = None
    """Beside the title: filters, a search."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a form has brought about: where to go on, and what to say there."""

    to: str
    notice: str


@dataclass(frozen=True, slots=True)
class Told:
    """A form answered in place: itself again with what is wrong, or what is shown once and kept nowhere."""

    shown: Shown
    status: int = 200


@dataclass(frozen=True, slots=True)
class Document:
    """What people take away from a page: JSON to look at, or a file from the disk, saved under this name."""

    content: bytes | Path
    name: str = ""


Form: TypeAlias = Mapping[str, str]
Show: TypeAlias = Callable[[Visit], Awaitable[Shown]]
Do: TypeAlias = Callable[[Visit, Form], Awaitable[Done | Told]]
Give: TypeAlias = Callable[[Visit], Awaitable[Document]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What a form on a page posts to. It may raise any HeadgateError: the person reads its message."""

    path: str
    do: Do
    needs: Action = Action.OPERATE
    form_bytes: int = FORM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Where a document is to be had by those who may look at its page."""

    path: str
    give: Give


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page. `entry` is its line in the navigation."""

    path: str
    entry: str
    show: Show
    needs: Action = Action.LOOK
    refresh_s: float = 0.5
    """How often an open page looks for news. Those that ask the database should ask less often."""
    deeds: Sequence[Deed] = ()
    downloads: Sequence[Download] = ()
