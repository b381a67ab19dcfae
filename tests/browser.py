"""A real browser for tests of pages: one per worker process, a fresh context for every page."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import playwright.async_api as playwright

T = TypeVar("T")
playwright.expect.set_options(timeout=20_000)
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
MISSING: Final = f"there is no browser ({', '.join(PROGRAMS)}): make browser"
PATIENCE_S: Final = 60.0
STEP_MS: Final = 20_000
"""How long one thing on a page may take."""
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def program() -> str | None:
    """Where this machine's browser is."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A running browser and the event loop it belongs to: `browser.run(scene())` plays a test in that loop."""

    def __init__(self, runner: asyncio.Runner, chromium: playwright.Browser) -> None:
        self._runner = runner
        self._chromium = chromium

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                return await scene

        return self._runner.run(bounded())

    @asynccontextmanager
    async def page(
        self, url: str, *, width: int = 1100, height: int = 800, dark: bool = False
    ) -> AsyncIterator[playwright.Page]:
        """A page in a context of its own. A script that fails, or that the page's policy stops, fails the test."""
        context = await self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        try:
            context.set_default_timeout(STEP_MS)
            page = await context.new_page()
            troubles: list[str] = []
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("console", lambda said: troubles.extend(_refusals(said.text)))
            await page.goto(url)
            yield page
            await _keep_picture(page)
            assert troubles == []
        finally:
            await context.close()


@contextmanager
def running(path: str) -> Iterator[Browser]:
    with asyncio.Runner() as runner:
        manager = playwright.async_playwright()
        player = runner.run(manager.start())
        chromium = runner.run(player.chromium.launch(executable_path=path, args=FLAGS))
        try:
            yield Browser(runner, chromium)
        finally:
            runner.run(chromium.close())
            runner.run(player.stop())


def _refusals(said: str) -> list[str]:
    """What the console says of scripts and styles that a content security policy stopped."""
    return [said] if "Content Security Policy" in said else []


async def _keep_picture(page: playwright.Page) -> None:
    """For people: with HEADGATE_SCREENSHOTS=folder every page is kept as it looked at its end."""
    folder, name = os.environ.get("HEADGATE_SCREENSHOTS"), os.environ.get("PYTEST_CURRENT_TEST", "page")
    if folder:
        told = re.sub(r"\W+", "-", name.rpartition("::")[2].removesuffix(" (call)"))
        await page.screenshot(path=Path(folder) / f"{told}.png", full_page=True)
