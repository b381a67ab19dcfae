"""A real browser, where there is one."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import BrowserContext, async_playwright

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Browser = Callable[..., AbstractAsyncContextManager[BrowserContext]]


@pytest.fixture
def browser() -> Browser:
    """`async with browser(java_script_enabled=False) as context`: options are Playwright's for a context."""
    chromium = shutil.which("chromium")
    if chromium is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("chromium is not installed")

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[BrowserContext]:
        async with async_playwright() as playwright:
            launched = await playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
            try:
                yield await launched.new_context(**options)
            finally:
                await launched.close()

    return opened
