"""`Prefer: respond-async`: the same request as a durable job, answered at once with where to find it."""

import json
from typing import Any, Final

import pytest
from providers.stubs.openai import OpenAIStub, completion, error
from server.http.front_stage import Answer, Play, post
from server.stage import House, opened
from server.upstreams import CHAT, COMPLETIONS, EMBEDDINGS, ask, look, one_model, openai_upstream, sent

from headgate.core.call import Lane
from headgate.core.job import Job, JobState

PREFER: Final = "Prefer: respond-async"
SIMULATED: Final = {"provider": "simulated", "latency_s": 0}


async def ended(house: House, answer: Answer) -> Job:
    """The job that this answer speaks of, when it is over."""
    assert answer.status == 202, answer
    record = json.loads(answer.body)
    assert answer.headers["location"] == f"/v1/jobs/{record['id']}"
    assert answer.headers["x-request-id"].startswith("req_")
    return await house.gateway.jobs.wait(record["id"], timeout=10)


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
def test_it_becomes_a_job_that_completes(play: Play, path: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED), work=True) as house:
            answer = await ask(house, path, PREFER)
            record = json.loads(answer.body)
            assert record["state"] in {"pending", "running", "completed"}
            job = await ended(house, answer)
            assert job.state is JobState.COMPLETED
            assert job.model == "m"
            shape = {CHAT: "chat.completion", EMBEDDINGS: "list"}[path]
            assert job.result["object"] == shape

    play(scene)


@pytest.mark.parametrize(
    "header",
    ["Prefer: respond-async, wait=10", "prefer: return=minimal, Respond-Async", "Prefer: respond-async; x=1"],
)
def test_the_wish_is_found_among_others(play: Play, header: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            assert (await ask(house, CHAT, header)).status == 202

    play(scene)


def test_another_wish_is_none_of_ours(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            assert (await ask(house, CHAT, "Prefer: no-respond-async-please")).status == 200

    play(scene)


def test_the_job_outlives_a_bad_moment_of_its_upstream(play: Play) -> None:
    """The answer was 202 before anybody was asked; the job's own retries see to the rest."""

    async def scene() -> None:
        async with OpenAIStub(error(500), completion()) as stub:
            settings = {**one_model(openai_upstream(stub)), "jobs": {"retry": {"first_wait_s": 0.01}}}
            async with opened(settings, work=True) as house:
                job = await ended(house, await ask(house, CHAT, PREFER))
                assert (job.state, stub.calls) == (JobState.COMPLETED, 2)

    play(scene)


@pytest.mark.parametrize(
    ("headers", "tier", "lane"),
    [
        ([], "flex", Lane.BATCH),
        ([], "priority", Lane.BATCH),
        (["X-Headgate-Lane: interactive"], "priority", Lane.INTERACTIVE),
    ],
)
def test_its_lane_is_batch_unless_the_request_says_otherwise(
    play: Play, headers: list[str], tier: str, lane: Lane
) -> None:
    async def scene() -> None:
        async with (
            OpenAIStub(completion()) as stub,
            opened(one_model(openai_upstream(stub)), work=True) as house,
        ):
            job = await ended(house, await ask(house, CHAT, PREFER, *headers, service_tier=tier))
            assert (job.state, job.lane) == (JobState.COMPLETED, lane)
            assert stub.requests[0].body.get("service_tier") != "flex"

    play(scene)


def test_the_same_key_gives_the_same_job(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED), work=True) as house:
            first, again = [await ask(house, CHAT, PREFER, "Idempotency-Key: j1") for _ in range(2)]
            assert (first.status, again.status) == (202, 202)
            assert first.headers["location"] == again.headers["location"]
            assert "idempotent-replayed" not in first.headers
            assert again.headers["idempotent-replayed"] == "true"
            other = await ask(house, CHAT, PREFER, "Idempotency-Key: j1", temperature=1)
            assert (other.status, other.code) == (409, "idempotency_key_mismatch")

    play(scene)


def test_the_job_is_where_the_answer_says(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED), work=True) as house:
            answer = await ask(house, CHAT, PREFER)
            job = await ended(house, answer)
            found = await look(house, answer.headers["location"])
            assert (found.status, json.loads(found.body)["result"]) == (200, job.result)
            nobodys = await look(house, "/v1/jobs/job_none")
            assert (nobodys.status, nobodys.code) == (404, "not_found")

    play(scene)


def test_a_deadline_is_refused_but_not_what_clients_always_send(play: Play) -> None:
    """A job has no client that waits; OpenAI's clients announce their patience with every request."""

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            refused = await ask(house, CHAT, PREFER, "X-Headgate-Timeout: 30")
            assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "X-Headgate-Timeout")
            assert (await ask(house, CHAT, PREFER, "x-stainless-read-timeout: 30")).status == 202

    play(scene)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (CHAT, {"stream": True}, 400),
        (COMPLETIONS, {}, 400),
        (CHAT, {"model": "nobody"}, 404),
        (CHAT, {"messages": [7]}, 400),
        (CHAT, {"messages": [{"role": 7}]}, 400),
        (EMBEDDINGS, {"input": [{}]}, 400),
    ],
)
def test_what_can_be_no_job_is_refused_before_it_is_one(
    play: Play, path: str, fields: dict[str, Any], status: int
) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            answer = await ask(house, path, PREFER, **fields)
            assert answer.status == status, answer.body
            assert json.loads(answer.body)["error"]["message"]

    play(scene)


@pytest.mark.parametrize(
    "messages",
    [
        rb'[{"role": "user", "content": "\ud800"}]',
        b'[{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]",
        b'[{"role": "user", "content": "x", "weight": 1e999}]',
    ],
    ids=["surrogate", "deep", "huge number"],
)
def test_hostile_bodies_are_no_jobs(play: Play, messages: bytes) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            answer = await sent(house, post(b'{"model": "m", "messages": %b}' % messages, CHAT, PREFER))
            assert (answer.status, answer.code) == (400, "invalid_request"), answer.body

    play(scene)
