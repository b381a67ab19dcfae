"""The page in a real browser: saving, failing, trying again, a double click, a train through a tunnel, hostile words."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from apps.bookmarks.stage import ANSWER, DESCRIPTION, Shop, Site, a_shop, a_site, answer, simulated
from browser import Browser
from playwright.async_api import Page, expect

TELEPHONE = 390
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@asynccontextmanager
async def opened(
    browser: Browser, *, pages: dict[str, bytes] | None = None, **settings: Any
) -> AsyncIterator[tuple[Page, Shop, Site]]:
    """The page on a telephone: what fits there fits everywhere."""
    async with (
        a_site(**pages or {}) as site,
        a_shop(**settings) as shop,
        browser.page(f"{shop.served.url}/bookmarks", width=TELEPHONE) as page,
    ):
        yield page, shop, site
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= TELEPHONE, "nothing sticks out on a telephone"


async def save(page: Page, url: str) -> None:
    await page.fill("#url", url)
    await page.click("#save-form button")


async def reaches(page: Page, status: str) -> None:
    await page.wait_for_selector(f'.card[data-status="{status}"]')


def test_saved_processing_done(browser: Browser) -> None:
    """Nobody reloads the page to see how far it is."""

    async def scene() -> None:
        async with opened(browser, models=simulated(latency_s=1.5)) as (page, _, site):
            await expect(page.locator("#empty")).to_be_visible()
            await save(page, site.url())
            await reaches(page, "processing")
            await reaches(page, "done")
            await expect(page.locator(".card")).to_contain_text(DESCRIPTION["title"])
            await expect(page.locator("#empty")).to_be_hidden()

    browser.run(scene())


def test_failed_tried_again_done(browser: Browser) -> None:
    """The upstream refuses once; the button of the failed bookmark gives it another chance."""

    async def scene() -> None:
        script = ["rejected", {"outcome": "ok", "content": ANSWER}]
        async with opened(browser, models=simulated(script=script)) as (page, shop, site):
            await save(page, site.url())
            await reaches(page, "failed")
            await expect(page.locator(".trouble")).to_contain_text("The model refused this page.")
            await page.get_by_role("button", name="Retry").click()
            await reaches(page, "done")
            assert shop.provider.calls == 2

    browser.run(scene())


def test_a_double_click_saves_once(browser: Browser) -> None:
    async def scene() -> None:
        async with opened(browser) as (page, shop, site):
            await page.fill("#url", site.url())
            await page.dblclick("#save-form button")
            await reaches(page, "done")
            await expect(page.locator(".card")).to_have_count(1)
            assert (len((await shop.list())["data"]), shop.provider.calls) == (1, 1)

    browser.run(scene())


def test_offline_it_is_kept_and_online_it_is_sent(browser: Browser) -> None:
    async def scene() -> None:
        async with opened(browser) as (page, shop, site):
            await page.context.set_offline(True)
            await save(page, site.url())
            await reaches(page, "saving")
            assert (await shop.list())["data"] == []
            await page.context.set_offline(False)
            await reaches(page, "done")
            await expect(page.locator('.card[data-status="saving"]')).to_have_count(0)
            assert shop.provider.calls == 1

    browser.run(scene())


def test_what_waits_in_the_outbox_is_sent_by_a_page_that_is_opened_later(browser: Browser) -> None:
    """It is in the browser's own storage, each address under the key it was given when it was saved."""

    async def scene() -> None:
        async with opened(browser) as (page, shop, site):
            await page.context.set_offline(True)
            for path in ("/a", "/b"):
                await save(page, site.url(path))
            await expect(page.locator('.card[data-status="saving"]')).to_have_count(2)
            kept = await page.evaluate("JSON.parse(localStorage.getItem('headgate.bookmarks.outbox'))")
            assert [entry["body"]["url"] for entry in kept] == [site.url("/a"), site.url("/b")]
            assert len({entry["key"] for entry in kept}) == 2
            await page.goto("about:blank")
            await page.context.set_offline(False)
            await page.goto(f"{shop.served.url}/bookmarks")
            await expect(page.locator('.card[data-status="done"]')).to_have_count(2)
            assert shop.provider.calls == 2

    browser.run(scene())


def test_hostile_words_are_shown_and_not_obeyed(browser: Browser) -> None:
    """Titles are a page's or anybody's words, summaries a model's."""
    described = {**DESCRIPTION, "title": "<script>1</script>", "summary": HOSTILE.ljust(130, ".")}
    hostile_page = f"<title>{HOSTILE}</title><p>{HOSTILE} {'Words of a page. ' * 30}".encode()

    async def scene() -> None:
        pages = {"bad": answer(hostile_page, kind="text/html")}
        models = simulated(outcome={"outcome": "ok", "content": json.dumps(described)})
        async with opened(browser, pages=pages, models=models) as (page, shop, site):
            await shop.saved(site.url("/bad"))
            await shop.saved(site.url("/bad?2"), title=HOSTILE, tags=[HOSTILE[:50]])
            await page.reload()
            await expect(page.locator('.card[data-status="done"]')).to_have_count(2)
            await expect(page.locator(".card a").nth(0)).to_have_text(HOSTILE)
            await expect(page.locator(".card a").nth(1)).to_have_text("<script>1</script>")
            assert await page.title() == "Bookmarks"
            await expect(page.locator(".card :is(script, img)")).to_have_count(0)

    browser.run(scene())


def test_all_of_it_can_be_done_without_a_mouse_and_what_cannot_be_kept_is_told(browser: Browser) -> None:
    """Save, search, retry and delete by keys alone; and a browser whose storage is full loses no address."""

    async def scene() -> None:
        script = ["rejected", {"outcome": "ok", "content": ANSWER}]
        async with opened(browser, models=simulated(script=script)) as (page, _, site):
            keys = page.keyboard
            page.on("dialog", lambda dialog: dialog.accept())
            await page.evaluate("document.activeElement.blur()")
            await keys.press("n")
            await keys.type(site.url())
            await keys.press("Enter")
            await reaches(page, "failed")
            await tab_to(page, "Retry")
            await keys.press("Enter")
            await reaches(page, "done")
            await tab_to(page, "Delete")
            await keys.press("Enter")
            await expect(page.locator(".card")).to_have_count(0)
            await page.evaluate("document.activeElement.blur()")
            await keys.press("/")
            await expect(page.locator("#search")).to_be_focused()
            await page.evaluate("void (Storage.prototype.setItem = () => { throw new Error('full') })")
            await save(page, site.url("/other"))
            await expect(page.locator("#notice")).to_contain_text("could not keep it (full)")
            await expect(page.locator("#url")).to_have_value(site.url("/other"))

    browser.run(scene())


async def tab_to(page: Page, words: str, *, presses: int = 15) -> None:
    """Press Tab until the button with these words has the focus."""
    button = page.get_by_role("button", name=words)
    for _ in range(presses):
        await page.keyboard.press("Tab")
        if await button.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError(f"Tab never comes to {words}")
