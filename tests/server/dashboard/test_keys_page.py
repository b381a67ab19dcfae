"""`/keys`: listed for operators, made and shown once, revoked after a question."""

import re

import httpx
from server.dashboard.dashboard_stage import a_locked_screen
from server.http.front_stage import Play
from server.locked_stage import Locked, locked

from headgate.core.access import AccessState, Role
from headgate.machine.clock import SystemClock

TEXT = re.compile(r'class="secret">([^<]+)<')
FORM = {
    "name": "billing",
    "role": "call",
    "tenant": "acme",
    "models": "m, ollama/*",
    "lane": "batch",
    "requests_per_minute": "600",
    "tokens_per_minute": "",
    "parallel": "4",
    "days": "90",
}


async def _states(gateway: Locked) -> dict[str, AccessState]:
    now = SystemClock().utc()
    return {key.name: key.state(now) for key in await gateway.keys.list()}


def test_a_key_is_shown_once_and_works_at_once(play: Play) -> None:
    """Its text is in one answer and nowhere else: not in the list, not in an address, not after a reload."""

    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name="boss"))
            answer = await screen.post("/keys", FORM)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            found = TEXT.search(answer.text)
            assert found is not None
            key = found[1]
            assert (await gateway.get("/v1/models", f"Authorization: Bearer {key}")).status == 200
            page = (await screen.page("/keys")).text
            assert key not in page
            for words in ("billing", "acme", "m, ollama/*", "600 requests/min", "4 at a time", "lane batch"):
                assert words in page, words
            assert f"…{key[-4:]}" in page

    play(scene)


def test_what_makes_no_sense_is_told_and_what_was_typed_stays(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name="boss"))
            before = await _states(gateway)
            for changes, why in (
                ({"name": ""}, "name"),
                ({"parallel": "many"}, "Requests at a time: a whole number is needed"),
                ({"parallel": "0"}, "parallel must be at least 1"),
                ({"days": "99999999"}, "days"),
                ({"role": "king"}, "role must be one of call, read, operate"),
                ({"models": "a*b"}, "a * may only stand at the end"),
            ):
                answer = await screen.post("/keys", {**FORM, **changes})
                assert (answer.status_code, TEXT.search(answer.text)) == (400, None), changes
                assert why in answer.text
                assert 'name="tenant" value="acme"' in answer.text
            assert await _states(gateway) == before

    play(scene)


def test_a_key_is_revoked_after_a_question(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name="boss"))
            text = await gateway.key(name="leaked")
            [leaked] = [key for key in await gateway.keys.list() if key.name == "leaked"]
            path = f"/keys/{leaked.id}/revoke"
            assert f'href="{path}"' in (await screen.page("/keys")).text
            assert "Revoke this key" in (await screen.page(path)).text
            assert (await _states(gateway))["leaked"] is AccessState.ACTIVE
            assert (await screen.post(path)).status_code == 303
            assert (await _states(gateway))["leaked"] is AccessState.REVOKED
            assert (await gateway.get("/v1/models", f"Authorization: Bearer {text}")).status == 401
            assert "revoked already" in (await screen.page(path)).text
            assert (await screen.page("/keys/key_nobody/revoke")).status_code == 400

    play(scene)


def test_who_revokes_their_own_key_was_warned_and_is_out(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name="boss"))
            [boss] = [key for key in await gateway.keys.list() if key.name == "boss"]
            page = (await screen.page(f"/keys/{boss.id}/revoke")).text
            assert "No other key may operate" in page
            assert "the key you are logged in with" in page
            await screen.post(f"/keys/{boss.id}/revoke")
            assert (await screen.page("/keys")).headers["location"].startswith("/login")

    play(scene)


def test_the_warning_about_one_s_own_key_is_not_kept_fresh_for_others(play: Play) -> None:
    """What is kept fresh is made once for all operators."""

    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name="boss"))
            [boss] = [key for key in await gateway.keys.list() if key.name == "boss"]
            live = f"/dashboard/live?page=%2Fkeys%2F{boss.id}%2Frevoke"
            async with screen.http.stream("GET", live) as stream:
                async for line in stream.aiter_lines():
                    assert "logged in with" not in line
                    if "Revoke this key" in line:
                        break

    play(scene)


def test_a_key_for_some_models_makes_no_key_for_others(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, models=("m", "ollama/*")))
            for models in ("", "other", "m, other"):
                answer = await screen.post("/keys", {**FORM, "models": models})
                assert (answer.status_code, TEXT.search(answer.text)) == (403, None), models
            assert TEXT.search((await screen.post("/keys", {**FORM, "models": "ollama/qwen3"})).text)

    play(scene)


def test_keys_are_for_operators(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen() as (screen, gateway):
            before = await _states(gateway)
            [first] = await gateway.keys.list()
            for role in (Role.READ, Role.CALL):
                await screen.log_in(await gateway.key(role=role, name=role.value))
                assert 'href="/keys"' not in (await screen.page("/")).text
                for path in ("/keys", f"/keys/{first.id}/revoke"):
                    assert (await screen.page(path)).status_code == 403
                    assert (await screen.post(path, FORM)).status_code == 403
            assert await _states(gateway) == {
                **before,
                "read": AccessState.ACTIVE,
                "call": AccessState.ACTIVE,
            }

    play(scene)


def test_the_first_key_closes_the_door_and_the_page_says_so(play: Play) -> None:
    async def scene() -> None:
        async with locked() as gateway, httpx.AsyncClient(base_url=gateway.house.url) as http:
            page = (await http.get("/keys")).text
            assert "The first key that you make closes the gateway" in page
            assert '<option value="operate" selected>' in page
            made = await http.post(
                "/keys", data={**FORM, "role": "operate"}, headers={"origin": gateway.house.url}
            )
            assert TEXT.search(made.text) is not None
            assert (await http.get("/keys")).headers["location"].startswith("/login")

    play(scene)
