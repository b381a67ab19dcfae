"""The page and the bookmarklet in a real browser while a real gateway process is away, replaced or taken down."""

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from apps.bookmarks.stage import until
from browser import Browser
from playwright.async_api import Page, expect

import headgate

PACKAGE: Final = Path(headgate.__file__).parent
SAVING: Final = '.card[data-status="saving"]'
KEPT: Final = "JSON.parse(localStorage.getItem('headgate.bookmarks.outbox') ?? '[]')"
IN_CACHES: Final = """async () => {
  const found = {};
  for (const name of await caches.keys()) {
    const cache = await caches.open(name);
    for (const request of await cache.keys()) {
      found[new URL(request.url).pathname] = await (await cache.match(request)).text();
    }
  }
  return found;
}"""
SHELL: Final = {
    "/bookmarks",
    *(f"/bookmarks/{name}" for name in ("app.js", "cards.js", "gateway.js", "outbox.js", "style.css")),
}


@dataclass
class GatewayProcess:
    """`headgate serve` with bookmarks, on one port through all its lives."""

    folder: Path
    port: int
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"{self.url}/bookmarks"

    async def start(self, *, apps: Any = None, source: Path | None = None) -> None:
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "data_dir": str(self.folder / "data"),
            "apps": {"bookmarks": {}} if apps is None else apps,
        }
        file = self.folder / "headgate.yaml"
        file.write_text(json.dumps(settings))
        path = {} if source is None else {"PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "headgate", "serve", "--no-work", "--config", str(file)]
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **path},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.running.append(process)
        assert process.stdout is not None
        assert b"headgate serve: http://" in await process.stdout.readline()

    async def stop(self) -> None:
        while self.running:
            process = self.running.pop()
            process.kill()
            await process.communicate()

    async def run(self, *command: str) -> str:
        """Another command on the same settings."""
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", *command, "--config", str(self.folder / "headgate.yaml")),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await made.communicate()
        assert made.returncode == 0
        return out.decode()

    async def bookmarks(self, **headers: str) -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=self.url, headers=headers) as client:
            listed: list[dict[str, Any]] = (await client.get("/v1/bookmarks")).json()["data"]
            return listed

    async def jobs(self) -> int:
        async with httpx.AsyncClient(base_url=self.url) as client:
            return len((await client.get("/v1/jobs")).json()["data"])


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[GatewayProcess]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gateway = GatewayProcess(folder, port)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()


async def is_kept(page: Page) -> None:
    """The worker is at work, and has all it needs."""
    await page.evaluate("navigator.serviceWorker.ready")
    await page.wait_for_function("navigator.serviceWorker.controller !== null")


async def save(page: Page, url: str) -> None:
    await page.fill("#url", url)
    await page.keyboard.press("Enter")


def test_page_and_bookmarklet_open_while_the_gateway_is_away_and_what_they_save_arrives_once(
    browser: Browser, tmp_path: Path
) -> None:
    """Open, newly opened, and brought by the bookmarklet: three addresses, each under the key it got when it was saved."""

    async def scene() -> None:
        async with a_gateway(tmp_path) as gateway, browser.page(gateway.page) as page:
            await is_kept(page)
            bookmarklet = await page.get_attribute("#bookmarklet", "href")
            await gateway.stop()
            await save(page, "https://a.example/open")
            await expect(page.locator("#away")).to_be_visible()

            anew = await page.context.new_page()
            await anew.goto(gateway.page)
            await expect(anew.locator("#away")).to_be_visible()
            await expect(anew.locator("#empty")).to_contain_text("shown here when the gateway is back")
            await expect(anew.locator(SAVING)).to_have_count(1)
            await save(anew, "https://a.example/newly-opened")

            # What the bookmarklet does, on a page of another site.
            assert (
                bookmarklet == f'javascript:location.href="{gateway.page}#"+encodeURIComponent(location.href)'
            )
            brought = await page.context.new_page()
            await brought.goto(f"{gateway.page}#https%3A%2F%2Fa.example%2Fbrought%3Fa%3D1")
            await expect(brought.locator("#url")).to_have_value("https://a.example/brought?a=1")
            await expect(brought.locator("#url")).to_be_focused()
            await brought.keyboard.press("Enter")
            await expect(brought.locator(SAVING)).to_have_count(3)
            kept = await brought.evaluate(KEPT)
            assert len({entry["key"] for entry in kept}) == 3

            await gateway.start()
            for one in (page, anew, brought):
                await expect(one.locator(SAVING)).to_have_count(0, timeout=40_000)
                await expect(one.locator("#away")).to_be_hidden(timeout=40_000)
            await expect(brought.locator("#bookmarks .card")).to_have_count(3)
            saved = await gateway.bookmarks()
            assert {one["url"] for one in saved} == {entry["body"]["url"] for entry in kept}
            assert (len(saved), await gateway.jobs()) == (3, 3)
            async with httpx.AsyncClient(base_url=gateway.url) as client:
                for entry in kept:
                    headers = {"idempotency-key": entry["key"]}
                    again = await client.post("/v1/bookmarks", json=entry["body"], headers=headers)
                    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")

    browser.run(scene())


def test_only_the_page_itself_is_kept_and_signing_out_leaves_nothing_private(
    browser: Browser, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with a_gateway(tmp_path) as gateway:
            key = (await gateway.run("keys", "create", "me")).strip()
            await gateway.stop()
            await gateway.start()  # It knows the key from the first request on.
            async with browser.page(gateway.page) as page:
                await is_kept(page)
                await page.fill("#key", key)
                await page.click("#key-form button")
                await save(page, "https://a.example/private")
                await expect(page.locator("#bookmarks .card")).to_have_count(1)
                # A tab that is opened from this one has its key.
                async with page.expect_popup() as opening:
                    await page.evaluate("void window.open(location.href)")
                other = await opening.value
                await expect(other.locator("#bookmarks .card")).to_have_count(1)
                assert (await page.evaluate(IN_CACHES)).keys() == SHELL
                await gateway.stop()
                await save(page, "https://a.example/unsent")
                await expect(page.locator(SAVING)).to_have_count(1)

                asked: list[str] = []

                async def agree(dialog: Any) -> None:
                    asked.append(dialog.message)
                    await dialog.accept()

                page.on("dialog", agree)
                await page.click("#sign-out")
                assert asked == ["One page has not been sent yet and will be lost. Sign out all the same?"]
                await expect(page.locator(".card")).to_have_count(0)
                await expect(other.locator(".card")).to_have_count(0)
                everything = [
                    await other.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])"),
                    await other.content(),
                    *(await page.evaluate(IN_CACHES)).values(),
                    await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])"),
                    await page.content(),
                    await page.input_value("#url"),
                ]
                for secret in (key, "a.example"):
                    assert not any(secret in one for one in everything)
                await page.reload()
                await expect(page.locator("#away")).to_be_visible()
                await expect(page.locator(".card")).to_have_count(0)
                await expect(page.locator("#sign-out")).to_be_hidden()

    browser.run(scene())


def test_another_version_of_the_page_replaces_the_one_that_is_kept(browser: Browser, tmp_path: Path) -> None:
    """An upgrade: the gateway comes back with other files, and none of the old ones is shown or stored any more."""

    async def scene() -> None:
        newer = tmp_path / "newer"
        ignored = shutil.ignore_patterns("__pycache__")
        await asyncio.to_thread(shutil.copytree, PACKAGE, newer / "headgate", ignore=ignored)
        script = newer / "headgate/apps/bookmarks/static/app.js"
        script.write_text(script.read_text() + 'document.title = "Bookmarks, newer";\n')
        async with a_gateway(tmp_path) as gateway, browser.page(gateway.page) as page:
            await is_kept(page)
            (before,) = await page.evaluate("caches.keys()")
            await gateway.stop()
            await gateway.start(source=newer)
            await page.reload()
            await expect(page).to_have_title("Bookmarks, newer")

            async def replaced() -> bool | None:
                names: list[str] = await page.evaluate("caches.keys()")
                return (len(names) == 1 and names != [before]) or None

            await until(replaced)
            await gateway.stop()
            await page.reload()
            await expect(page).to_have_title("Bookmarks, newer")
            await expect(page.locator("#away")).to_be_visible()

    browser.run(scene())


def test_a_gateway_without_bookmarks_takes_the_worker_away(browser: Browser, tmp_path: Path) -> None:
    async def scene() -> None:
        async with a_gateway(tmp_path) as gateway, browser.page(gateway.page) as page:
            await is_kept(page)
            await gateway.stop()
            await gateway.start(apps={})
            answer = await page.goto(gateway.page)
            assert answer is not None
            assert answer.status == 404
            await page.goto(f"{gateway.url}/health/live")
            assert await page.evaluate("caches.keys()") == []
            assert (
                await page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)")
                == 0
            )

    browser.run(scene())


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_a_gateway_behind_it_is_a_gateway_that_is_away(
    browser: Browser, tmp_path: Path, status: int
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<h1>Bad gateway</h1>"
        head = f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def scene() -> None:
        async with a_gateway(tmp_path) as gateway, browser.page(gateway.page) as page:
            await is_kept(page)
            await gateway.stop()
            proxy = await asyncio.start_server(refuse, "127.0.0.1", gateway.port)
            try:
                await page.goto(gateway.page)
                await expect(page.locator("#away")).to_be_visible()
                await save(page, "https://a.example/")
                await expect(page.locator(SAVING)).to_have_count(1)
            finally:
                proxy.close()
                await proxy.wait_closed()
            await gateway.start()
            await expect(page.locator("#bookmarks .card")).to_have_count(1, timeout=40_000)
            assert len(await gateway.bookmarks()) == 1

    browser.run(scene())
