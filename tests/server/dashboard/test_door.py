"""Who gets in, as whom, and who cannot make others do things: sessions, roles, tenants, other sites."""

import copy
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from server.dashboard.dashboard_stage import (
    PAGES,
    Screen,
    a_locked_screen,
    a_screen,
    failed_attempt,
    responded,
)
from server.http.front_stage import Play

from headgate.core.access import Role
from headgate.server.access import ANYBODY, OpenAccess
from headgate.server.dashboard.sessions import LONGEST_S, MOST_EACH, Sessions

OTHERS: Final[tuple[dict[str, str], ...]] = (
    {"accept": "text/html"},
    {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "https://elsewhere.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
)
"""Forms that our pages did not send: nobody says who did, or somebody else says it was them."""


def _posts(screen: Screen) -> set[str]:
    routes: Any = screen.house.serving.routes
    return {route.path for route in routes if not route.include_in_schema and "POST" in route.methods}


def test_no_form_of_another_site_changes_anything(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            assert "/models/pause" in _posts(screen)
            for path in _posts(screen):
                for headers in OTHERS:
                    answer = await screen.post(path, {"model": "m", "key": "x"}, **headers)
                    assert (answer.status_code, path, headers) == (403, path, headers)
            assert screen.house.gateway.routes.pauses == {}

    play(scene)


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"origin": "http://{host}"}])
def test_our_own_forms_do_what_they_say(play: Play, headers: dict[str, str]) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            told = {
                name: value.format(host=f"127.0.0.1:{screen.house.port}") for name, value in headers.items()
            }
            paused = await screen.post("/models/pause", {"model": "m"}, **told)
            assert paused.status_code == 303
            assert "m is paused" in (await screen.page(paused.headers["location"])).text
            assert set(screen.house.gateway.routes.pauses) == {"m"}
            assert (await screen.post("/models/resume", {"model": "m"}, **told)).status_code == 303
            assert screen.house.gateway.routes.pauses == {}

    play(scene)


def test_without_keys_a_foreign_name_that_leads_here_is_another_site(play: Play) -> None:
    """A page of elsewhere.example can make its name lead to 127.0.0.1, and is of one origin with us then."""

    async def scene() -> None:
        async with a_screen() as screen:
            host = "elsewhere.example:8400"
            for path in PAGES:
                assert (await screen.page(path, host=host)).status_code == 403
            same = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
            assert (await screen.post("/models/pause", {"model": "m"}, **same)).status_code == 403
            assert screen.house.gateway.routes.pauses == {}

    play(scene)


def test_with_keys_every_page_leads_to_the_login_and_back(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            for path in PAGES:
                asked = await screen.page(path)
                assert asked.status_code == 303
                assert asked.headers["location"].startswith("/login?next=%2F")
            assert (await screen.page("/dashboard/live?page=%2F")).text == "event: leave\ndata: \n\n"
            late = await screen.post("/models/pause", {"model": "m"})
            assert late.headers["location"] == "/login?next=%2F"
            assert screen.house.gateway.routes.pauses == {}
            asked = await screen.page("/login?next=%2Fmodels%3Fq%3Dm")
            assert 'value="/models?q=m"' in asked.text
            key = await gateway.key(role=Role.OPERATE)
            back = await screen.post("/login", {"key": f" {key} ", "next": "/models?q=m"})
            assert (back.status_code, back.headers["location"]) == (303, "/models?q=m")
            assert (await screen.page("/models?q=m")).status_code == 200

    play(scene)


def test_the_login_names_the_command_whose_key_opens_the_pages(play: Play) -> None:
    """A key of the usual role would open next to nothing."""

    async def scene() -> None:
        async with a_locked_screen() as (screen, _):
            page = (await screen.page("/login")).text
            assert "headgate keys create NAME --role operate" in page
            assert "--role read" in page

    play(scene)


@pytest.mark.parametrize(
    "onward", ["https://elsewhere.example", "//elsewhere.example", "/\\elsewhere", "javascript:1", ""]
)
def test_a_login_leads_nowhere_else(play: Play, onward: str) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            back = await screen.post("/login", {"key": await gateway.key(), "next": onward})
            assert back.headers["location"] == "/"

    play(scene)


def test_a_session_s_cookie_is_for_this_site_and_no_script(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            key = await gateway.key()
            plain = (await screen.log_in(key)).headers["set-cookie"].lower()
            assert {"httponly", "samesite=strict", "path=/"} <= set(plain.split("; "))
            assert "secure" not in plain
            assert key.lower() not in plain
            behind = await screen.post(
                "/login", {"key": key}, origin=screen.house.url, **{"x-forwarded-proto": "https"}
            )
            assert "secure" in behind.headers["set-cookie"].lower()

    play(scene)


def test_a_wrong_key_is_told_and_opens_nothing(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, _):
            for key in ("", " ", "nonsense", "hg_" + "x" * 43, "ключ"):
                answer = await screen.log_in(key)
                assert answer.status_code == 401
                assert "set-cookie" not in answer.headers
                assert 'type="password"' in answer.text
                assert "Bearer" not in answer.text, "who fills in a form knows nothing of headers"

    play(scene)


def test_logging_out_and_revoking_the_key_end_a_session_at_once(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(name="leaving"))
            cookie = dict(screen.http.cookies)
            assert (await screen.page("/")).status_code == 200
            await screen.post("/logout")
            screen.http.cookies.update(cookie)
            assert (await screen.page("/")).status_code == 303
            screen.http.cookies.clear()
            await screen.log_in(await gateway.key(name="revoked"))
            assert (await screen.page("/")).status_code == 200
            await gateway.keys.revoke("revoked")
            await gateway.access.refresh()
            assert (await screen.page("/")).status_code == 303

    play(scene)


def test_a_form_whose_key_is_revoked_while_it_arrives_does_nothing(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(name="leaving", role=Role.OPERATE))

            async def form() -> AsyncIterator[bytes]:
                yield b"model="
                await gateway.keys.revoke("leaving")
                await gateway.access.refresh()
                yield b"m"

            told = {"content-type": "application/x-www-form-urlencoded", "origin": screen.house.url}
            late = await screen.http.post("/models/pause", content=form(), headers=told)
            assert late.headers["location"].startswith("/login")
            assert screen.house.gateway.routes.pauses == {}

    play(scene)


def test_a_session_ends_after_twelve_hours_and_a_key_s_oldest_makes_room_for_its_next() -> None:
    """Whoever logs in a thousand times must not log the operators out."""
    now = [0.0]
    ids = iter(f"{number:032d}" for number in range(10 * MOST_EACH))
    sessions = Sessions(OpenAccess(), lambda: now[0], lambda: next(ids))
    session_id = sessions.open(ANYBODY)
    now[0] = LONGEST_S - 1
    assert sessions.find(session_id) is ANYBODY
    now[0] = LONGEST_S
    assert sessions.find(session_id) is None
    somebody = copy.copy(ANYBODY)
    theirs = sessions.open(somebody)
    first = sessions.open(ANYBODY)
    others = [sessions.open(ANYBODY) for _ in range(MOST_EACH)]
    assert sessions.find(first) is None
    assert sessions.find(others[0]) is ANYBODY
    assert sessions.find(theirs) is somebody


@pytest.mark.parametrize("role", [Role.CALL, Role.READ])
def test_other_roles_look_and_do_nothing(play: Play, role: Role) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=role))
            models = await screen.page("/models")
            assert models.status_code == 200
            assert "Pause" not in models.text
            refused = await screen.post("/models/pause", {"model": "m"})
            assert refused.status_code == 403
            assert screen.house.gateway.routes.pauses == {}
            # How the gateway is doing is for those who watch it.
            assert (await screen.page("/alerts")).status_code == (200 if role is Role.READ else 403)
            assert ("Slots in use" in (await screen.page("/")).text) is (role is Role.READ)

    play(scene)


def test_another_tenant_s_calls_are_not_there(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            screen.tell(responded("mine", tenant="a"), responded("theirs", tenant="b"))
            await screen.log_in(await gateway.key(role=Role.READ, tenant="a"))
            listed = (await screen.page("/requests")).text
            assert "mine" in listed
            assert "theirs" not in listed
            assert "/requests/theirs" not in (await screen.page("/requests?q=theirs")).text
            assert (await screen.page("/requests/mine")).status_code == 200
            foreign, unknown = await screen.page("/requests/theirs"), await screen.page("/requests/nobodys")
            assert (foreign.status_code, foreign.text.replace("theirs", "nobodys")) == (404, unknown.text)
            await screen.log_in(await gateway.key(role=Role.OPERATE, tenant="c"))
            assert "theirs" in (await screen.page("/requests")).text

    play(scene)


def test_another_tenant_s_request_is_not_named_among_an_upstream_s_failures(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            screen.house.gateway.routes.find("m")
            screen.tell(failed_attempt("mine", tenant="a"), failed_attempt("theirs", tenant="b"))
            await screen.log_in(await gateway.key(role=Role.READ, tenant="a"))
            listed = (await screen.page("/models")).text
            assert "/requests/mine" in listed
            assert "theirs" not in listed
            await screen.log_in(await gateway.key(role=Role.OPERATE, tenant="c"))
            assert "/requests/theirs" in (await screen.page("/models")).text

    play(scene)


def test_a_key_that_lists_models_shows_these(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(models=("limited",)))
            listed = (await screen.page("/models")).text
            assert "<h2>limited</h2>" in listed
            assert "<h2>m</h2>" not in listed

    play(scene)


def test_a_link_from_elsewhere_is_followed_once_more_from_here(play: Play) -> None:
    """A strict cookie does not come along with it, and who is logged in should not see the login."""

    async def scene() -> None:
        async with a_locked_screen() as (screen, _):
            first = await screen.page("/models?q=m", **{"sec-fetch-site": "cross-site"})
            assert first.status_code == 200
            assert '<meta http-equiv="refresh" content="0;url=/models?q=m">' in first.text
            again = await screen.page("/models?q=m", **{"sec-fetch-site": "same-origin"})
            assert again.status_code == 303

    play(scene)
