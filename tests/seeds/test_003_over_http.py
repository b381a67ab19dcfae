"""The states and fields of the summary jobs' table, as the summariser's own routes show them."""

import json
from pathlib import Path
from typing import Any

import pytest
from seeds.articles_house import SUMMARIZE, Articles, ended, queued
from server.http.front_stage import post
from server.stage import House
from server.upstreams import look, sent

FIELDS = {"job_id", "article_id", "status", "retry_count", "max_retries", "error_message", "summary"}


@pytest.fixture
def articles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Articles:
    return Articles(tmp_path, monkeypatch)


async def _status(house: House, job_id: str) -> Any:
    return json.loads((await look(house, f"{SUMMARIZE}/status/{job_id}")).body)


def test_pending_has_no_retries_no_error_and_no_summary(articles: Articles) -> None:
    """The defaults of the table: retry_count 0, max_retries 3."""

    async def scene(house: House) -> None:
        job_id = (await queued(house))["job_id"]
        told = await _status(house, job_id)
        assert set(told) == FIELDS
        assert (told["status"], told["retry_count"], told["max_retries"]) == ("pending", 0, 3)
        assert (told["error_message"], told["summary"]) == (None, None)

    articles.play({}, scene, work=False)


def test_completed_has_its_summary(articles: Articles) -> None:
    """ "Completed" without a stored result was a silent loss."""

    async def scene(house: House) -> None:
        told = await ended(house, (await queued(house))["job_id"])
        assert (told["status"], told["article_id"], told["error_message"]) == ("completed", "a1", None)
        assert told["summary"].startswith("simulated answer to:")

    articles.play({}, scene)


def test_three_failures_are_a_dead_letter_with_its_error(articles: Articles) -> None:
    """WHEN retry_count + 1 >= max_retries THEN 'dead_letter': three attempts, not three retries."""

    async def scene(house: House) -> None:
        told = await ended(house, (await queued(house))["job_id"])
        assert (told["status"], told["retry_count"], told["max_retries"]) == ("dead_letter", 3, 3)
        assert told["error_message"].startswith("transient 503")

    articles.play({"script": ["transient"] * 3}, scene)


def test_one_failure_is_pending_again_and_then_completed(articles: Articles) -> None:
    async def scene(house: House) -> None:
        told = await ended(house, (await queued(house))["job_id"])
        assert (told["status"], told["retry_count"]) == ("completed", 1)

    articles.play({"script": ["transient"]}, scene)


def test_dead_letters_are_found_by_their_article(articles: Articles) -> None:
    """SELECT article_id, status, retry_count, max_retries, error_message, created_at … WHERE status = 'dead_letter'"""

    async def scene(house: House) -> None:
        for article in ("a1", "a2"):
            await ended(house, (await queued(house, article_id=article))["job_id"])
        listed = json.loads((await look(house, "/v1/dead-letters?task=summarize")).body)["data"]
        assert [
            (one["metadata"]["article_id"], one["state"], one["attempts"], one["max_attempts"])
            for one in listed
        ] == [("a2", "dead_letter", 3, 3), ("a1", "dead_letter", 3, 3)]
        assert all(one["error_message"] and one["created_at"] for one in listed)

    articles.play({"script": ["transient"] * 6, "breaker": False}, scene)


def test_sent_back_by_hand_it_is_pending_with_retry_count_0_and_completes(articles: Articles) -> None:
    """UPDATE … SET status = 'pending', retry_count = 0 WHERE article_id = '<target_article_id>'"""

    async def scene(house: House) -> None:
        job_id = (await queued(house))["job_id"]
        assert (await ended(house, job_id))["status"] == "dead_letter"
        skipped = await queued(house)
        assert (skipped["job_id"], skipped["reason"]) == (job_id, "recent_failure_cooldown")
        again = await sent(house, post(b"{}", f"/v1/jobs/{job_id}/replay"))
        record = json.loads(again.body)
        assert (again.status, record["attempts"], record["error"]) == (202, 0, None)
        told = await ended(house, job_id)
        assert (told["status"], told["retry_count"], told["error_message"]) == ("completed", 0, None)

    articles.play({"script": ["transient"] * 3}, scene)


def test_what_can_never_work_is_a_dead_letter_at_once(articles: Articles) -> None:
    """Dead letter means that a person is needed; an article that the model has no word for is one."""

    async def scene(house: House) -> None:
        told = await ended(house, (await queued(house))["job_id"])
        assert (told["status"], told["retry_count"]) == ("dead_letter", 1)
        assert (await queued(house))["reason"] == "dead_letter_exists"

    articles.play({"outcome": "blank"}, scene)


def test_short_articles_are_skipped_and_never_dead(articles: Articles) -> None:
    """185 "dead" jobs were merely short articles."""

    async def scene(house: House) -> None:
        told = await queued(house, content="Too short.")
        assert told == {"job_id": None, "status": "skipped", "reason": "content_too_short"}
        assert json.loads((await look(house, "/v1/jobs")).body)["data"] == []

    articles.play({}, scene)


def test_an_unknown_job_is_404(articles: Articles) -> None:
    async def scene(house: House) -> None:
        answer = await look(house, f"{SUMMARIZE}/status/job_000000000000nobodys")
        assert (answer.status, answer.code) == (404, "not_found")

    articles.play({}, scene)
