"""Pages as HTTP: let in, shown, kept fresh; forms done and redirected; errors as pages."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Match, Route

from headgate.core.errors import InvalidRequest, Unauthorized
from headgate.mounting import AppStream
from headgate.server.access import Headers
from headgate.server.apps import EventStream
from headgate.server.dashboard.assets import asset_routes
from headgate.server.dashboard.door import Door, Guest, refuse_other_readers, refuse_other_sites
from headgate.server.dashboard.forms import button, read_form
from headgate.server.dashboard.html import Markup, el, is_local
from headgate.server.dashboard.layout import HEADERS, frame
from headgate.server.dashboard.live import LEAVE, TROUBLE, Live
from headgate.server.dashboard.login import PATH as LOGIN
from headgate.server.dashboard.login import Login
from headgate.server.dashboard.moments import Moments
from headgate.server.dashboard.navigation import navigation
from headgate.server.dashboard.notices import PARAMETER, Notices
from headgate.server.dashboard.page import Deed, Download, Page, Shown, Told, Visit
from headgate.server.dashboard.sessions import Sessions
from headgate.server.dashboard.sources import Sources
from headgate.server.dashboard.table import all_pages
from headgate.server.errors import Failed, going_away, log_error, read_error
from headgate.server.replies import Handler, decoded, route, tell_http_error

LIVE: Final = "/dashboard/live"
FILE: Final = "application/octet-stream"


class Dashboard:
    """All pages of one gateway."""

    def __init__(self, sources: Sources, new_id: Callable[[], str]) -> None:
        self._clock = sources.clock
        self._pages = all_pages(sources)
        sessions = Sessions(sources.access, sources.clock.now, new_id)
        self._door = Door(sources.access, sessions)
        self._login = Login(sources.access, sessions, self._door)
        self._notices = Notices(new_id)
        self._live = Live(sources.clock)
        self._shows = [
            (page, route(page.path, GET=self._guarded(partial(self._show, page)))) for page in self._pages
        ]

    def tenant_of(self, headers: Headers) -> str | None:
        """Whose session they show, if its key is still valid."""
        return self._door.tenant_of(headers)

    def close(self) -> None:
        """End the streams to open pages."""
        self._live.close()

    def routes(self) -> list[Route]:
        deeds = [
            route(deed.path, POST=self._guarded(partial(self._do, page, deed)))
            for page in self._pages
            for deed in page.deeds
        ]
        downloads = [
            route(one.path, GET=self._guarded(partial(self._give, page, one)))
            for page in self._pages
            for one in page.downloads
        ]
        shows = [shown for _, shown in self._shows]
        login = self._login.routes(self._guarded)
        live = route(LIVE, GET=self._guarded(self._follow))
        routes = [*shows, *deeds, *downloads, *login, live, *asset_routes()]
        for one in routes:
            # Pages are for people: the OpenAPI document and the table of errors are about the API.
            one.include_in_schema = False
        return routes

    # --- Pages ---

    async def _show(self, page: Page, request: Request) -> Response:
        guest = self._door.enter(request, page.needs)
        query = dict(request.query_params)
        notice = self._notices.read(query.pop(PARAMETER, None))
        shown = await page.show(self._visit(guest, request.path_params, query))
        address = _address(request, urlencode(query))
        live = f"{LIVE}?page={quote(address, safe='')}"
        return Response(
            self._framed(page, guest, shown, notice, live), media_type="text/html", headers=HEADERS
        )

    def _framed(
        self, page: Page, guest: Guest, shown: Shown, notice: str | None = None, live: str | None = None
    ) -> bytes:
        return frame(
            shown.title,
            el("div", el("h1", shown.title), shown.intro, class_="top"),
            None if notice is None else el("p", notice, class_="notice", role="status"),
            el("p", id=TROUBLE, class_="notice bad", role="status"),
            [section.markup() for section in shown.sections],
            navigation=navigation(self._pages, guest.viewer, page.entry),
            who=_who(guest),
            live=live,
        )

    async def _do(self, page: Page, deed: Deed, request: Request) -> Response:
        refuse_other_sites(request)
        if self._live.closed:
            raise going_away()
        guest = self._door.enter(request, deed.needs)
        form = await read_form(request, max_bytes=deed.form_bytes)
        if not guest.stays():
            raise Unauthorized("the key was revoked meanwhile")
        done = await deed.do(self._visit(guest, request.path_params, {}), form)
        if isinstance(done, Told):
            # Nothing keeps this fresh: it would take away what was typed.
            body = self._framed(page, guest, done.shown)
            return Response(body, done.status, media_type="text/html", headers=HEADERS)
        joint = "&" if "?" in done.to else "?"
        to = f"{done.to}{joint}{PARAMETER}={self._notices.leave(done.notice)}"
        return RedirectResponse(to, 303, headers=HEADERS)

    async def _give(self, page: Page, download: Download, request: Request) -> Response:
        guest = self._door.enter(request, page.needs)
        given = await download.give(self._visit(guest, request.path_params, {}))
        if isinstance(given.content, Path):
            return FileResponse(given.content, headers=HEADERS, media_type=FILE, filename=given.name)
        return Response(given.content, headers=HEADERS, media_type="application/json")

    async def _follow(self, request: Request) -> Response:
        refuse_other_readers(request)
        path, _, query = request.query_params.get("page", "").partition("?")
        page, params = self._find(path)
        try:
            guest = self._door.enter(request, page.needs)
        except Unauthorized:
            # An EventSource cannot log in; the page that opened it can.
            return Response(LEAVE, media_type="text/event-stream", headers=HEADERS)
        asked = dict(parse_qsl(query))

        async def render() -> dict[str, str]:
            shown = await page.show(self._visit(guest, params, asked, ticking=True))
            return {section.id: str(section.content) for section in shown.sections}

        key = (path, query, guest.viewer)
        whose = guest.viewer.scope
        self._live.check_room(key, whose)
        pieces = self._live.follow(key, whose, render, page.refresh_s, guest.stays)
        return EventStream(AppStream(pieces=pieces), lambda: None)

    def _find(self, path: str) -> tuple[Page, dict[str, str]]:
        for page, shown in self._shows:
            match, scope = shown.matches({"type": "http", "path": path, "method": "GET"})
            if match is Match.FULL:
                return page, decoded(scope["path_params"])
        raise InvalidRequest("there is no such page", param="page")

    def _visit(
        self, guest: Guest, path: dict[str, str], query: dict[str, str], *, ticking: bool = False
    ) -> Visit:
        tell = Moments(self._clock.utc(), ticking=ticking)
        return Visit(viewer=guest.viewer, by=guest.name, tell=tell, path=path, query=query)

    # --- Errors ---

    async def tell_http_error(self, request: Request, error: Exception) -> Response:
        """No such route: a page for people, JSON for programs."""
        told = await tell_http_error(request, error)
        if told.status_code == 404 and _is_person(request):
            return error_page(Failed(404, "not_found", f"There is nothing at {request.scope['path'][:200]}."))
        return told

    def _guarded(self, handle: Handler) -> Handler:
        """What goes wrong is told as a page."""

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthorized:
                return _to_login(request)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001 - told as everywhere, but to a person
                log_error(request.scope["path"], error)
                return error_page(read_error(error))

        return answer


def _address(request: Request, query: str) -> str:
    """Not `request.url`: that takes a question mark within an id for the beginning of the query."""
    path: str = request.scope["path"]
    return f"{path}?{query}" if query else path


def _is_person(request: Request) -> bool:
    """The API's paths answer everybody alike."""
    api = request.scope["path"].startswith(("/v1/", "/api/"))
    return not api and "text/html" in request.headers.get("accept", "")


def _to_login(request: Request) -> Response:
    # A form that was sent too late is not sent again by a login.
    is_page = request.method != "POST"
    asked = _address(request, request.scope["query_string"].decode("ascii")) if is_page else "/"
    if request.headers.get("sec-fetch-site") == "cross-site" and is_local(asked):
        # A link from elsewhere brings no strict cookie, logged in or not. From here the same link does.
        body = frame("Headgate", el("p", el("a", "Go on", href=asked)), onward=asked, wide=False)
        return Response(body, media_type="text/html", headers=HEADERS)
    return RedirectResponse(f"{LOGIN}?next={quote(asked, safe='')}", 303, headers=HEADERS)


def error_page(failed: Failed) -> Response:
    body = frame(
        str(failed.status),
        el("h1", _TITLES.get(failed.status, "That did not work")),
        el("p", failed.message),
        el("p", el("a", "Go to the overview", href="/")),
        wide=False,
    )
    response = Response(body, status_code=failed.status, media_type="text/html", headers=HEADERS)
    if failed.retry_after_s is not None:
        response.headers["retry-after"] = str(math.ceil(failed.retry_after_s))
    return response


_TITLES: Final = {
    403: "Not allowed",
    404: "Not here",
    409: "Not in this state",
    503: "Not now",
}


def _who(guest: Guest) -> Markup:
    role = "operator" if guest.viewer.scope is None else f"read-only, tenant {guest.viewer.tenant}"
    if not guest.keyed:
        return el("span", "no keys: everybody on this machine is an operator", class_="faint")
    return el("div", el("span", f"{guest.name} · {role}", class_="faint"), button("Log out", "/logout"))
