"""`/jobs` and `/jobs/{id}`: found, told whole, stopped; bounded, and only one's own."""

import asyncio
import re

from server.dashboard.dashboard_stage import a_locked_screen, a_screen, read_html
from server.dashboard.jobs_stage import TASKS, a_desk, dead, found, send, wait
from server.http.front_stage import Play

from headgate.core.access import Role
from headgate.core.job import JobState

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OLDER = re.compile(r'href="(/jobs\?[^"]*after=[^"]*)"')


def _listed(page: str) -> list[str]:
    """The ids, in the order of the page."""
    return re.findall(r'href="/jobs/(job_[^"/]+)"', page)


def test_jobs_are_found_by_id_state_task_and_model(play: Play) -> None:
    """Who looks for one job among many says what they know of it."""

    async def scene() -> None:
        async with a_screen() as screen:
            jobs = screen.house.gateway.jobs
            chat = await jobs.submit("chat", CHAT)
            other = await jobs.submit("embeddings", {"model": "limited", "input": "x"})
            gone = await jobs.submit("chat", CHAT)
            await gone.cancel()

            # Ids of one millisecond have no order among themselves.
            latest_first = sorted((chat.id, other.id, gone.id), reverse=True)
            assert _listed((await screen.page("/jobs")).text) == latest_first
            for query, expected in (
                ("task=chat", [job for job in latest_first if job != other.id]),
                ("model=limited", [other.id]),
                ("state=cancelled", [gone.id]),
                ("state=pending&task=chat", [chat.id]),
                (f"id={other.id}", [other.id]),
                ("task=nobody", []),
            ):
                assert _listed((await screen.page(f"/jobs?{query}")).text) == expected, query
            assert "No job has this id" in (await screen.page("/jobs?id=job_nobody")).text
            assert (await screen.page("/jobs?state=odd")).status_code == 400

    play(scene)


def test_pages_lead_on_until_every_job_was_seen_once(play: Play) -> None:
    """A thousand jobs are twenty pages; a page is never more than fifty of them."""

    async def scene() -> None:
        async with a_screen() as screen:
            asked = [{"task": "chat", "input": CHAT} for _ in range(120)]
            handles = await screen.house.gateway.jobs.submit_many(asked)
            seen, path = [], "/jobs?task=chat"
            while path:
                page = (await screen.page(path)).text
                assert len(_listed(page)) <= 50
                seen += _listed(page)
                link = OLDER.search(page)
                path = link[1].replace("&amp;", "&") if link else ""
            assert sorted(seen) == sorted(handle.id for handle in handles)
            assert len(seen) == 120

    play(scene)


def test_a_job_is_told_with_its_whole_history(play: Play) -> None:
    """What it was given, what went wrong, who sent it back with what: the page answers without a log."""

    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen, {"text": "first"}, metadata={"order": 4711})
            handle = await screen.house.gateway.dead_letters.replay(
                job.id, input={"to": "Ann", "text": "second"}, by="somebody"
            )
            await handle.wait(20)

            told = read_html((await screen.page(f"/jobs/{job.id}")).text).text
            for words in (
                "submitted",
                "attempt 1",
                "rejected: there is no address",
                "replayed",
                "generation 2",
                "by somebody",
                "The input was changed. Before, it was:",
                '"text": "first"',
                '"text": "second"',
                '"sent": "Ann"',
                '"order": 4711',
                "completed",
            ):
                assert words in told, words

    play(scene)


def test_progress_of_a_running_job_is_a_bar_and_words(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            handle = await screen.house.gateway.jobs.submit(wait, {"note": "reading"})
            while (await handle.job()).progress is None:  # noqa: ASYNC110 - the worker tells it when it likes
                await asyncio.sleep(0.01)
            page = (await screen.page(f"/jobs/{handle.id}")).text
            assert re.search(r'<progress value="3[.0]*" max="12[.0]*"', page)
            assert "3 of 12 · <bdi>reading</bdi>" in page
            await handle.cancel()

    play(scene)


def test_a_job_is_cancelled_by_its_button(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            running = await screen.house.gateway.jobs.submit(wait, {})
            path = f"/jobs/{running.id}/cancel"
            assert f'action="{path}"' in (await screen.page(f"/jobs/{running.id}")).text
            answer = await screen.post(path)
            assert (answer.status_code, (await running.wait(20)).state) == (303, JobState.CANCELLED)
            assert (await screen.post(path)).status_code == 303  # Once more is no mistake.

            ended = await dead(screen)
            assert (await screen.post(f"/jobs/{ended.id}/cancel")).status_code == 409
            assert (await found(screen, ended.id)).state is JobState.DEAD_LETTER

    play(scene)


def test_readers_see_their_own_jobs_and_can_do_nothing(play: Play) -> None:
    """A foreign id looks like one that never was; a button that is not there cannot be pressed by hand either."""

    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway):
            own = await screen.house.gateway.jobs.submit(wait, {}, tenant="acme")
            foreign = await screen.house.gateway.jobs.submit(send, {"to": "x"}, tenant="other")
            await screen.log_in(await gateway.key(role=Role.READ, tenant="acme"))

            assert _listed((await screen.page("/jobs")).text) == [own.id]
            assert "/cancel" not in (await screen.page(f"/jobs/{own.id}")).text
            assert (await screen.post(f"/jobs/{own.id}/cancel")).status_code == 403
            for path in ("", "/json"):
                never = (await screen.page(f"/jobs/job_never{path}")).text
                missing = await screen.page(f"/jobs/{foreign.id}{path}")
                assert missing.status_code == 404
                assert missing.text == never.replace("job_never", foreign.id)
            assert "No job has this id" in (await screen.page(f"/jobs?id={foreign.id}")).text
            assert not (await found(screen, own.id)).state.final
            await own.cancel()

    play(scene)


def test_operators_see_the_jobs_of_all_tenants(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway):
            foreign = await screen.house.gateway.jobs.submit(wait, {}, tenant="acme")
            await screen.log_in(await gateway.key(role=Role.OPERATE))
            assert "<bdi>acme</bdi>" in (await screen.page("/jobs")).text
            assert (await screen.post(f"/jobs/{foreign.id}/cancel")).status_code == 303
            job = await screen.house.gateway.jobs.wait(foreign.id, timeout=20, tenant="acme")
            assert job.state is JobState.CANCELLED

    play(scene)


def test_a_huge_job_is_a_small_page_that_says_what_it_leaves_out(play: Play) -> None:
    """Somebody's 4 MiB prompt must not freeze the browser of whoever looks why it failed."""

    async def scene() -> None:
        async with a_desk() as screen:
            huge = {"text": "<é>" * 1_020_000, "why": "x" * 100_000}
            job = await dead(screen, huge, metadata={"note": "n" * 10_000})
            for path in (f"/jobs/{job.id}", f"/dead-letters/{job.id}", "/jobs", "/dead-letters"):
                page = await screen.page(path)
                assert (page.status_code, len(page.content) < 250_000) == (200, True), path
            page = await screen.page(f"/jobs/{job.id}")
            assert "The first 20,000 of 4,1" in page.text
            whole = await screen.page(f"/jobs/{job.id}/json")
            assert whole.headers["content-type"] == "application/json"
            assert whole.json()["input"] == huge

    play(scene)
