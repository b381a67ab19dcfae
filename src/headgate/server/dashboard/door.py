"""Who may look at a page, and whether a form was really sent by one of our pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from headgate.core.access import Action
from headgate.core.errors import NotAllowed, Unauthorized
from headgate.server.access import ANYBODY, Access, Caller, Headers, is_here
from headgate.server.dashboard.page import Viewer
from headgate.server.dashboard.sessions import Sessions

COOKIE: Final = "headgate_session"
MAX_COOKIE_BYTES: Final = 4096
"""A longer Cookie header is ignored."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One who was let in. Ask `stays` again while a stream to them is open."""

    viewer: Viewer
    name: str
    keyed: bool
    stays: Callable[[], bool]


class Door:
    """Without keys everybody on this machine is an operator; with keys a session says who comes."""

    def __init__(self, access: Access, sessions: Sessions) -> None:
        self._access = access
        self._sessions = sessions

    @property
    def has_keys(self) -> bool:
        return self._access.has_keys

    def tenant_of(self, headers: Headers) -> str | None:
        """Whose session they show, or None."""
        caller = self._sessions.find(session_id(headers))
        return None if caller is None else caller.tenant

    def enter(self, request: Request, action: Action) -> Guest:
        """Raises Unauthorized for those who must log in, NotAllowed for those who may not."""
        guest = self._guest(request)
        if not guest.viewer.may(action):
            raise NotAllowed(f"your key may not {action}")
        return guest

    def _guest(self, request: Request) -> Guest:
        if not self.has_keys:
            self.check_host(request)
            # The first key that is made shuts the door for those who came without one.
            return Guest(_viewer(ANYBODY), ANYBODY.name, keyed=False, stays=lambda: not self.has_keys)
        shown = session_id(request.scope["headers"])
        caller = self._sessions.find(shown)
        if caller is None:
            raise Unauthorized("log in with a key")
        stays = self._sessions.find
        return Guest(_viewer(caller), caller.name, keyed=True, stays=lambda: stays(shown) is not None)

    def check_host(self, request: Request) -> None:
        """Without keys loopback is the only wall: a foreign name that leads here is another site's."""
        if not self.has_keys and not is_here(request.headers.get("host", "").encode("latin-1")):
            raise NotAllowed(
                "without keys the dashboard answers to localhost and 127.0.0.1 only; make a key: headgate keys create NAME --role operate"
            )


def session_id(headers: Headers) -> str:
    """The session that the request shows, or an empty text.

    Starlette's `cookies` decodes the values of all cookies, which takes quadratic time for quoted ones.
    """
    for name, value in headers:
        if name == b"cookie" and len(value) <= MAX_COOKIE_BYTES:
            for cookie in value.decode("latin-1").split(";"):
                key, _, shown = cookie.strip().partition("=")
                if key == COOKIE:
                    return shown
    return ""


def refuse_other_readers(request: Request) -> None:
    """Another site cannot read what we stream, and shall not keep us busy with it either."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise NotAllowed("this stream is for pages of this gateway")


def refuse_other_sites(request: Request) -> None:
    """A form counts when the browser says that our own page sent it. Who says nothing is refused."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        # Told by the browser itself, and right behind proxies that change the host.
        own = site == "same-origin"
    else:
        own = origin is not None and origin.partition("://")[2] == request.headers.get("host")
    if not own:
        raise NotAllowed("this form was not sent by a page of this gateway; open the page and try again")


def _viewer(caller: Caller) -> Viewer:
    return Viewer(caller.tenant, frozenset(filter(caller.may, Action)), caller.models)
