"""Forms: how they are read, and the small ones that pages are full of."""

import asyncio
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from headgate.core.errors import InvalidRequest, PayloadTooLarge
from headgate.server.dashboard.html import Child, Markup, el
from headgate.server.dashboard.page import FORM_BYTES, Form
from headgate.server.http import Exchange

_ENCODED: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 1000


async def read_form(request: Request, *, max_bytes: int = FORM_BYTES) -> Form:
    """Its fields; of a name that comes twice, the last. A form above `max_bytes` is refused before any of it is read."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _ENCODED:
        raise InvalidRequest(f"a form comes as {_ENCODED}")
    exchange: Exchange = request.scope["extensions"]["headgate"]
    size_bytes, parts = exchange.head.length, []
    if size_bytes <= max_bytes:
        size_bytes = 0
        async for part in request.stream():
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > max_bytes:
                break
    if size_bytes > max_bytes:
        raise PayloadTooLarge(f"this form may have at most {max_bytes:,} bytes")
    body = b"".join(parts)
    # To decode 100 KB of percent signs takes a tenth of a second, and a thread lets others go on meanwhile.
    return _read(body) if size_bytes <= FORM_BYTES else await asyncio.to_thread(_read, body)


def _read(body: bytes) -> Form:
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidRequest("the form cannot be read: it must be UTF-8 with at most 1000 fields") from None
    return dict(pairs)


def needed(form: Form, name: str) -> str:
    """A field that must be there."""
    if not (value := form.get(name, "").strip()):
        raise InvalidRequest(f"the form says nothing about {name}", param=name)
    return value


def button(words: str, to: str, *, kind: str = "quiet", **fields: str) -> Markup:
    """A form that is one button. `fields` go along, hidden."""
    hidden = [el("input", type="hidden", name=name, value=value) for name, value in fields.items()]
    return el("form", hidden, el("button", words, type="submit", class_=kind), method="post", action=to)


def filters(*controls: Child, to: str) -> Markup:
    """A form that changes what a page shows, by its query."""
    send = el("button", "Show", type="submit", class_="quiet")
    return el("form", controls, send, method="get", action=to, class_="filters", role="search")


def choice(name: str, label: str, options: dict[str, str], chosen: str | None) -> Markup:
    """A labelled select. The first option is what holds when nothing is chosen."""
    told = [
        el("option", words, value=value, selected=value == (chosen or "")) for value, words in options.items()
    ]
    return el("label", el("span", label), el("select", told, name=name))


def text(
    name: str, label: str, value: str | None, *, placeholder: str | None = None, kind: str = "search"
) -> Markup:
    control = el(
        "input",
        type=kind,
        name=name,
        value=value,
        placeholder=placeholder,
        autocomplete="off",
        spellcheck="false",
    )
    return el("label", el("span", label), control)
