"""A key's limits per minute and at a time, against jobs, batches and calls that end without a count of their tokens."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from batches.lines import jsonl
from jobstage import JobStage, JobStages, database, on_each_database
from server.conftest import play
from server.http.front_stage import Answer, Play, Wire, eventually

from headgate import Context, Job, JobState, task, wiring
from headgate.core.access import AccessTerms, Action, issue
from headgate.core.key_text import RANDOM_BYTES
from headgate.core.ports.store import Store
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.context import ACCESS_KEY
from headgate.machine.ids import random_id
from headgate.providers.simulated import SimulatedProvider
from headgate.runner.access_keys import AccessKeys
from headgate.runner.jobs import JobHandle
from headgate.server.access import KeyedAccess
from headgate.stores.postgres import PostgresStore
from headgate.stores.sqlite import SqliteStore
from headgate.wiring.serving import serve

__all__ = ["database", "play"]
USER = [{"role": "user", "content": "?"}]
LONG = "word " * 20_000
"""About 25,000 tokens."""


# ---- In virtual time: when jobs run ------------------------------------------------------------------------------


@dataclass
class Holder:
    """Whoever holds a key, at the door of a gateway whose worker runs in the same process."""

    stage: JobStage
    door: KeyedAccess
    key_id: str
    text: str

    async def submit(self, count: int, **options: Any) -> list[JobHandle]:
        self.door.admit([(b"x-api-key", self.text.encode())], Action.CALL).leave()
        asked = [{"task": "chat", "input": {"model": "m", "messages": USER}, **options} for _ in range(count)]
        return list(await self.stage.gateway.jobs.submit_many(asked))


async def a_holder(stage: JobStage, **terms: Any) -> Holder:
    durable = stage.gateway.durable
    await durable.start()
    issued = await AccessKeys(durable, random_id).create(AccessTerms(name="app", **terms))
    door = KeyedAccess(durable.store, durable.clock, durable.meters)
    await door.refresh()
    return Holder(stage, door, issued.kept.key.id, issued.text)


def most_in_a_minute(starts: list[float]) -> int:
    """A call reaches its provider a moment after it was let in."""
    return max(sum(first <= start < first + 59.9 for start in starts) for first in starts)


async def ends(handles: list[JobHandle]) -> list[Job]:
    return [await handle.wait() for handle in handles]


@on_each_database
async def test_a_thousand_jobs_of_one_submission_keep_to_the_requests_of_their_key(stages: JobStages) -> None:
    """They made 1,000 calls in two seconds, with a key for five a minute."""
    stage = await stages.open({"latency_s": 0.1})
    holder = await a_holder(stage, requests_per_minute=5)
    handles = await holder.submit(1000)
    await asyncio.sleep(150)
    starts = list(stage.provider.starts)
    assert most_in_a_minute(starts) <= 5
    assert len(starts) == 4 + 5 + 5, "one of the first minute's was the submission"
    jobs = [await handle.job() for handle in handles]
    assert {job.attempts for job in jobs if job.state is JobState.PENDING} == {0}
    assert sum(job.deferrals for job in jobs) <= 2000


@on_each_database
async def test_jobs_beyond_the_window_wait_for_it_and_lose_no_attempt(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 0.1}, jobs={"workers": 2})
    holder = await a_holder(stage, requests_per_minute=5)
    handles = await holder.submit(20, max_attempts=1)
    ACCESS_KEY.set(None)
    other = await stage.submit("chat", {"model": "m", "messages": USER}, tenant="other")
    assert (await other.wait()).finished_at is not None
    assert stage.now < 5, "no worker waits with them"
    jobs = await ends(handles)
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.now < 4 * 60 + 10, "and every minute is used"


@on_each_database
async def test_jobs_keep_to_the_tokens_of_their_key(stages: JobStages) -> None:
    """What a job used is known when it ends: those that run by then may go over it, the others wait."""
    stage = await stages.open({"latency_s": 0.1, "slots": 1})
    holder = await a_holder(stage, tokens_per_minute=100, parallel=1)
    long = [{"role": "user", "content": "word " * 100}]
    handles = await holder.submit(4, input={"model": "m", "messages": long})
    jobs = await ends(handles)
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    starts = list(stage.provider.starts)
    assert all(later - earlier >= 60 for earlier, later in pairwise(starts))


@on_each_database
async def test_no_more_of_a_keys_jobs_run_at_a_time_than_it_may_have(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 3.0, "slots": 20})
    holder = await a_holder(stage, parallel=2)
    jobs = await ends(await holder.submit(12))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.most_in_flight == 2


@on_each_database
async def test_jobs_submitted_by_a_job_count_against_the_same_key(stages: JobStages) -> None:
    @task("spreads")
    async def spreads(ctx: Context, given: Any) -> None:
        for _ in range(10):
            await stage.submit("chat", {"model": "m", "messages": USER})

    stage = await stages.open({"latency_s": 0.1}, tasks=[spreads])
    holder = await a_holder(stage, requests_per_minute=5)
    await holder.submit(1, task="spreads", input=None)
    await asyncio.sleep(30)
    assert stage.provider.calls == 4


@on_each_database
async def test_a_job_that_was_let_in_is_not_sent_back_halfway(stages: JobStages) -> None:
    """Refused in the middle it would begin anew for ever, and be paid each time; its calls are counted all the same."""

    @task("asks much", model="m")
    async def asks_much(ctx: Context, given: Any) -> None:
        for _ in range(8):
            await ctx.llm.complete(messages=USER)

    stage = await stages.open({"latency_s": 0.1}, tasks=[asks_much], jobs={"workers": 1})
    holder = await a_holder(stage, requests_per_minute=5)
    first, second = await holder.submit(2, task="asks much", input=None)
    await asyncio.sleep(30)
    assert {(await handle.job()).state for handle in (first, second)} == {
        JobState.COMPLETED,
        JobState.PENDING,
    }
    assert stage.provider.calls == 8
    await ends([first, second])
    assert stage.provider.calls == 16


@on_each_database
async def test_the_lines_of_a_batch_keep_to_the_key_that_created_it(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 0.1})
    holder = await a_holder(stage, requests_per_minute=5)
    holder.door.admit([(b"x-api-key", holder.text.encode())], Action.CALL).leave()
    file = await stage.gateway.files.create(jsonl(range(12)), filename="lines.jsonl", purpose="batch")
    await stage.gateway.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions")
    await asyncio.sleep(50)
    assert stage.provider.calls == 4


@on_each_database
async def test_a_worker_in_another_process_knows_the_key(stages: JobStages) -> None:
    """Limits are counted per process: the submission itself was counted elsewhere."""
    desk = await stages.open({"latency_s": 0.1}, work=False)
    holder = await a_holder(desk, requests_per_minute=2)
    await holder.submit(10)
    worker = await stages.open({"latency_s": 0.1})
    await asyncio.sleep(10)
    assert worker.provider.calls == 2


@on_each_database
async def test_the_jobs_of_a_revoked_key_run_without_a_limit(stages: JobStages) -> None:
    """Accepted means finished; who may not call any more has no window either."""
    stage = await stages.open({"latency_s": 0.1})
    holder = await a_holder(stage, requests_per_minute=2)
    handles = await holder.submit(2, run_at=stage.epoch + 30)
    handles += await holder.submit(8, run_at=stage.epoch + 30)
    await AccessKeys(stage.gateway.durable, random_id).revoke(holder.key_id)
    await asyncio.sleep(40)
    assert {(await handle.job()).state for handle in handles} == {JobState.COMPLETED}


# ---- Over HTTP ---------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """A gateway as `headgate serve` runs it, and a key for it."""

    gateway: Gateway
    port: int
    key: str

    @property
    def provider(self) -> SimulatedProvider:
        found = self.gateway.routes.find("m").upstreams[0].provider
        assert isinstance(found, SimulatedProvider)
        return found

    def request(self, path: str, body: Any, *headers: str) -> bytes:
        sent = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: a", f"Authorization: Bearer {self.key}", *headers]
        return "\r\n".join([*lines, f"Content-Length: {len(sent)}", "", ""]).encode() + sent

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()

    async def post(self, path: str, body: Any, *headers: str) -> Answer:
        async with self.wire() as wire:
            return await wire.ask(self.request(path, body, *headers))

    async def chat(self, *headers: str, **changes: Any) -> Answer:
        body = {"model": "m", "messages": USER, **changes}
        return await self.post("/v1/chat/completions", body, *headers)

    async def all_but_those_that_ran_were_sent_back(self, ran: int) -> bool:
        jobs = await self.gateway.jobs.list(limit=100)
        done = sum(job.state is JobState.COMPLETED for job in jobs)
        back = sum(job.deferrals > 0 for job in jobs)
        return (done, back) == (ran, len(jobs) - ran)


Opened = Callable[..., Any]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Serve one simulated model on each database, with one key of these terms."""
    url = "sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")

    @asynccontextmanager
    async def served(terms: dict[str, Any], *, model: Any = (), **upstream: Any) -> AsyncIterator[Client]:
        settings = wiring.read_settings(
            {
                "listen": "127.0.0.1:0",
                "data_dir": str(tmp_path / "data"),
                "database": url,
                "models": {"m": {"upstreams": [{"provider": "simulated", **upstream}], **dict(model)}},
            },
            env={},
        )
        text = await _key_in(url, tmp_path / "data" / "headgate.db", terms)
        async with serve(settings) as one:
            yield Client(one.gateway, one.port, text)

    return served


async def _key_in(url: str, file: Path, terms: dict[str, Any]) -> str:
    clock = SystemClock()
    store: Store
    if url == "sqlite":
        file.parent.mkdir()
        store = SqliteStore(file, clock=clock, new_id=random_id)
    else:
        store = PostgresStore(url, clock=clock, new_id=random_id)
    await store.open()
    issued = issue(
        AccessTerms(name="app", **terms),
        key_id=f"key_{random_id()}",
        random=os.urandom(RANDOM_BYTES),
        secret=store.secret,
        now=clock.utc(),
    )
    await store.add_access_key(issued.kept)
    await store.aclose()
    return issued.text


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - it is looked for in the database
            await asyncio.sleep(0.05)


def _made(client: Client, calls: int) -> bool:
    return client.provider.calls == calls


JOB = {"task": "chat", "input": {"model": "m", "messages": USER}}


def test_jobs_submitted_over_http_keep_to_the_limits_of_the_key(play: Play, opened: Opened) -> None:
    async def scene() -> None:
        async with opened({"requests_per_minute": 5}, latency_s=0) as client:
            answer = await client.post("/v1/jobs", [JOB] * 50)
            assert answer.status == 202
            await until(lambda: client.all_but_those_that_ran_were_sent_back(4))
            assert client.provider.calls == 4

    play(scene)


def test_requests_that_become_jobs_keep_to_the_limits_of_the_key(play: Play, opened: Opened) -> None:
    """Each counts twice: when it is taken in, and when it runs."""

    async def scene() -> None:
        async with opened({"requests_per_minute": 6}, latency_s=0.5) as client:
            answers = [await client.chat("Prefer: respond-async") for _ in range(7)]
            assert [answer.status for answer in answers][:3] == [202] * 3
            assert answers[-1].status == 429
            taken = sum(answer.status == 202 for answer in answers)
            await until(lambda: client.all_but_those_that_ran_were_sent_back(6 - taken))
            assert client.provider.calls == 6 - taken

    play(scene)


def test_calls_that_time_out_are_charged_their_estimate(play: Play, opened: Opened) -> None:
    """Seven long prompts were sent, and none was counted."""

    async def scene() -> None:
        terms, message = {"tokens_per_minute": 30_000}, [{"role": "user", "content": LONG}]
        async with opened(terms, latency_s=60, model={"retry": {"max_attempts": 1}}) as client:
            statuses = [
                (await client.chat("X-Headgate-Timeout: 0.2", messages=message)).status for _ in range(7)
            ]
            assert statuses == [504, 504, 429, 429, 429, 429, 429]
            assert client.provider.calls == 2

    play(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_are_hung_up_on_are_charged_their_estimate(
    play: Play, opened: Opened, stream: bool
) -> None:
    async def scene() -> None:
        terms, message = {"tokens_per_minute": 30_000}, [{"role": "user", "content": LONG}]
        async with opened(terms, latency_s=60, first_token_s=60) as client:
            body = {"model": "m", "messages": message, "stream": stream}
            for number in range(2):
                async with client.wire() as wire:
                    await wire.send(client.request("/v1/chat/completions", body))
                    await eventually(partial(_made, client, number + 1))
                await eventually(lambda: client.provider.cancelled == client.provider.calls)
            refused = await client.chat()
            assert (refused.status, refused.code) == (429, "rate_limited")
            assert client.provider.calls == 2

    play(scene)


def test_askers_that_leave_a_micro_batch_are_charged_their_own_estimate(play: Play, opened: Opened) -> None:
    """Whether others stay or not: the provider got their prompts."""

    async def scene() -> None:
        terms = {"tokens_per_minute": 60_000}
        model = {"gather": {"size": 2, "wait_ms": 10_000}}
        async with opened(terms, latency_s=60, many_inputs=2, model=model) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
            async with client.wire() as one, client.wire() as other:
                for wire in (one, other):
                    await wire.send(client.request("/v1/chat/completions", body))
                await eventually(partial(_made, client, 1))
            await eventually(lambda: client.provider.cancelled == 1)
            answer = await client.chat("X-Headgate-Timeout: 0.5", messages=USER)
            left = int(answer.headers["x-ratelimit-remaining-tokens"])
            assert 60_000 - 2 * 26_000 < left < 60_000 - 2 * 25_000

    play(scene)


@pytest.mark.parametrize("outcome", ["throttled", "transient", "rejected", "misconfigured"])
def test_a_call_that_the_provider_refused_costs_no_tokens(play: Play, opened: Opened, outcome: str) -> None:
    async def scene() -> None:
        terms, message = {"tokens_per_minute": 30_000}, [{"role": "user", "content": LONG}]
        model = {"retry": {"max_attempts": 1}, "wait": False}
        async with opened(terms, latency_s=0, outcome=outcome, model=model) as client:
            answer = await client.chat("X-Headgate-Timeout: 0.5", messages=message)
            assert answer.status >= 400
            assert answer.headers["x-ratelimit-remaining-tokens"] == "30000"

    play(scene)


def test_jobs_that_time_out_are_charged_their_estimate(play: Play, opened: Opened) -> None:
    async def scene() -> None:
        job = {
            "task": "chat",
            "input": {"model": "m", "messages": [{"role": "user", "content": LONG}]},
            "timeout_s": 0.3,
            "max_attempts": 1,
        }
        async with opened({"tokens_per_minute": 20_000, "parallel": 1}, latency_s=60) as client:
            await client.post("/v1/jobs", [job] * 3)

            async def first_is_dead() -> bool:
                counts = await client.gateway.jobs.count()
                return bool(counts["dead_letter"] == 1)

            await until(first_is_dead)
            refused = await client.chat()
            assert (refused.status, refused.code) == (429, "rate_limited")

    play(scene)
