"""The page in a real browser: saving, failing, trying again, a double click, a train through a tunnel."""

import asyncio
import importlib
import os
from typing import Any

import pytest
from apps.bookmarks.stage import ANSWER, a_shop, a_site, answer, simulated

PATIENCE_MS = 10_000


def playwright() -> Any:
    """Skip at home where there is no browser; a CI must have one."""
    try:
        return importlib.import_module("playwright.async_api")
    except ImportError:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "playwright is not installed: pip install playwright && playwright install chromium"
        )


def in_browser(scene: Any, **settings: Any) -> None:
    module = playwright()

    async def main() -> None:
        async with module.async_playwright() as player, a_site(bad=answer(b"", status=404)) as site:
            try:
                browser = await player.chromium.launch()
            except module.Error as error:
                (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no chromium: {error}")
            async with a_shop(**settings) as shop:
                context = await browser.new_context(viewport={"width": 390, "height": 844})
                page = await context.new_page()
                troubles: list[str] = []
                page.on("pageerror", lambda error: troubles.append(str(error)))
                await page.goto(f"{shop.served.url}/bookmarks")
                try:
                    await scene(page, context, shop, site)
                    assert troubles == []
                    wide = await page.evaluate("document.documentElement.scrollWidth")
                    assert wide <= 390, "nothing sticks out on a telephone"
                finally:
                    if folder := os.environ.get("HEADGATE_SCREENSHOTS"):
                        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
                        await page.screenshot(path=f"{folder}/{name}.png", full_page=True)
            await browser.close()

    asyncio.run(main())


async def save(page: Any, url: str) -> None:
    await page.fill("#url", url)
    await page.press("#url", "Enter")


async def reaches(page: Any, status: str) -> None:
    await page.wait_for_selector(f'.card[data-status="{status}"]', timeout=PATIENCE_MS)


def test_saved_processing_done() -> None:
    async def scene(page: Any, context: Any, shop: Any, site: Any) -> None:
        assert await page.is_visible("#empty")
        await save(page, site.url())
        await reaches(page, "processing")
        await reaches(page, "done")
        assert "Gates and their heads" in await page.inner_text(".card")

    in_browser(scene, models=simulated(latency_s=2))


def test_failed_tried_again_done() -> None:
    async def scene(page: Any, context: Any, shop: Any, site: Any) -> None:
        await save(page, site.url())
        await reaches(page, "failed")
        await page.click("text=Retry")
        await reaches(page, "done")

    script = ["rejected", {"outcome": "ok", "content": ANSWER}]
    in_browser(scene, models=simulated(script=script))


def test_a_double_click_saves_once() -> None:
    async def scene(page: Any, context: Any, shop: Any, site: Any) -> None:
        await page.fill("#url", site.url())
        await page.dblclick("#save-form button")
        await reaches(page, "done")
        assert await page.locator(".card").count() == 1
        assert (len((await shop.list())["data"]), shop.provider.calls) == (1, 1)

    in_browser(scene)


def test_offline_it_is_kept_and_online_it_is_sent() -> None:
    async def scene(page: Any, context: Any, shop: Any, site: Any) -> None:
        await context.set_offline(True)
        await save(page, site.url())
        await reaches(page, "saving")
        assert (await shop.list())["data"] == []
        await context.set_offline(False)
        await reaches(page, "done")
        assert await page.locator('.card[data-status="saving"]').count() == 0

    in_browser(scene)


def test_hostile_words_are_shown_and_not_obeyed() -> None:
    async def scene(page: Any, context: Any, shop: Any, site: Any) -> None:
        await shop.saved(site.url(), title="<img src=x onerror=\"document.title='owned'\">")
        await page.reload()
        await reaches(page, "done")
        assert "<img" in await page.inner_text(".card")
        assert await page.title() == "Bookmarks"

    in_browser(scene)
