"""`/dead-letters`: by cause, one by one, edited, replayed, discarded; many at once only after a second click."""

import re
from collections import Counter
from html import unescape
from typing import Any

import msgspec
import pytest
from server.dashboard.dashboard_stage import Screen, a_locked_screen, read_html
from server.dashboard.jobs_stage import TASKS, a_desk, dead, found
from server.http.front_stage import Play

from headgate.core.access import Role
from headgate.core.job import JobState

COUNTS = re.compile(r'<a href="(/dead-letters\?[^"]*)" class="count">([\d,]+)</a>')
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


async def _refused(screen: Screen, **options: Any) -> str:
    """A dead letter of another task, with a model."""
    handle = await screen.house.gateway.jobs.submit(
        "chat", {"model": "simulated/rejecting", **CHAT}, **options
    )
    await handle.wait(20)
    return handle.id


async def _states(screen: Screen) -> Counter[str]:
    return Counter(
        {name: count for name, count in (await screen.house.gateway.jobs.count(tenant=None)).items() if count}
    )


def _ids(page: str) -> set[str]:
    return set(re.findall(r'href="/dead-letters/(job_[^"/]+)"', page))


def test_they_are_grouped_by_cause_and_a_count_leads_to_its_own(play: Play) -> None:
    """Forty dead letters are two mistakes; whoever drains them wants the mistakes."""

    async def scene() -> None:
        async with a_desk() as screen:
            letters = {(await dead(screen)).id for _ in range(3)}
            chats = {await _refused(screen)}

            page = (await screen.page("/dead-letters")).text
            assert _ids(page) == letters | chats
            causes = [(unescape(link), count) for link, count in COUNTS.findall(page)]
            assert [count for _, count in causes] == ["3", "1"]
            assert [_ids((await screen.page(link)).text) for link, _ in causes] == [letters, chats]
            assert "No dead letter fits" in (await screen.page("/dead-letters?reason=poison")).text
            assert (await screen.page("/dead-letters?reason=odd")).status_code == 400

    play(scene)


def test_one_is_edited_and_replayed_and_completes(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen)
            page = (await screen.page(f"/dead-letters/{job.id}")).text
            assert "there is no address" in page
            assert "Edit the input, then replay it." in page
            answer = await screen.post(f"/dead-letters/{job.id}/replay", {"input": '{"to": "Ann"}'})
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (
                303,
                f"/jobs/{job.id}",
            )
            ended = await screen.house.gateway.jobs.wait(job.id, timeout=20)
            assert (ended.state, ended.result) == (JobState.COMPLETED, {"sent": "Ann"})
            replayed = next(entry for entry in ended.history if entry.outcome == "replayed")
            assert (replayed.by, replayed.input) == ("local", {"text": "hello"})
            # Whoever still has the page open is told where it went.
            assert "This is no dead letter any more" in (await screen.page(f"/dead-letters/{job.id}")).text

    play(scene)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ('{"to": "Ann",\r\n "text": <b>}', "(line 2, character 10)"),
        ("", "This is no JSON"),
        ('{"a": NaN}', "This is no JSON"),
        ("[" * 5000, "nested too deeply"),
        ('"\\ud800"', "half a character"),
        ("null", "null is no input"),
        ('["no object"]', "object"),
    ],
    ids=str,
)
def test_what_cannot_be_an_input_is_told_beside_it_and_stays_typed(play: Play, typed: str, why: str) -> None:
    """An hour of editing must not be lost to a comma."""

    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen)
            answer = await screen.post(f"/dead-letters/{job.id}/replay", {"input": typed})
            assert answer.status_code == 400
            trouble = re.search(r'id="input-trouble"[^>]*>(.*?)</p>', answer.text, re.DOTALL)
            area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", answer.text, re.DOTALL)
            assert trouble is not None
            assert why in unescape(trouble[1])
            assert area is not None
            assert unescape(area[1]) == typed
            assert "data-live" not in answer.text
            assert await found(screen, job.id) == job

    play(scene)


def test_what_was_typed_survives_somebody_else_being_faster(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen)
            await screen.house.gateway.dead_letters.discard(job.id)
            answer = await screen.post(f"/dead-letters/{job.id}/replay", {"input": '{"to": "Ann & co"}'})
            assert answer.status_code == 409
            assert '{"to": "Ann & co"}' in read_html(answer.text).text
            assert "is cancelled, not a dead letter" in answer.text

    play(scene)


def test_an_input_that_was_not_changed_is_no_edit(play: Play) -> None:
    """The page writes it out in its own way; only another meaning is another input. 1 and true are two."""

    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen, {"text": "a\u202eb\x00", "n": 1})
            page = (await screen.page(f"/dead-letters/{job.id}")).text
            area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
            assert area is not None
            written = unescape(area[1])
            assert "\u202e" not in written
            for typed, edited in (
                (written.replace("\n", "\r\n"), False),
                (written.replace("1", "true"), True),
            ):
                await screen.post(f"/dead-letters/{job.id}/replay", {"input": typed})
                again = await screen.house.gateway.jobs.wait(job.id, timeout=20)
                entry = [entry for entry in again.history if entry.outcome == "replayed"][-1]
                assert (entry.input is not msgspec.UNSET) is edited

    play(scene)


def test_one_is_discarded_by_a_second_click(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            job = await dead(screen)
            assert (await screen.post(f"/dead-letters/{job.id}/discard")).status_code == 303
            ended = await found(screen, job.id)
            assert (ended.state, ended.reason) == (JobState.CANCELLED, "discarded")
            assert (await screen.post(f"/dead-letters/{job.id}/discard")).status_code == 409

    play(scene)


@pytest.mark.parametrize(("verb", "ends"), [("replay", "dead_letter"), ("discard", "cancelled")])
def test_many_are_done_after_a_page_that_says_how_many(play: Play, verb: str, ends: str) -> None:
    """The dry run first; the form of the page that says the number is the only way on."""

    async def scene() -> None:
        async with a_desk() as screen:
            letters = [(await dead(screen)).id for _ in range(4)]
            other = await _refused(screen)
            before = await _states(screen)

            page = (await screen.page(f"/dead-letters/{verb}?task=letters.send")).text
            assert "4 dead letters</strong> match" in page
            assert f"{verb.capitalize()} 4 dead letters</button>" in page
            assert await _states(screen) == before
            fields = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page))
            answer = await screen.post(f"/dead-letters/{verb}", fields)
            bulk_id = answer.headers["location"].partition("?")[0].removeprefix("/jobs/")
            bulk = await screen.house.gateway.jobs.wait(bulk_id, timeout=20)
            assert bulk.result == {"done": 4, "total": 4}
            assert "4 of 4" in (await screen.page(f"/jobs/{bulk_id}")).text
            for job_id in letters:
                job = await screen.house.gateway.jobs.wait(job_id, timeout=20)
                assert (job.state, job.history[1].outcome) == (
                    ends,
                    f"{verb}ed",
                )
                assert job.history[1].by == "local"
            assert (await found(screen, other)).generation == 1

    play(scene)


def test_all_of_them_must_be_meant(play: Play) -> None:
    """Without a filter there is no order; where several tenants are meant, one must be chosen."""

    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway):
            await dead(screen, tenant="acme")
            await dead(screen, tenant="other")
            before = await _states(screen)
            await screen.log_in(await gateway.key(role=Role.OPERATE))
            for verb in ("replay", "discard"):
                assert (await screen.page(f"/dead-letters/{verb}")).status_code == 400
                assert (await screen.post(f"/dead-letters/{verb}", {"tenant": "acme"})).status_code == 400
            page = (await screen.page("/dead-letters/discard?reason=permanent")).text
            assert "Whose are meant?" in page
            assert "<button" not in page.partition("<main")[2]
            assert await _states(screen) == before

            answer = await screen.post("/dead-letters/discard", {"reason": "permanent", "tenant": "acme"})
            bulk_id = answer.headers["location"].partition("?")[0].removeprefix("/jobs/")
            await screen.house.gateway.jobs.wait(bulk_id, timeout=20, tenant="acme")
            left = await screen.house.gateway.dead_letters.list(tenant=None)
            assert [job.tenant for job in left] == ["other"]

    play(scene)


def test_readers_see_their_own_and_can_do_nothing(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway):
            own, foreign = await dead(screen, tenant="acme"), await dead(screen, tenant="other")
            for role in (Role.READ, Role.CALL):
                await screen.log_in(await gateway.key(role=role, tenant="acme"))
                for query in ("", "?reason=permanent", "?tenant=other"):
                    page = (await screen.page(f"/dead-letters{query}")).text
                    assert _ids(page) == {own.id}
                    assert "Replay" not in page
                assert "<textarea" not in (await screen.page(f"/dead-letters/{own.id}")).text
                assert (await screen.page(f"/dead-letters/{foreign.id}")).status_code == 404
                assert (await screen.page("/dead-letters/replay?reason=permanent")).status_code == 403
                for path in (f"/{own.id}/replay", f"/{own.id}/discard", "/replay", "/discard"):
                    form = {"reason": "permanent", "input": "{}"}
                    assert (await screen.post(f"/dead-letters{path}", form)).status_code == 403, path
            assert await _states(screen) == {"dead_letter": 2}

    play(scene)


def test_a_key_for_some_models_spends_on_no_others_by_way_of_dead_letters(play: Play) -> None:
    """As over the API: neither by replaying what has another model, nor by editing one into it."""

    async def scene() -> None:
        async with a_locked_screen(work=True, tasks=TASKS) as (screen, gateway):
            own, foreign = await _refused(screen), (await dead(screen, model="m")).id
            await screen.log_in(await gateway.key(role=Role.OPERATE, models=("simulated/*",)))
            for path in (f"{foreign}/replay", f"{foreign}/discard"):
                assert (await screen.post(f"/dead-letters/{path}")).status_code == 403
            edited = {"input": msgspec.json.encode({"model": "m", **CHAT}).decode()}
            assert (await screen.post(f"/dead-letters/{own}/replay", edited)).status_code == 403
            assert (await screen.page("/dead-letters/replay?reason=permanent")).status_code == 403
            for form in ({"reason": "permanent"}, {"model": "m"}):
                assert (await screen.post("/dead-letters/replay", form)).status_code == 403
            assert await _states(screen) == {"dead_letter": 2}

            assert (await screen.post(f"/dead-letters/{own}/replay")).status_code == 303
            await screen.house.gateway.jobs.wait(own, timeout=20)

    play(scene)
