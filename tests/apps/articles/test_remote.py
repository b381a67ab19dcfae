"""The summariser from a Python program: at once, queued, and the state of a queued one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from apps.articles.desk_stage import CONTENT
from client.stub import Fault, Seen, stubbed
from seeds.articles_house import Articles
from server.stage import House

import headgate
from headgate.apps.articles import queue, status, summarize
from headgate.client import AsyncClient, Client
from headgate.planner import virtual
from headgate.planner.virtual import World

SUMMARY = {
    "success": True,
    "article_id": "a1",
    "summary": "A bridge.",
    "model": "m",
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_duration_ms": 12,
}


@pytest.fixture
def articles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Articles:
    return Articles(tmp_path, monkeypatch)


def test_a_summary_at_once(articles: Articles) -> None:
    async def scene(house: House) -> None:
        async with AsyncClient(house.url) as client:
            summary = await summarize(client, "a1", CONTENT, priority="high")
        assert (summary.article_id, summary.model, summary.success) == ("a1", "m", True)
        kept = await house.gateway.records.get("articles", "a1")
        assert kept is not None
        assert summary.summary == kept.body["summary"]

    articles.play({}, scene)


def test_a_queued_summary_is_followed_to_its_end(articles: Articles) -> None:
    async def scene(house: House) -> None:
        async with AsyncClient(house.url) as client:
            queued = await queue(client, "a1", CONTENT)
            assert queued.job_id is not None
            await client.wait(queued.job_id, timeout=20)
            found = await status(client, queued.job_id)
            assert (found.status, found.article_id) == (headgate.JobState.COMPLETED, "a1")
            assert found.summary
            again = await queue(client, "a1", CONTENT)
            assert (again.status, again.reason) == ("skipped", "summary_exists")
            with pytest.raises(headgate.HeadgateError, match="no job"):
                await status(client, "job_0")

    articles.play({}, scene)


def test_a_script_without_an_event_loop_uses_the_same_functions(articles: Articles) -> None:
    async def scene(house: House) -> None:
        def script() -> Any:
            with Client(house.url) as client:
                return client.run(summarize, "a1", CONTENT, priority="high")

        assert (await asyncio.to_thread(script)).article_id == "a1"

    articles.play({}, scene)


def test_what_the_route_says_is_wrong_is_raised(articles: Articles) -> None:
    async def scene(house: House) -> None:
        async with AsyncClient(house.url) as client:
            with pytest.raises(headgate.InvalidRequest) as caught:
                await summarize(client, "a1", "too short")
            assert caught.value.param == "content"

    articles.play({}, scene)


def test_a_full_queue_is_tried_again_after_its_retry_after_and_without_a_key() -> None:
    """The route keeps no answers under a key and refuses one."""

    async def main(world: World) -> None:
        async with (
            stubbed(Fault.FULL, Fault.FULL) as stub,
            AsyncClient(stub.url, clock=world.clock) as client,
        ):
            stub.otherwise = _answering(stub, SUMMARY)
            summary = await summarize(client, "a1", CONTENT)
            assert summary.summary == "A bridge."
            assert [seen.path for seen in stub.seen] == ["/api/v1/summarize"] * 3
            assert {seen.key for seen in stub.seen} == {None}
            assert world.clock.now() >= 2 * stub.after_s

    virtual.run(main)


def test_an_article_is_queued_under_one_key_through_all_tries() -> None:
    async def main(world: World) -> None:
        async with (
            stubbed(Fault.FULL, Fault.AWAY) as stub,
            AsyncClient(stub.url, clock=world.clock) as client,
        ):
            stub.otherwise = _answering(stub, {"job_id": "job_1", "status": "pending"})
            assert (await queue(client, "a1", CONTENT)).job_id == "job_1"
            first, *others = [seen.key for seen in stub.seen]
            assert first is not None
            assert others == [first, first]

    virtual.run(main)


def test_when_the_time_is_up_the_refusal_is_raised() -> None:
    async def main(world: World) -> None:
        async with stubbed() as stub, AsyncClient(stub.url, clock=world.clock) as client:
            stub.otherwise = lambda _: Fault.FULL
            with pytest.raises(headgate.QueueFull) as caught:
                await summarize(client, "a1", CONTENT, timeout_s=5)
            assert caught.value.retry_after_s == stub.after_s
            assert len(stub.seen) == 1

    virtual.run(main)


def _answering(stub: Any, value: dict[str, Any]) -> Any:
    def answer(_: Seen) -> Fault:
        stub.instead = (200, json.dumps(value).encode())
        return Fault.NONE

    return answer
