"""A real browser: from a throttled upstream to a mended dead letter; and strangers' text and sites, without harm."""

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote, urlsplit

from browser import Browser
from playwright.async_api import BrowserContext, Page, Request, expect
from server.dashboard.dashboard_stage import Screen, a_locked_screen
from server.dashboard.hostile_stage import CORPUS, another_site, begin_batch, bury, known_as, terms
from server.dashboard.jobs_stage import TASKS, a_desk, dead, found, wait
from server.http.front_stage import Play
from server.locked_stage import Locked

from headgate import Context, Reject, task
from headgate.core.access import Role
from headgate.core.job import JobState

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


class Watch:
    """Everything that must not happen in a browser."""

    def __init__(self, context: BrowserContext, host: str) -> None:
        self.harm: list[str] = []
        self._host = host
        context.on("page", self._look)
        context.on("request", self._ask)

    def _look(self, page: Page) -> None:
        page.on("console", lambda message: self.harm.append(message.text))
        page.on("pageerror", lambda error: self.harm.append(str(error)))
        page.on("dialog", lambda dialog: self.harm.append(dialog.message))

    def _ask(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self._host:
            self.harm.append(request.url)


async def _see(page: Page, place: str, words: str | re.Pattern[str]) -> None:
    """It comes by itself, within what a machine that does much else needs."""
    await expect(page.locator(place)).to_contain_text(words, timeout=20_000)


async def _log_in(page: Page, screen: Screen, gateway: Locked) -> None:
    await page.goto(f"{screen.house.url}/login")
    await page.get_by_label("Access key").fill(await gateway.key(role=Role.OPERATE, name="boss"))
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{screen.house.url}/")


def test_a_person_finds_the_trouble_mends_a_dead_letter_and_sees_it_complete(
    browse: Play, browser: Browser
) -> None:
    """Open, see what is wrong in words, open a dead letter, edit, replay, and watch: nobody reloads anything."""

    async def scene() -> None:
        released = asyncio.Event()

        @task("letters.post")
        async def post(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
            if "to" not in given:
                raise Reject("there is no address")
            await released.wait()
            return {"posted": given["to"]}

        async with a_desk(post) as screen, browser.context() as context:
            watch = Watch(context, f"127.0.0.1:{screen.house.port}")
            page = await context.new_page()
            await page.goto(screen.house.url)
            await screen.throttle()
            await _see(page, "#wrong li", "limited → simulated is closed: throttling")

            refused = await screen.house.gateway.jobs.submit(post, {"text": "hello"})
            await refused.wait(20)
            await page.get_by_role("link", name="Dead letters", exact=True).click()
            await page.locator("#dead-letters tbody a").click()
            await _see(page, "#why", "Edit the input, then replay it.")
            area = page.get_by_label("The input, as JSON")
            await area.fill('{"text": "hello", "to": }')
            await page.get_by_role("button", name="Replay with this input").click()
            await _see(page, "#input-trouble", "This is no JSON")
            assert await area.input_value() == '{"text": "hello", "to": }'
            await area.fill('{"text": "hello", "to": "Ann"}')
            await page.get_by_role("button", name="Replay with this input").click()
            await _see(page, "#job .badge", re.compile("pending|running"))
            moved: list[str] = []
            page.on("framenavigated", lambda frame: moved.append(frame.url))
            released.set()
            await _see(page, "#job .badge", "completed")
            await _see(page, "#history", "replayed generation 2 · by local")
            await _see(page, "#result", '"posted": "Ann"')
            assert moved == []
            # The browser tells of the 400 that answered what was no JSON.
            assert [text for text in watch.harm if "400 (Bad Request)" not in text] == []

    browse(scene)


def test_nothing_a_stranger_wrote_runs_on_these_pages(browse: Play, browser: Browser) -> None:
    """In every field of jobs, dead letters, batches and keys: on pages as served, and as the stream brings them."""

    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway), browser.context() as context:
            watch = Watch(context, f"127.0.0.1:{screen.house.port}")
            page = await context.new_page()
            await _log_in(page, screen, gateway)
            await page.goto(f"{screen.house.url}/dead-letters")
            store = screen.house.gateway.durable.store
            paths = ["/jobs", "/dead-letters", "/batches", "/keys"]
            for number, words in enumerate((*CORPUS, " ".join(CORPUS[:-1]))):
                job_id = await bury(store, number, words)
                key = (await gateway.keys.create(terms(words))).kept.key
                name = quote(known_as(words), safe="")
                if number < len(CORPUS) - 2:
                    continue
                # One page each for what is long, for what turns the direction, and for all the rest together.
                batch_id = await begin_batch(screen, words)
                await screen.house.gateway.batches.wait(batch_id, timeout=20)
                paths += [
                    f"/jobs/{job_id}",
                    f"/dead-letters/{job_id}",
                    f"/batches/{batch_id}",
                    f"/keys/{key.id}/revoke",
                    f"/jobs?id={name}&task={name}&after=",
                    f"/dead-letters/replay?task={name}",
                ]
            await expect(page.locator("#dead-letters tbody tr")).to_have_count(
                len(CORPUS) + 1, timeout=20_000
            )
            await page.mouse.move(5, 5)
            for path in paths:
                answer = await page.goto(screen.house.url + path)
                assert answer is not None
                assert (answer.status, path) == (200, path)
                assert await page.evaluate("window.pwned") is None, path
                text = await page.evaluate("document.body.innerText")
                assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text), path
                sideways = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
                assert not sideways, path
            assert watch.harm == []

    browse(scene)


def test_a_form_on_another_site_changes_nothing(browse: Play, browser: Browser) -> None:
    """The operator is logged in and opens a stranger's page, which sends our forms in their name."""

    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway), browser.context() as context:
            page = await context.new_page()
            await _log_in(page, screen, gateway)
            job = await dead(screen)
            running = await screen.house.gateway.jobs.submit(wait, {})
            keys = await gateway.keys.list()
            url = screen.house.url
            forms = [
                (f"{url}/dead-letters/{job.id}/replay", {"input": json.dumps({"to": "thief"})}),
                (f"{url}/dead-letters/{job.id}/discard", {}),
                (f"{url}/dead-letters/discard", {"reason": "permanent", "tenant": "local"}),
                (f"{url}/jobs/{running.id}/cancel", {}),
                (f"{url}/keys", {"name": "thief", "role": "operate", "lane": "batch"}),
                (f"{url}/keys/{keys[0].id}/revoke", {}),
            ]
            async with another_site(forms) as elsewhere:
                for number, (to, _) in enumerate(forms):
                    await page.goto(elsewhere)
                    async with page.expect_navigation() as moved:
                        await page.evaluate(f"document.forms[{number}].submit()")
                    answer = await moved.value
                    assert answer is not None
                    assert (answer.url, answer.status) == (to, 403)
            assert await found(screen, job.id) == job
            assert not (await found(screen, running.id)).state.final
            assert await gateway.keys.list() == keys
            await running.cancel()

    browse(scene)


def test_without_keys_neither_a_nameless_form_nor_a_foreign_name_changes_anything(play: Play) -> None:
    """No Origin, another Origin, another Host that leads to this machine: each is somebody else."""

    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen)
            paths = (f"/dead-letters/{job.id}/replay", f"/dead-letters/{job.id}/discard", "/keys")
            host = "elsewhere.example"
            for headers in (
                {"accept": "*/*"},
                {"origin": "null"},
                {"origin": f"http://{host}"},
                {"host": host, "origin": f"http://{host}"},
                {"host": host, "sec-fetch-site": "same-origin"},
            ):
                for path in paths:
                    form = {"input": '{"to": "thief"}', "name": "thief", "role": "operate", "lane": "batch"}
                    assert (await screen.post(path, form, **headers)).status_code == 403, (path, headers)
            assert (await found(screen, job.id)).state is JobState.DEAD_LETTER
            assert await screen.house.gateway.durable.store.access_keys() == []

    play(scene)
