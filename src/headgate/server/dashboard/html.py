"""HTML as values. A string is text and is escaped; markup comes from `el` and from nowhere else.

Names of jobs, answers of models, metadata: all of it is hostile. What could run it cannot be built: no handlers, no
inline style or script, no link that leads elsewhere.
"""

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

_VOID: Final = frozenset({"br", "hr", "input", "link", "meta"})
_LINKS: Final = frozenset({"href", "src", "action", "formaction"})
_NEVER: Final = frozenset({"style", "srcdoc", "srcset"})
_CODE: Final = frozenset({"script", "style", "iframe", "object", "embed", "base"})


class Markup:
    """A piece of a page. Only this module makes one."""

    __slots__ = ("_text",)

    def __init__(self, text: str, made_by: object) -> None:
        if made_by is not _MAKER:
            raise TypeError("markup is made by el() and group(); a string is text")
        self._text = text

    def __str__(self) -> str:
        return self._text


_MAKER: Final = object()
Child: TypeAlias = "str | int | float | Markup | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """`el("td", text, class_="num", data_id=7)`. None and False leave an attribute out, True names it."""
    if tag in _CODE and children:
        raise ValueError(f"<{tag}> cannot have content here")
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}>", _MAKER)
    return Markup(f"<{tag}{written}>{''.join(map(_inside, children))}</{tag}>", _MAKER)


def group(*children: Child) -> Markup:
    """Several things beside each other."""
    return Markup("".join(map(_inside, children)), _MAKER)


def document(root: Markup) -> bytes:
    # A lone surrogate is text that no encoding can carry.
    return f"<!doctype html>\n{root}".encode(errors="replace")


def is_local(link: str) -> bool:
    """Whether a link stays on this server. A browser takes a backslash for a slash, and drops control characters."""
    return link.startswith(("/", "?", "#")) and not link.startswith(("//", "/\\")) and link.isprintable()


def _inside(child: Child) -> str:
    if isinstance(child, Markup):
        return str(child)
    if child is None:
        return ""
    if isinstance(child, str):
        return escape(child)
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(_inside, child))


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-")
    if name in _NEVER or name.startswith("on"):
        raise ValueError(f"the attribute {name} is not for pages that nothing foreign may run in")
    if name in _LINKS and not is_local(str(value)):
        raise ValueError(f"{name} leads elsewhere: {str(value)[:100]!r}")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
