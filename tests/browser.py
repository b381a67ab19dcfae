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
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
MISSING: Final = f"there is no browser ({', '.join(PROGRAMS)}): make browser"
PATIENCE_S: Final = 60.0
STEP_MS: Final = 20_000
"""How long one thing on a page may take."""
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


playwright.expect.set_options(timeout=STEP_MS)


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
    async def context(self, **options: Any) -> AsyncIterator[playwright.BrowserContext]:
        """Cookies and settings of its own; the options are Playwright's."""
        context = await self._chromium.new_context(**options)
        try:
            context.set_default_timeout(STEP_MS)
            yield context
        finally:
            await context.close()

    @asynccontextmanager
    async def page(
        self, url: str, *, width: int = 1100, height: int = 800, dark: bool = False
    ) -> AsyncIterator[playwright.Page]:
        """A page in a context of its own. A script that fails, or that the page's policy stops, fails the test."""
        size, scheme = {"width": width, "height": height}, "dark" if dark else "light"
        async with self.context(viewport=size, color_scheme=scheme) as context:
            page = await context.new_page()
            troubles: list[str] = []
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("console", lambda said: troubles.extend(_refusals(said.text)))
            await page.goto(url)
            yield page
            await _keep_picture(page)
            assert troubles == []


@contextmanager
def running(path: str) -> Iterator[Browser]:
    with asyncio.Runner() as runner:
        manager = playwright.async_playwright()
        player = runner.run(manager.start())
        chromium = runner.run(player.chromium.launch(executable_path=path, args=_FLAGS))
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
