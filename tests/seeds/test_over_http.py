"""What the seeds do to jobs by SQL, by a button or by their own routes, done through the jobs API at a real port.

003 keeps summary jobs that time out in a dead-letter state; 002 has a failed-jobs table, a retry button and
`Idempotency-Key`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from server.http.front_stage import Answer, post
from server.stage import House, opened
from server.upstreams import look, sent

import headgate
from headgate import Context

HEALED: set[str] = set()
ARTICLES: Final = ("a0", "a1", "a2")


@headgate.task("summarise", timeout_s=0.05)
async def summarise(ctx: Context, article: dict[str, str]) -> str:
    if article["article_id"] not in HEALED:
        await asyncio.sleep(60)
    return "short"


@headgate.task("bookmark")
async def bookmark(ctx: Context, page: dict[str, str]) -> str:
    raise headgate.Reject("403 Forbidden")


@asynccontextmanager
async def _house() -> AsyncIterator[House]:
    jobs = {"retry": {"first_wait_s": 0.01, "jitter": "none"}}
    async with opened({"jobs": jobs}, work=True, tasks=[summarise, bookmark]) as house:
        yield house


async def _post(house: House, path: str, body: Any, *headers: str) -> Answer:
    return await sent(house, post(json.dumps(body).encode(), path, *headers))


async def _ended(house: House, task: str, given: Any) -> Any:
    taken = await _post(house, "/v1/jobs", {"task": task, "input": given, "max_attempts": 3})
    return await _end_of(house, json.loads(taken.body)["id"])


async def _end_of(house: House, job_id: str) -> Any:
    return json.loads((await look(house, f"/v1/jobs/{job_id}?wait=20")).body)


Play = Callable[[Callable[[House], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a test's coroutine in a served gateway that also works."""
    monkeypatch.chdir(tmp_path)
    HEALED.clear()

    def run(scene: Callable[[House], Awaitable[None]]) -> None:
        async def served() -> None:
            async with asyncio.timeout(60), _house() as house:
                await scene(house)

        asyncio.run(served())

    return run


def test_003_health_is_where_it_was(play: Play) -> None:
    """curl http://localhost:9200/api/v1/health"""

    async def scene(house: House) -> None:
        assert (await look(house, "/api/v1/health")).status == 200

    play(scene)


def test_003_dead_letters_are_listed_with_all_the_columns(play: Play) -> None:
    """SELECT article_id, status, retry_count, max_retries, error_message, created_at … ORDER BY created_at DESC"""

    async def scene(house: House) -> None:
        for article in ARTICLES:
            assert (await _ended(house, "summarise", {"article_id": article}))["state"] == "dead_letter"
        listed = json.loads((await look(house, "/v1/dead-letters?task=summarise")).body)["data"]
        assert [(one["state"], one["attempts"], one["max_attempts"]) for one in listed] == [
            ("dead_letter", 3, 3)
        ] * 3
        assert {one["error_message"] for one in listed} == {
            "transient timeout: it ran longer than its 0.05 s"
        }
        times = [one["created_at"] for one in listed]
        assert times == sorted(times, reverse=True)
        inputs = [
            json.loads((await look(house, f"/v1/dead-letters/{one['id']}")).body)["input"] for one in listed
        ]
        assert [one["article_id"] for one in inputs] == [*reversed(ARTICLES)]

    play(scene)


def test_003_by_hand_a_job_goes_back_to_pending_with_retry_count_0(play: Play) -> None:
    """UPDATE … SET status = 'pending', retry_count = 0 WHERE article_id = …"""

    async def scene(house: House) -> None:
        dead = await _ended(house, "summarise", {"article_id": "a0"})
        HEALED.add("a0")
        again = await _post(house, f"/v1/jobs/{dead['id']}/replay", {})
        record = json.loads(again.body)
        assert (again.status, record["error"], record["generation"]) == (202, None, 2)
        job = await _end_of(house, dead["id"])
        assert (job["state"], job["attempts"], job["result"]) == ("completed", 1, "short")

    play(scene)


def test_002_a_failed_job_has_the_fields_of_failed_jobs(play: Play) -> None:
    """id, job_type, error_message, failed_at, retryable: the button is there only where it helps."""

    async def scene(house: House) -> None:
        refused = await _ended(house, "bookmark", {"url": "https://example.org"})
        slow = await _ended(house, "summarise", {"article_id": "a0"})
        listed = json.loads((await look(house, "/v1/dead-letters")).body)["data"]
        told = {one["id"]: (one["job_type"], one["retryable"], bool(one["failed_at"])) for one in listed}
        assert told == {refused["id"]: ("bookmark", False, True), slow["id"]: ("summarise", True, True)}

    play(scene)


def test_002_the_four_steps_of_an_idempotency_key(play: Play) -> None:
    """First: done and recorded. The same again: the same answer. Another body: 409. Another key: anew."""

    async def scene(house: House) -> None:
        async def submit(url: str, key: str) -> Answer:
            body = {"task": "bookmark", "input": {"url": url}}
            return await _post(house, "/v1/jobs", body, f"Idempotency-Key: {key}")

        first, same = await submit("a", "k1"), await submit("a", "k1")
        assert [first.status, same.status, same.headers["idempotent-replayed"]] == [202, 202, "true"]
        assert json.loads(first.body)["id"] == json.loads(same.body)["id"]
        conflict = await submit("b", "k1")
        assert (conflict.status, conflict.code) == (409, "idempotency_key_mismatch")
        assert json.loads((await submit("b", "k2")).body)["id"] != json.loads(first.body)["id"]

    play(scene)
