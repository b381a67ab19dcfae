"""Access keys, for operators: who may call, as whom, how much; made, shown once, revoked."""

from collections.abc import Sequence
from typing import Final

from headgate.core.access import AccessKey, AccessState, Action, IssuedKey, Role, covers
from headgate.core.call import Lane
from headgate.core.errors import HeadgateError, InvalidRequest, ModelNotAllowed
from headgate.server.dashboard.foreign import address, joined, word
from headgate.server.dashboard.forms import button
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.key_form import KEYS, key_form, read_terms
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Deed, Done, Form, Page, Section, Shown, Told, Viewer, Visit
from headgate.server.dashboard.parts import badge, empty, heading, table
from headgate.server.dashboard.sources import Sources
from headgate.server.errors import read_error

SHOWN: Final = 200
_REVOKE: Final = f"{KEYS}/{{key_id}}/revoke"
_TONES: Final = {AccessState.ACTIVE: "good", AccessState.EXPIRED: "warn", AccessState.REVOKED: "plain"}


def pages(sources: Sources) -> Sequence[Page]:
    keys = Keys(sources)
    return [
        Page(
            path=KEYS,
            entry="Keys",
            show=keys.show,
            needs=Action.OPERATE,
            refresh_s=2.0,
            deeds=[Deed(path=KEYS, do=keys.create)],
        ),
        Page(
            path=_REVOKE,
            entry="Keys",
            show=keys.ask,
            needs=Action.OPERATE,
            refresh_s=2.0,
            deeds=[Deed(path=_REVOKE, do=keys.revoke)],
        ),
    ]


class Keys:
    """`/keys`."""

    def __init__(self, sources: Sources) -> None:
        self._keys = sources.keys
        self._access = sources.access

    async def show(self, visit: Visit) -> Shown:
        return await self._page(visit, {})

    async def create(self, visit: Visit, form: Form) -> Told:
        try:
            terms = read_terms(form, visit.tell.now)
            _check_models(visit.viewer, terms.models)
            issued = await self._keys.create(terms)
        except HeadgateError as error:
            failed = read_error(error)
            return Told(await self._page(visit, form, failed.message), failed.status)
        await self._access.refresh()
        return Told(Shown("A new key", [Section("new-key", _once(issued))]))

    async def ask(self, visit: Visit) -> Shown:
        keys = await self._keys.list()
        key = _find(keys, visit.path["key_id"])
        back = el("p", el("a", "All keys", href=KEYS))
        # Beside what is kept fresh: that is made once for all operators, and only one of them is meant.
        own = el("p", "It has the name of the key you are logged in with.", class_="notice bad")
        intro = group(back, own if key.name == visit.by else None)
        return Shown("Revoke a key", [Section("revoke", _question(key, keys, visit))], intro)

    async def revoke(self, visit: Visit, _: Form) -> Done:
        key = await self._keys.revoke(_find(await self._keys.list(), visit.path["key_id"]).id)
        await self._access.refresh()
        return Done(
            KEYS, f"The key …{key.last_four} is revoked: no gateway takes it any more within 5 seconds."
        )

    async def _page(self, visit: Visit, form: Form, trouble: str | None = None) -> Shown:
        keys = await self._keys.list()
        first = Role.OPERATE if not keys else Role.CALL
        sections = [
            Section("keys", _listed(keys, visit), "section steady"),
            Section("create", key_form(form, usual=first, trouble=trouble)),
        ]
        return Shown("Keys", sections)


def _check_models(viewer: Viewer, models: Sequence[str]) -> None:
    """Nobody hands on more than they have."""
    if viewer.models and not (models and all(covers(viewer.models, model) for model in models)):
        raise ModelNotAllowed(f"your key is for {', '.join(viewer.models)[:200]}: make keys for these")


def _find(keys: Sequence[AccessKey], key_id: str) -> AccessKey:
    for key in keys:
        if key.id == key_id:
            return key
    raise InvalidRequest(f"there is no key {key_id[:100]!r}", param="key")


def _listed(keys: Sequence[AccessKey], visit: Visit) -> Markup:
    if not keys:
        return empty(
            "There are no keys: only this machine may connect, and everybody on it is an operator.",
            "The first key that you make closes the gateway to everybody without one. Make one that may operate, or you"
            " lock yourself out of these pages.",
        )
    heads = ("Name", "Ends in", "State", "Role", "Tenant", "Models", "Limits", "Made", "")
    rows = [_row(key, visit) for key in keys[:SHOWN]]
    cut = el("p", f"The newest {SHOWN}; ", el("code", "headgate keys list"), " shows all.", class_="faint")
    return group(table(heads, rows), cut if len(keys) > SHOWN else None)


def _row(key: AccessKey, visit: Visit) -> list[Child]:
    state = key.state(visit.tell.now)
    revoke = el("a", "Revoke…", href=address(KEYS, key.id, "revoke"), class_="whole")
    return [
        word(key.name, most=80),
        el("span", f"…{key.last_four}", title=key.id, class_="mono"),
        badge(state, _TONES[state]),
        el("span", key.role, class_="whole"),
        word(key.tenant, most=80),
        word(", ".join(key.models)) if key.models else "all",
        _limits(key, visit),
        visit.tell.ago(key.created_at),
        None if state is AccessState.REVOKED else revoke,
    ]


def _limits(key: AccessKey, visit: Visit) -> Child:
    limits = (
        (key.requests_per_minute, "requests/min"),
        (key.tokens_per_minute, "tokens/min"),
        (key.parallel, "at a time"),
    )
    words: list[Child] = [f"{amount(limit)} {what}" for limit, what in limits if limit is not None]
    if key.lane is not Lane.INTERACTIVE:
        words.append(f"lane {key.lane}")
    if key.expires_at is not None and key.revoked_at is None:
        words.append(group("ends in ", visit.tell.until(key.expires_at)))
    return joined(words) if words else "none"


def _once(issued: IssuedKey) -> Markup:
    key = issued.kept.key
    return el(
        "div",
        heading("Copy it now"),
        el("p", "It is not kept and cannot be shown again."),
        el("p", el("code", issued.text, class_="secret")),
        el("p", word(key.name), f" · {key.role} · tenant ", word(key.tenant)),
        el("p", el("a", "All keys", href=KEYS)),
        class_="card",
    )


def _question(key: AccessKey, keys: Sequence[AccessKey], visit: Visit) -> Markup:
    now = visit.tell.now
    if key.state(now) is AccessState.REVOKED:
        return empty("This key is revoked already.", el("a", "All keys", href=KEYS))
    operators = [one for one in keys if one.role is Role.OPERATE and one.state(now) is AccessState.ACTIVE]
    last = el(
        "p",
        "No other key may operate: nobody will be able to log in here as an operator.",
        class_="notice bad",
    )
    return el(
        "div",
        el(
            "p", el("strong", word(key.name)), f" · …{key.last_four} · {key.role} · tenant ", word(key.tenant)
        ),
        el(
            "p",
            "Whoever uses it is refused within 5 seconds. Its jobs go on; a revoked key cannot be taken back.",
        ),
        last if operators == [key] else None,
        el(
            "div",
            button("Revoke this key", address(KEYS, key.id, "revoke"), kind="danger"),
            el("a", "No, keep it", href=KEYS),
            class_="actions",
        ),
        class_="card",
    )
