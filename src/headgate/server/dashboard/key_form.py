"""The form a key is made with, and what it says."""

import enum
from datetime import datetime, timedelta
from typing import Final, TypeVar

from headgate.core.access import AccessTerms, Role
from headgate.core.call import Lane
from headgate.core.errors import InvalidRequest
from headgate.server.dashboard.forms import choice, text
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.page import Form
from headgate.server.dashboard.parts import heading

E = TypeVar("E", bound=enum.StrEnum)
KEYS: Final = "/keys"
LONGEST_DAYS: Final = 36_500
_ROLES: Final = {
    Role.CALL.value: "call: ask models, hand in jobs",
    Role.READ.value: "read: only look",
    Role.OPERATE.value: "operate: everything",
}
_LANES: Final = {lane.value: lane.value for lane in Lane}
_LIMITS: Final = (
    ("requests_per_minute", "Requests a minute"),
    ("tokens_per_minute", "Tokens a minute"),
    ("parallel", "Requests at a time"),
)
_DAYS: Final = ("days", "Ends after days")


def key_form(form: Form, *, usual: Role, trouble: str | None) -> Markup:
    """What was typed before stays."""

    def field(name: str, label: str, placeholder: str | None = None) -> Markup:
        return text(name, label, form.get(name), placeholder=placeholder, kind="text")

    fields = [
        field("name", "Name", "billing service"),
        choice("role", "Role", _ROLES, form.get("role", usual.value)),
        field("tenant", "Tenant", "local"),
        field("models", "Models", "all; or: summary, ollama/*"),
        choice("lane", "Lane", _LANES, form.get("lane", Lane.INTERACTIVE.value)),
        *(field(name, label, "no limit") for name, label in _LIMITS),
        field(*_DAYS, "never"),
    ]
    return group(
        heading("Make a key"),
        el(
            "form",
            el("div", fields, class_="fields"),
            el("p", trouble or "", role="alert", class_="trouble"),
            el("p", el("button", "Make the key", type="submit")),
            method="post",
            action=KEYS,
            class_="card",
        ),
    )


def read_terms(form: Form, now: datetime) -> AccessTerms:
    """Raises InvalidRequest where a field makes no sense; whether the terms do is for who makes the key."""
    days = _whole(form, *_DAYS)
    limits = {name: _whole(form, name, label) for name, label in _LIMITS}
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise InvalidRequest(f"a key ends after 1 to {LONGEST_DAYS:,} days, or never", param="days")
    return AccessTerms(
        name=_said(form, "name"),
        tenant=_said(form, "tenant") or "local",
        role=_one_of(Role, form, "role"),
        models=tuple(part for each in _said(form, "models").split(",") if (part := each.strip())),
        lane=_one_of(Lane, form, "lane"),
        expires_at=None if days is None else now + timedelta(days=days),
        **limits,
    )


def _said(form: Form, name: str) -> str:
    return form.get(name, "").strip()


def _whole(form: Form, name: str, label: str) -> int | None:
    said = _said(form, name)
    if not said:
        return None
    if not (said.isascii() and said.isdigit() and len(said) <= 15):
        raise InvalidRequest(f"{label}: a whole number is needed, not {said[:40]!r}", param=name)
    return int(said)


def _one_of(kind: type[E], form: Form, name: str) -> E:
    try:
        return kind(_said(form, name))
    except ValueError:
        raise InvalidRequest(f"{name} must be one of {', '.join(kind)}", param=name) from None
