"""Every call that a summary makes of a model is found by the `x-request-id` of its answer, or by its job."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from apps.articles.desk_stage import LONG
from seeds.articles_house import SUMMARIZE, Articles, ask, ended, queued
from server.stage import House
from server.upstreams import look, until


@pytest.fixture
def articles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Articles:
    return Articles(tmp_path, monkeypatch)


async def _story(house: House, request_id: str) -> Any:
    answer = await look(house, f"/v1/requests/{request_id}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_the_generations_of_a_summary_are_one_story_under_its_request_id(articles: Articles) -> None:
    async def scene(house: House) -> None:
        request_id = (await ask(house, SUMMARIZE)).headers["x-request-id"]
        story = await _story(house, request_id)
        assert (story["id"], story["status"], story["model"]) == (request_id, "ok", "m")
        assert [one["attempt"] for one in story["attempts"]] == [1, 2, 3]
        assert len(set(story["calls"])) == 3
        single = [await _story(house, call_id) for call_id in story["calls"]]
        assert [one["origin"] for one in single] == [request_id] * 3
        assert story["usage"]["output_tokens"] == sum(one["usage"]["output_tokens"] for one in single)
        assert story["latency_ms"] == pytest.approx(sum(one["latency_ms"] for one in single), abs=1000)

    articles.play({"script": ["repeat", "repeat", "ok"]}, scene)


def test_the_parts_of_a_long_article_belong_to_its_request(articles: Articles) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE, content=LONG)
        story = await _story(house, answer.headers["x-request-id"])
        assert len(story["calls"]) > 3

    articles.play({}, scene)


@pytest.mark.parametrize("content", ["The council has met on Monday. " * 10, LONG])
def test_a_streamed_summary_is_found(articles: Articles, content: str) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE, stream=True, content=content)
        assert (await _story(house, answer.headers["x-request-id"]))["status"] == "ok"

    articles.play({}, scene)


def test_a_summary_that_was_rejected_is_found_with_the_reason(articles: Articles) -> None:
    async def scene(house: House) -> None:
        crowd = [asyncio.create_task(ask(house, SUMMARIZE, article_id=f"c{number}")) for number in range(2)]
        await until(lambda: house.gateway.status().be_queue == 1)
        answer = await ask(house, SUMMARIZE)
        assert answer.status == 429
        story = await _story(house, answer.headers["x-request-id"])
        assert (story["status"], story["error"], story["attempts"]) == ("refused", "queue_full", [])
        assert [one["reason"] for one in story["refusals"]] == ["queue_full"]
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await until(lambda: house.all_free)

    articles.play({"slots": 1, "depth": 1, "outcome": "stall"}, scene)


def test_a_summary_that_failed_is_found_with_its_failure(articles: Articles) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE)
        assert answer.status == 502
        story = await _story(house, answer.headers["x-request-id"])
        assert (story["status"], len(story["attempts"])) == ("failed", 1)
        assert story["error"].startswith("misconfigured")

    articles.play({"outcome": "misconfigured"}, scene)


def test_the_calls_of_a_queued_summary_are_found_by_its_job(articles: Articles) -> None:
    async def scene(house: House) -> None:
        job_id = (await queued(house))["job_id"]
        assert (await ended(house, job_id))["status"] == "completed"
        story = await _story(house, job_id)
        assert (story["id"], story["status"]) == (job_id, "ok")
        assert [one["error"] for one in story["attempts"]] == ["invalid_output", "transient 503", None]
        assert len(story["calls"]) == 2, "one call with a regeneration, one of the next attempt"

    articles.play({"script": ["repeat", "transient", "ok"]}, scene)


def test_calls_of_other_requests_do_not_mix(articles: Articles) -> None:
    async def scene(house: House) -> None:
        first = (await ask(house, SUMMARIZE)).headers["x-request-id"]
        second = (await ask(house, SUMMARIZE, article_id="a2")).headers["x-request-id"]
        one, other = await _story(house, first), await _story(house, second)
        assert len(one["calls"]) == len(other["calls"]) == 1
        assert one["calls"] != other["calls"]

    articles.play({}, scene)
