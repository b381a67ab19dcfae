"""A real browser in the loop of the server it looks at."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from browser import FLAGS
from playwright.async_api import BrowserContext, async_playwright

Browser = Callable[..., AbstractAsyncContextManager[BrowserContext]]


@pytest.fixture
def browser(browser_path: str) -> Browser:
    """`async with browser(java_script_enabled=False) as context`: options are Playwright's for a context."""

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[BrowserContext]:
        async with async_playwright() as playwright:
            launched = await playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
            try:
                yield await launched.new_context(**options)
            finally:
                await launched.close()

    return opened
