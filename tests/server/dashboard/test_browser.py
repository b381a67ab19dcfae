"""A person's path in a real browser: see what is wrong, act, and be attacked without harm."""

import time
from urllib.parse import quote

from browser import Browser
from conftest import Figure
from playwright.async_api import Page, expect
from server.dashboard.dashboard_stage import (
    HOSTILE,
    PAGES,
    Bell,
    a_locked_screen,
    a_screen,
    an_alert,
    failed_attempt,
    responded,
)
from server.http.front_stage import Play

from headgate.core.access import Role


def _listen(page: Page) -> list[str]:
    """Everything that the browser complains about: a policy that is broken, a script that fails."""
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    return heard


def test_a_throttled_upstream_is_explained_while_one_looks(
    browse: Play, browser: Browser, figure: Figure
) -> None:
    """The page is open when it happens; the words come by themselves."""

    async def scene() -> None:
        async with a_screen() as screen, browser.context() as context:
            page = await context.new_page()
            heard = _listen(page)
            await page.goto(screen.house.url)
            await expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
            await screen.throttle()
            happened_at = time.monotonic()
            told = page.locator("#wrong li")
            await expect(told).to_contain_text("limited → simulated is closed: throttling")
            lag_s = time.monotonic() - happened_at
            figure("event to screen", f"{lag_s * 1000:.0f} ms")
            await told.get_by_role("link").click()
            await expect(page.get_by_role("heading", name="limited")).to_be_visible()
            await expect(page.locator(".badge", has_text="closed: throttling")).to_be_visible()
            await page.get_by_role("button", name="Pause").click()
            await expect(page.locator(".notice").first).to_contain_text("limited is paused")
            await page.get_by_role("link", name="Overview").click()
            await expect(page.locator("#wrong")).to_contain_text("limited: paused, by local")
            assert heard == []

    browse(scene)


def test_it_can_be_read_without_javascript_and_on_a_narrow_screen(browse: Play, browser: Browser) -> None:
    async def scene() -> None:
        bell = Bell([an_alert("a" * 300)], [an_alert("b" * 300, cleared_at=1_800_000_060.0)])
        async with a_screen(alerts=bell) as screen:
            await screen.throttle()
            screen.tell(
                failed_attempt("x" * 255), responded("x" * 255, error="transient 503", agent_id="y" * 255)
            )
            narrow = {"width": 390, "height": 800}
            async with browser.context(java_script_enabled=False, viewport=narrow) as context:
                page = await context.new_page()
                await page.goto(screen.house.url)
                await expect(page.locator("#wrong")).to_contain_text(
                    "limited → simulated is closed: throttling"
                )
                for path in (*PAGES, f"/requests/{'x' * 255}", "/nowhere"):
                    await page.goto(screen.house.url + path)
                    assert await page.evaluate("document.documentElement.scrollWidth") == narrow["width"], (
                        path
                    )

    browse(scene)


def test_nothing_that_a_stranger_wrote_runs(browse: Play, browser: Browser) -> None:
    async def scene() -> None:
        bell = Bell([an_alert(words, subject=words) for words in HOSTILE])
        async with a_locked_screen(alerts=bell) as (screen, gateway), browser.context() as context:
            key = await gateway.key(role=Role.OPERATE, name=HOSTILE[0], tenant=HOSTILE[1])
            page = await context.new_page()
            heard = _listen(page)
            await page.goto(f"{screen.house.url}/login")
            await page.get_by_label("Access key").fill(key)
            await page.get_by_role("button", name="Log in").click()
            ids = [quote(words, safe="") for words in HOSTILE if words.isprintable()]
            await page.goto(f"{screen.house.url}/requests")
            # These come while the page is open, through the stream; then on every page as it is served.
            for words in HOSTILE:
                screen.tell(
                    failed_attempt(words), responded(words, agent_id=words, tenant=words, error=words)
                )
            await expect(page.locator("#requests tbody tr")).to_have_count(len(HOSTILE))
            for path in (*PAGES, *(f"/requests/{one}" for one in ids)):
                await page.goto(screen.house.url + path)
                assert await page.evaluate("window.pwned") is None
            assert heard == []

    browse(scene)
