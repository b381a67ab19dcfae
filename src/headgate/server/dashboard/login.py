"""Logging in with a key, and out again."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import HeadgateError
from headgate.server.access import Access
from headgate.server.dashboard.door import COOKIE, Door, refuse_other_sites, session_id
from headgate.server.dashboard.forms import read_form
from headgate.server.dashboard.html import Markup, el, is_local
from headgate.server.dashboard.layout import HEADERS, frame
from headgate.server.dashboard.sessions import LONGEST_S, Sessions
from headgate.server.errors import read_error
from headgate.server.replies import Handler, route

PATH: Final = "/login"
_LOGIN_BYTES: Final = 1024
"""A key, and the address of a page in a form's spelling. Nobody has shown a key yet."""
_LONGEST_NEXT_CHARS: Final = 256


class Login:
    """`/login` and `/logout`."""

    def __init__(self, access: Access, sessions: Sessions, door: Door) -> None:
        self._access = access
        self._sessions = sessions
        self._door = door

    def routes(self, guarded: Callable[[Handler], Handler]) -> list[Route]:
        return [
            route(PATH, GET=guarded(self._ask), POST=guarded(self._open)),
            route("/logout", POST=guarded(self._close)),
        ]

    async def _ask(self, request: Request) -> Response:
        if not self._door.has_keys:
            return RedirectResponse("/", 303, headers=HEADERS)
        return _page(_next(request.query_params.get("next")))

    async def _open(self, request: Request) -> Response:
        refuse_other_sites(request)
        self._door.check_host(request)
        form = await read_form(request, max_bytes=_LOGIN_BYTES)
        onward = _next(form.get("next"))
        if not self._door.has_keys:
            return RedirectResponse(onward, 303, headers=HEADERS)
        key = form.get("key", "").strip().encode("latin-1", "replace")
        if not key:
            return _page(onward, "Enter a key: the field was empty.", 401)
        try:
            caller = self._access.admit([(b"x-api-key", key)], Action.LOOK)
        except HeadgateError as error:
            failed = read_error(error)
            return _page(onward, failed.message, failed.status)
        caller.leave()
        response = RedirectResponse(onward, 303, headers=HEADERS)
        response.set_cookie(
            COOKIE,
            self._sessions.open(caller),
            max_age=int(LONGEST_S),
            secure=_is_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def _close(self, request: Request) -> Response:
        refuse_other_sites(request)
        self._sessions.close(session_id(request.scope["headers"]))
        response = RedirectResponse(PATH, 303, headers=HEADERS)
        response.delete_cookie(COOKIE, secure=_is_https(request), httponly=True, samesite="strict")
        return response


def _next(asked: str | None) -> str:
    if asked is None or len(asked) > _LONGEST_NEXT_CHARS:
        return "/"
    return asked if asked.startswith("/") and is_local(asked) else "/"


def _is_https(request: Request) -> bool:
    """We speak plain HTTP; whoever stands before us and does not, says so."""
    return request.headers.get("x-forwarded-proto", "").lower() == "https"


def _page(onward: str, trouble: str | None = None, status: int = 200) -> Response:
    return Response(
        frame("Log in", _form(onward, trouble), wide=False),
        status_code=status,
        media_type="text/html",
        headers=HEADERS,
    )


def _form(onward: str, trouble: str | None) -> Markup:
    key = el(
        "input",
        type="password",
        name="key",
        id="key",
        autocomplete="current-password",
        spellcheck="false",
        required=True,
        autofocus=True,
        aria_describedby="trouble",
    )
    return el(
        "form",
        el("h1", "Log in"),
        el(
            "p", "This gateway has keys. Yours decides what you see here and what you may do.", class_="faint"
        ),
        el("p", trouble or "", id="trouble", role="alert"),
        # For password managers, which file a secret under a name.
        el("input", type="text", name="username", value="headgate", autocomplete="username", hidden=True),
        el("label", "Access key", for_="key"),
        key,
        el("input", type="hidden", name="next", value=onward),
        el("button", "Log in", type="submit"),
        el(
            "p",
            "To make a key, run ",
            el("code", "headgate keys create NAME --role operate"),
            " where the gateway runs, or with ",
            el("code", "--role read"),
            " for one that may only look.",
            class_="faint",
        ),
        method="post",
        action=PATH,
        class_="login",
    )
