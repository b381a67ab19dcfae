"""`/v1/dead-letters` at a real port: look, let go, replay and discard many as a job."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import pytest
from server.http.front_stage import Answer, Play
from server.locked_stage import Locked, locked
from server.upstreams import until

import headgate
from headgate import Context

RUNS: list[Any] = []
HEALED: set[str] = set()
REPLAY: Final = "/v1/dead-letters/replay"
DISCARD: Final = "/v1/dead-letters/discard"


@headgate.task("fragile", model=None)
async def fragile(ctx: Context, given: Any) -> Any:
    RUNS.append(given)
    if "fragile" not in HEALED:
        raise headgate.Reject("it is wrong")
    return given


@headgate.task("weak", model=None)
async def weak(ctx: Context, given: Any) -> Any:
    raise ValueError("as ever")


@pytest.fixture(autouse=True)
def _start() -> None:
    RUNS.clear()
    HEALED.clear()


@dataclass
class Morgue:
    """A gateway with dead letters, and a key of their tenant."""

    gateway: Locked
    key: str

    async def get(self, path: str, status: int = 200) -> Any:
        return _read(await self.gateway.get(path, self.key), status)

    async def post(self, path: str, body: Any, status: int = 202) -> Any:
        return _read(await self.gateway.post(path, body, self.key), status)

    async def end_of(self, job_id: str) -> Any:
        return await self.get(f"/v1/jobs/{job_id}?wait=20")

    async def bury(self, count: int, task: str = "fragile", **options: Any) -> list[str]:
        jobs = [{"task": task, "input": number, "max_attempts": 1, **options} for number in range(count)]
        taken = await self.post("/v1/jobs", jobs)
        ids = [one["id"] for one in taken["data"]]
        for job_id in ids:
            assert (await self.end_of(job_id))["state"] == "dead_letter"
        return ids


def _read(answer: Answer, status: int) -> Any:
    assert answer.status == status, answer.body
    return json.loads(answer.body)


@asynccontextmanager
async def morgue(database: str = "sqlite", *, work: bool = True) -> AsyncIterator[Morgue]:
    async with locked(database=database, work=work, tasks=[fragile, weak]) as gateway:
        yield Morgue(gateway, f"x-api-key: {await gateway.key(name='ops')}")


# ---- Looking ------------------------------------------------------------------------------------------------------


def test_a_dead_letter_has_the_names_such_lists_usually_have(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            [wrong] = await dead.bury(1)
            [broken] = await dead.bury(1, "weak")
            listed = await dead.get("/v1/dead-letters")
            assert (listed["object"], listed["has_more"], listed["last_id"]) == ("list", False, wrong)
            told = {
                one["id"]: (one["job_type"], one["error_message"], one["retryable"]) for one in listed["data"]
            }
            assert told[wrong] == ("fragile", "rejected: it is wrong", False)
            assert told[broken] == ("weak", "broken ValueError: as ever", True)
            one = await dead.get(f"/v1/dead-letters/{wrong}")
            assert (one["failed_at"], one["input"]) == (one["finished_at"], 0)
            assert datetime.fromisoformat(one["failed_at"]).tzinfo is not None
            assert [entry["outcome"] for entry in one["history"]] == ["failed"]

    play(scene)


def test_filters_narrow_the_list(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            [wrong] = await dead.bury(1)
            [broken] = await dead.bury(1, "weak", model="simulated")
            between = quote((await dead.get(f"/v1/dead-letters/{broken}"))["failed_at"])
            for query, found in (
                ("task=weak", [broken]),
                ("reason=permanent", [wrong]),
                ("reason=exhausted", [broken]),
                ("model=simulated", [broken]),
                ("class=rejected", [wrong]),
                (f"since={between}", [broken]),
                (f"until={between}", [wrong]),
                ("task=weak&reason=permanent", []),
                ("limit=1", [broken]),
                (f"limit=1&after={broken}", [wrong]),
            ):
                listed = await dead.get(f"/v1/dead-letters?{query}")
                assert [one["id"] for one in listed["data"]] == found, query

    play(scene)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("reason=bad", "reason"),
        ("class=zzz", "class"),
        ("since=2026-01-01", "since"),
        ("until=2026-01-01T00:00:00", "until"),
        ("since=1700000000", "since"),
        ("error_class=rejected", "error_class"),
        ("limit=-1", "limit"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(play: Play, query: str, param: str) -> None:
    async def scene() -> None:
        async with morgue(work=False) as dead:
            assert (await dead.get(f"/v1/dead-letters?{query}", 400))["error"]["param"] == param

    play(scene)


def test_one_is_let_go_and_once_more_is_no_mistake(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            [wrong] = await dead.bury(1)
            for _ in range(2):
                job = _read(
                    await dead.gateway.ask("DELETE", f"/v1/dead-letters/{wrong}", None, dead.key), 200
                )
                assert (job["state"], job["reason"]) == ("cancelled", "discarded")
            assert [(entry["outcome"], entry["by"]) for entry in job["history"][1:]] == [("discarded", "ops")]
            assert (await dead.get("/v1/dead-letters"))["data"] == []
            assert (await dead.get(f"/v1/dead-letters/{wrong}", 409))["error"]["code"] == "state_conflict"

    play(scene)


# ---- Many -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [REPLAY, DISCARD])
@pytest.mark.parametrize("body", [{}, {"per_second": 10}, {"dry_run": True}], ids=str)
def test_all_of_them_must_be_meant(play: Play, path: str, body: Any) -> None:
    async def scene() -> None:
        async with morgue(work=False) as dead:
            assert (await dead.post(path, body, 400))["error"]["param"] == "filter"

    play(scene)


@pytest.mark.parametrize("path", [REPLAY, DISCARD])
def test_a_dry_run_counts_and_does_nothing(play: Play, path: str) -> None:
    async def scene() -> None:
        async with morgue() as dead:
            ids = await dead.bury(7)
            await dead.bury(1, "weak")
            assert await dead.post(path, {"task": "fragile", "dry_run": True}, 200) == {"matched": 7}
            assert await dead.post(path, {"task": "none", "dry_run": True}, 200) == {"matched": 0}
            jobs = (await dead.get("/v1/jobs?state=dead_letter"))["data"]
            assert {job["id"] for job in jobs} >= set(ids)
            assert len((await dead.get("/v1/jobs"))["data"]) == 8

    play(scene)


def test_a_replay_of_many_is_a_job_with_progress_and_an_author(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            ids = await dead.bury(30)
            [other] = await dead.bury(1, "weak")
            HEALED.add("fragile")
            answer = await dead.gateway.post(REPLAY, {"task": "fragile", "reason": "permanent"}, dead.key)
            order = _read(answer, 202)
            assert answer.headers["location"] == f"/v1/jobs/{order['id']}"
            assert order["task"] == "headgate.replay"
            ended = await dead.end_of(order["id"])
            assert (ended["state"], ended["result"]) == ("completed", {"done": 30, "total": 30})
            assert ended["progress"] == {"done": 30, "total": 30}
            for job_id in ids:
                job = await dead.end_of(job_id)
                assert (job["state"], job["generation"]) == ("completed", 2)
                assert [entry.get("by") for entry in job["history"]] == [None, "ops", None]
            assert (await dead.get(f"/v1/jobs/{other}"))["state"] == "dead_letter"

    play(scene)


def test_one_that_dies_again_is_not_sent_back_by_the_same_order(play: Play, database: str) -> None:
    """Ten a second over two seconds: the first of them die again long before the last are reached."""

    async def scene() -> None:
        async with morgue(database) as dead:
            ids = await dead.bury(20)
            order = await dead.post(REPLAY, {"task": "fragile", "per_second": 20})
            assert (await dead.end_of(order["id"]))["result"] == {"done": 20, "total": 20}
            for job_id in ids:
                job = await dead.end_of(job_id)
                assert (job["state"], job["generation"]) == ("dead_letter", 2)
            assert len(RUNS) == 40

    play(scene)


def test_an_order_is_cancelled_in_the_middle(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            await dead.bury(50)
            order = await dead.post(REPLAY, {"task": "fragile", "per_second": 10})
            await until(lambda: len(RUNS) >= 60)
            await dead.post(f"/v1/jobs/{order['id']}/cancel", None, 200)
            job = await dead.end_of(order["id"])
            assert job["state"] == "cancelled"
            assert job["progress"]["total"] == 50
            await asyncio.sleep(0.2)
            assert 60 <= len(RUNS) <= 80

    play(scene)


def test_a_discard_of_many_lets_them_go(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            ids = await dead.bury(12)
            order = await dead.post(DISCARD, {"class": "rejected"})
            assert (await dead.end_of(order["id"]))["result"] == {"done": 12, "total": 12}
            states = {(job["state"], job["reason"]) for job in [await dead.end_of(one) for one in ids]}
            assert states == {("cancelled", "discarded")}

    play(scene)


def test_an_order_reaches_its_own_tenant_only(play: Play, database: str) -> None:
    async def scene() -> None:
        async with morgue(database) as dead:
            [theirs] = await dead.bury(1)
            other = Morgue(dead.gateway, f"x-api-key: {await dead.gateway.key(tenant='other')}")
            [ours] = await other.bury(1)
            order = await other.post(DISCARD, {"task": "fragile"})
            assert (await other.end_of(order["id"]))["result"] == {"done": 1, "total": 1}
            assert (await other.get(f"/v1/jobs/{ours}"))["reason"] == "discarded"
            assert (await dead.get(f"/v1/jobs/{theirs}"))["state"] == "dead_letter"
            assert (await other.get(f"/v1/dead-letters/{theirs}", 404))["error"]["code"] == "not_found"

    play(scene)


def test_an_order_cannot_be_edited_into_another(play: Play) -> None:
    """Its input is headgate's own: nobody submits it by name, and nobody changes it on the way."""

    async def scene() -> None:
        async with morgue(work=False) as dead:
            order = await dead.post(DISCARD, {"task": "fragile"})
            store = dead.gateway.house.gateway.durable.store
            await store.expire(now=order_time(order) + 1e6, limit=10)
            answer = await dead.post(f"/v1/jobs/{order['id']}/replay", {"input": {"by": "me"}}, 400)
            assert answer["error"]["param"] == "task"

    play(scene)


def order_time(order: Any) -> float:
    return datetime.fromisoformat(order["created_at"]).timestamp()


def test_a_key_for_some_models_says_which_it_means(play: Play) -> None:
    """It must not spend on other models by way of their dead letters."""

    async def scene() -> None:
        async with morgue(work=False) as dead:
            few = Morgue(dead.gateway, f"x-api-key: {await dead.gateway.key(models=('simulated',))}")
            for body, status in (
                ({"task": "chat"}, 403),
                ({"model": "other"}, 403),
                ({"model": "simulated"}, 202),
            ):
                assert (await few.gateway.post(REPLAY, body, few.key)).status == status, body

    play(scene)


def test_a_key_for_some_models_lets_no_other_models_dead_letter_go(play: Play) -> None:
    """Neither one by one nor all at once."""

    async def scene() -> None:
        async with morgue() as dead:
            [ours] = await dead.bury(1, "weak", model="simulated")
            [other] = await dead.bury(1, "weak", model="simulated/flaky")
            key = f"x-api-key: {await dead.gateway.key(models=('simulated',))}"
            for job_id, status in ((other, 403), (ours, 200)):
                answer = await dead.gateway.ask("DELETE", f"/v1/dead-letters/{job_id}", None, key)
                assert answer.status == status, answer.body
            assert (await dead.get(f"/v1/jobs/{other}"))["state"] == "dead_letter"

    play(scene)


def test_a_class_that_there_is_not_is_answered_with_those_there_are(play: Play) -> None:
    async def scene() -> None:
        async with morgue(work=False) as dead:
            told = (await dead.get("/v1/dead-letters?class=zzz", 400))["error"]["message"]
            assert "transient" in told
            assert "crashed" in told
            assert (await dead.post(REPLAY, {"class": "zzz"}, 400))["error"]["param"] == "class"
            for known in ("rejected", "crashed", "expired"):
                assert (await dead.get(f"/v1/dead-letters?class={known}"))["data"] == []

    play(scene)
