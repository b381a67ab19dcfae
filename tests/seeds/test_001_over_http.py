"""The saturated queue as its callers meet it: 429 on every route, the status route, MAX_QUEUE_DEPTH, streams included."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from client.stub import Fault, stubbed
from seeds.articles_house import CONTENT, QUEUE, SUMMARIZE, Articles, ask, ended, queued
from server.stage import House
from server.upstreams import look, until

from headgate import wiring
from headgate.client import AsyncClient, Progress
from headgate.planner import virtual
from headgate.planner.virtual import World

STUCK: dict[str, Any] = {"slots": 2, "depth": 20, "outcome": "stall"}


@pytest.fixture
def articles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Articles:
    return Articles(tmp_path, monkeypatch)


async def _status(house: House) -> Any:
    return json.loads((await look(house, "/queue/status")).body)


async def _crowd(house: House, count: int) -> list["asyncio.Task[Any]"]:
    """So many callers that get no answer."""
    crowd = [
        asyncio.create_task(ask(house, SUMMARIZE, article_id=f"c{one}", priority="high"))
        for one in range(count)
    ]
    taken = min(count, 2)
    await until(lambda: house.gateway.status().rt_queue == count - taken)
    await until(lambda: house.gateway.status().available_slots == 2 - taken)
    return crowd


async def _go(crowd: list["asyncio.Task[Any]"]) -> None:
    for one in crowd:
        one.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def _leave(house: House, crowd: list["asyncio.Task[Any]"]) -> None:
    await _go(crowd)
    await until(lambda: house.all_free)


def test_queue_status_is_what_the_design_shows(articles: Articles) -> None:
    """One of two slots is taken, and nobody waits."""

    async def scene(house: House) -> None:
        crowd = await _crowd(house, 1)
        told = await _status(house)
        assert {name: told[name] for name in told if name != "upstreams"} == {
            "rt_queue": 0,
            "be_queue": 0,
            "total_slots": 2,
            "available_slots": 1,
            "accepting": True,
            "max_queue_depth": 20,
        }
        await _leave(house, crowd)

    articles.play(STUCK, scene, work=False)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"content": CONTENT * 100, "stream": True}])
@pytest.mark.parametrize("priority", ["low", "high"])
def test_a_full_queue_is_429_with_retry_after_30_on_the_routes_that_wait(
    articles: Articles, fields: dict[str, Any], priority: str
) -> None:
    """`QueueFullError` was uncaught on some routes, and a stream was refused after its 200."""

    async def scene(house: House) -> None:
        crowd = await _crowd(house, 22)
        answer = await ask(house, SUMMARIZE, priority=priority, **fields)
        assert (answer.status, answer.code) == (429, "queue_full")
        assert 22 <= int(answer.headers["retry-after"]) <= 38, "30, spread by a quarter"
        assert answer.headers["content-type"] == "application/json"
        told = await _status(house)
        assert (told["accepting"], told["rt_queue"]) == (False, 20)
        await _leave(house, crowd)

    articles.play(STUCK, scene, work=False)


def test_a_full_backlog_is_429_with_retry_after_on_the_route_that_queues(articles: Articles) -> None:
    async def scene(house: House) -> None:
        await queued(house)
        answer = await ask(house, QUEUE, article_id="a2")
        assert (answer.status, answer.code) == (429, "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60

    articles.play(STUCK, scene, work=False, jobs={"max_pending": 1})


def test_a_saturated_model_does_not_keep_articles_from_being_queued(articles: Articles) -> None:
    """They wait durably, and lose no attempt by it."""

    async def scene(house: House) -> None:
        crowd = await _crowd(house, 22)
        one = await queued(house)
        assert one["status"] in {"pending", "running"}
        told = json.loads((await look(house, f"/api/v1/summarize/status/{one['job_id']}")).body)
        assert told["retry_count"] == 0
        await _go(crowd)

    articles.play(STUCK, scene)


@pytest.mark.parametrize(
    ("env", "depth", "retries"),
    [
        ({}, 20, 2),
        ({"MAX_QUEUE_DEPTH": "10", "MAX_REPETITION_RETRIES": "3"}, 10, 3),
        ({"MAX_QUEUE_DEPTH": "0"}, 0, 2),
    ],
)
def test_the_environment_of_the_design_is_honoured(env: dict[str, str], depth: int, retries: int) -> None:
    """Defaults 20 and 2; a depth of 0 is no bound."""
    settings = wiring.read_settings({"apps": {"articles": {}}}, env=env)
    [upstream] = settings.models["simulated"].upstreams
    assert (upstream.gate.depth, settings.apps["articles"].max_repetition_retries) == (depth, retries)


@pytest.mark.parametrize(("bad", "status"), [(2, 200), (3, 422)])
def test_three_generations_in_one_slot_and_no_more(articles: Articles, bad: int, status: int) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE)
        assert answer.status == status
        if status == 422:
            assert (answer.code, answer.headers["x-should-retry"]) == ("unprocessable", "false")
        assert house.all_free

    articles.play({"slots": 1, "script": ["repeat"] * bad}, scene)


@pytest.mark.parametrize(
    ("upstream", "status", "code"),
    [
        ({"outcome": "blank"}, 422, "unprocessable"),
        ({"outcome": "rejected"}, 400, "invalid_request"),
        ({"outcome": "misconfigured"}, 502, "upstream_misconfigured"),
        ({"outcome": "transient"}, 502, "upstream_unavailable"),
        ({"outcome": "throttled", "retry_after_s": 40}, 429, "upstream_throttled"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_failure_has_its_status_and_none_is_500(
    articles: Articles, upstream: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE, stream=stream)
        assert (answer.status, answer.code) == (status, code), answer.body

    articles.play(upstream, scene, options={"timeout_s": 20.0})


@pytest.mark.parametrize("content", ["x" * 99, "x" * 240_001])
def test_content_that_is_too_short_or_too_long_is_400(articles: Articles, content: str) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE, content=content)
        assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "content")

    articles.play({}, scene)


def test_a_stream_arrives_as_events_with_the_whole_at_the_end(articles: Articles) -> None:
    async def scene(house: House) -> None:
        answer = await ask(house, SUMMARIZE, stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *said, done = answer.body.decode().removesuffix("\n\n").split("\n\n")
        name, data = done.split("\n")
        whole = json.loads(data.removeprefix("data: "))
        assert name == "event: done"
        assert whole["summary"] == "".join(json.loads(one.removeprefix("data: ")) for one in said)
        assert set(whole) == {
            "success",
            "article_id",
            "summary",
            "model",
            "prompt_tokens",
            "completion_tokens",
            "total_duration_ms",
        }

    articles.play({}, scene)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_the_slot_at_once(articles: Articles, stream: bool) -> None:
    """Four kinds of leaked slots brought the whole to a stop."""

    async def scene(house: House) -> None:
        asking = asyncio.create_task(ask(house, SUMMARIZE, stream=stream))
        await until(lambda: house.gateway.status().available_slots == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: house.all_free)

    articles.play(STUCK, scene)


def test_the_worker_that_feeds_backs_off_as_in_the_table() -> None:
    """10 s when all is well; 30 → 60 → 120 → 240 → 300 s while it is refused, the other jobs skipped; back to 10 s at once."""

    async def main(world: World) -> tuple[list[float], list[float]]:
        knocks: list[float] = []
        passes: list[float] = []

        def knock(request: Any) -> Fault:
            knocks.append(world.clock.now())
            return Fault.FULL if len(knocks) <= 6 else Fault.NONE

        async with stubbed() as stub, AsyncClient(stub.url, clock=world.clock) as client:

            def look(progress: Progress) -> None:
                passes.append(progress.next_pass_s)
                if len(passes) > 7:
                    for job in stub.jobs:
                        stub.end(job)

            stub.otherwise = knock
            progress = await client.feed(
                ["a", "b", "c"], task="summarize", run="r", in_flight=3, on_progress=look
            )
            assert (progress.completed, progress.refusals) == (3, 6)
            assert stub.inputs == ["a", "b", "c"]
        return knocks, passes

    knocks, passes = virtual.run(main)
    assert knocks[:7] == [0, 30, 90, 210, 450, 750, 1050], (
        "one knock a pass: the others would be refused, too"
    )
    assert passes[:7] == [30, 60, 120, 240, 300, 300, 10]


def test_the_route_that_queues_gives_a_job_that_can_be_followed(articles: Articles) -> None:
    async def scene(house: House) -> None:
        one = await queued(house)
        done = await ended(house, one["job_id"])
        assert one["status"] in {"pending", "running"}
        assert done["status"] == "completed"
        again = await queued(house)
        assert again == {"job_id": one["job_id"], "status": "skipped", "reason": "summary_exists"}

    articles.play({}, scene)
