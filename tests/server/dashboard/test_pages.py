"""What the pages say, and that nothing a stranger wrote becomes more than text."""

import re
from typing import Final
from urllib.parse import quote, urlencode

import httpx
import pytest
from server.dashboard.dashboard_stage import (
    HOSTILE,
    PAGES,
    Bell,
    Screen,
    a_locked_screen,
    a_screen,
    an_alert,
    failed_attempt,
    read_html,
    responded,
)
from server.http.front_stage import Play

from headgate.core.access import Role
from headgate.core.failures import Failure, FailureKind

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TAGS: Final = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "a",
        "bdi",
        "header",
        "nav",
        "div",
        "main",
        "h1",
        "h2",
        "p",
        "ul",
        "li",
        "strong",
        "span",
        "time",
        "section",
        "dl",
        "dt",
        "dd",
        "figure",
        "figcaption",
        "svg",
        "line",
        "path",
        "rect",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "article",
        "form",
        "input",
        "button",
        "label",
        "select",
        "option",
        "details",
        "summary",
    ]
)
_INLINE: Final = re.compile(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style|(?:src|href)=\"(?!/|#|\?)")


async def _ask(screen: Screen, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return await screen.http.post("/v1/chat/completions", json=body)


def test_every_page_has_the_policy_and_nothing_inline(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            await _ask(screen, "m")
            screen.tell(responded("r1"))
            for path in (*PAGES, "/requests/r1", "/requests/nobodys", "/nowhere"):
                page = await screen.page(path)
                assert page.headers["content-security-policy"] == POLICY
                assert page.headers["x-content-type-options"] == "nosniff"
                assert page.headers["cache-control"] == "no-store"
                assert page.headers["content-type"] == "text/html; charset=utf-8"
                assert _INLINE.findall(page.text) == []
                for asset in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
                    served = await screen.http.get(asset)
                    assert served.status_code == 200
                    assert "immutable" in served.headers["cache-control"]

    play(scene)


def test_hostile_words_are_text_on_every_page(play: Play) -> None:
    """Ids, agents, tenants, names of models and of keys, codes of providers and alerts are all strangers' words."""

    async def scene() -> None:
        bell = Bell(
            [an_alert(words, subject=words) for words in HOSTILE],
            [an_alert(words, cleared_at=1_800_000_060.0) for words in HOSTILE],
        )
        named = [words for words in HOSTILE if words.isprintable() and "*" not in words]
        models = {words: {"upstreams": [{"provider": "simulated"}]} for words in named}
        async with a_locked_screen(alerts=bell) as (screen, gateway):
            await screen.log_in(await gateway.key(role=Role.OPERATE, name=named[0], tenant=named[1]))
            for words in HOSTILE:
                failure = Failure(kind=FailureKind.TRANSIENT, status=500, code=words)
                about = {"model": words, "upstream": words}
                screen.tell(
                    failed_attempt(words, failure=failure, **about),
                    failed_attempt(words, failure=failure),
                    responded(words, agent_id=words, tenant=words, error=f"transient 500 {words}", **about),
                )
            for path in (*PAGES, *(f"/requests/{quote(words, safe='')}" for words in named)):
                _check_tame(await screen.page(path))
            for words in named:
                _check_tame(
                    await screen.page(f"/requests?{urlencode({'q': words, 'model': words, 'status': words})}")
                )
        async with a_screen(models=models) as screen:
            for path in PAGES:
                _check_tame(await screen.page(path))
            for words in named:
                await screen.house.gateway.models.pause(words, by=words)
            for path in ("/", "/models"):
                _check_tame(await screen.page(path))

    play(scene)


def _check_tame(page: httpx.Response) -> None:
    assert page.status_code == 200
    read = read_html(page.text)
    assert set(read.tags) <= TAGS
    assert read.tags.count("script") == 1
    assert [name for name, _ in read.attributes if name.startswith("on") or name == "style"] == []
    links = [value or "" for name, value in read.attributes if name in {"href", "src", "action"}]
    assert [link for link in links if not link.startswith(("/", "#"))] == []


def test_the_overview_says_what_is_wrong_and_leads_there(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            assert "Nothing is wrong." in (await screen.page("/")).text
            await screen.throttle()
            told = re.sub("<[^>]+>", "", (await screen.page("/")).text)
            assert "limited → simulated is closed: throttling, it refused too many calls in a row" in told
            await screen.house.gateway.models.pause("m", by="ann")
            page = (await screen.page("/")).text
            assert "m: paused, by ann 0 s ago; its calls are refused" in re.sub("<[^>]+>", "", page)
            assert 'href="/models?q=limited"' in page

    play(scene)


def test_requests_are_found_by_id_model_and_outcome(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            screen.tell(
                responded("first"),
                failed_attempt("second"),
                responded("second", model="other", error="transient 503", attempts=2),
                responded("full", error="queue_full"),
            )
            listed = (await screen.page("/requests")).text
            assert listed.index("second") < listed.index("first")
            for query, there, gone in (
                ("q=first", "/requests/first", "/requests/second"),
                ("model=other", "/requests/second", "/requests/first"),
                ("status=ok", "/requests/first", "/requests/second"),
                ("status=failed", "/requests/second", "/requests/full"),
                ("status=refused", "/requests/full", "/requests/second"),
            ):
                found = (await screen.page(f"/requests?{query}")).text
                assert there in found
                assert gone not in found
            assert "No call fits." in (await screen.page("/requests?q=third")).text
            one = (await screen.page("/requests/second")).text
            assert "transient 503" in one
            assert "<rect" in one

    play(scene)


def test_older_requests_are_on_the_next_page(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            screen.tell(*(responded(f"r{number:03d}") for number in range(120)))
            seen: list[str] = []
            path: str | None = "/requests?model=m"
            while path is not None:
                page = (await screen.page(path)).text
                seen += re.findall(r'href="/requests/(r\d+)"', page)
                older = re.search(r'<a href="([^"]+)"[^>]*>Older', page)
                path = None if older is None else older[1].replace("&amp;", "&")
            assert seen == [f"r{number:03d}" for number in reversed(range(120))]

    play(scene)


def test_an_unknown_outcome_is_a_mistake_and_not_everything(play: Play) -> None:
    """Who misspells `failed` in a link must not read that all is well."""

    async def scene() -> None:
        async with a_screen() as screen:
            told = await screen.page("/requests?status=faild")
            assert (told.status_code, "status must be one of" in told.text) == (400, True)
            assert (await screen.page("/requests?status=")).status_code == 200

    play(scene)


def test_models_show_their_last_failures(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            screen.tell(*(failed_attempt(f"r{number}") for number in range(9)))
            page = (await screen.page("/models")).text
            assert "Last failures of simulated" in page
            assert re.findall(r'href="/requests/(r\d)"', page) == ["r8", "r7", "r6", "r5", "r4"]

    play(scene)


def test_alerts_are_told_in_words(play: Play) -> None:
    async def scene() -> None:
        bell = Bell(
            [an_alert("the breaker is open")], [an_alert("dead letters pile up", cleared_at=1_800_000_120.0)]
        )
        async with a_screen(alerts=bell) as screen:
            page = (await screen.page("/alerts")).text
            assert "the breaker is open" in page
            assert "breaker_open of m, fired" in page
            assert "dead letters pile up" in page
            assert "2 min</td>" in page
            assert "the breaker is open" in (await screen.page("/")).text

    play(scene)


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/nowhere", "text/html", "text/html; charset=utf-8"),
        ("/nowhere", "*/*", "application/json"),
        ("/v1/nowhere", "text/html", "application/json"),
        ("/requests/nobodys", "text/html", "text/html; charset=utf-8"),
    ],
)
def test_what_is_not_there_is_told_to_people_as_a_page(play: Play, path: str, accept: str, kind: str) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            answer = await screen.page(path, accept=accept)
            assert (answer.status_code, answer.headers["content-type"]) == (404, kind)

    play(scene)


def test_a_form_that_makes_no_sense_is_explained(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            unknown = await screen.post("/models/pause", {"model": "nobody"})
            assert (unknown.status_code, "no model is called" in unknown.text) == (404, True)
            missing = await screen.post("/models/pause", {"other": "m"})
            assert (missing.status_code, "says nothing about model" in missing.text) == (400, True)
            origin = {"origin": screen.house.url}
            other = await screen.http.post("/models/pause", json={"model": "m"}, headers=origin)
            assert other.status_code == 400

    play(scene)


def test_a_process_that_goes_away_takes_no_forms_and_says_so_as_a_page(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            screen.house.serving._dashboard.close()
            answer = await screen.post("/models/pause", {"model": "m"})
            assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert "shutting down" in answer.text

    play(scene)


def test_nobody_can_make_a_link_that_puts_words_on_a_page(play: Play) -> None:
    async def scene() -> None:
        async with a_screen() as screen:
            assert "pay me" not in (await screen.page("/models?notice=pay+me")).text

    play(scene)
