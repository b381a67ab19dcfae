"""One `Idempotency-Key`, one job: at once, again, with another body, after a failure, on other routes, of other tenants."""

import asyncio
import json
from typing import Any, Final

import pytest
from server.http.front_stage import Answer, Play
from server.locked_stage import BODY, CHAT, Locked, locked

import headgate
from headgate.runner.room import NEAR_LOOK_EVERY_S

JOB: Final = {"task": "chat", "input": BODY}
KEY: Final = "Idempotency-Key: click-1"


def _id(answer: Answer) -> str:
    assert answer.status == 202, answer.body
    return str(json.loads(answer.body)["id"])


def _replayed(answer: Answer) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


async def _count(gateway: Locked, tenant: str = "local") -> int:
    return sum((await gateway.house.gateway.jobs.count(tenant=tenant)).values())


def test_two_at_once_are_one_job(play: Play, database: str) -> None:
    """A double click, a proxy that repeats: both hear of the same job, and one of them that it was there."""

    async def scene() -> None:
        async with locked(database=database) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            answers = await asyncio.gather(*(gateway.post("/v1/jobs", JOB, caller, KEY) for _ in range(20)))
            assert len({_id(answer) for answer in answers}) == 1
            assert sum(not _replayed(answer) for answer in answers) == 1
            assert {answer.headers["location"] for answer in answers} == {f"/v1/jobs/{_id(answers[0])}"}
            assert await _count(gateway) == 1

    play(scene)


def test_the_same_list_is_the_same_jobs(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            first, again = [await gateway.post("/v1/jobs", [JOB] * 3, caller, KEY) for _ in range(2)]
            assert (first.status, again.status) == (202, 202)
            assert json.loads(first.body) == json.loads(again.body)
            assert (_replayed(first), _replayed(again)) == (False, True)
            assert await _count(gateway) == 3

    play(scene)


@pytest.mark.parametrize("setting", [409, 422])
@pytest.mark.parametrize(
    "other",
    [{**JOB, "priority": 1}, {**JOB, "input": {**BODY, "temperature": 1}}, [JOB], [JOB, JOB]],
    ids=["option", "input", "list", "longer"],
)
def test_another_body_under_the_key_is_refused(play: Play, database: str, setting: int, other: Any) -> None:
    """Also a list where there was one job: which of them was meant is anybody's guess."""

    async def scene() -> None:
        rules = {"mismatch_status": setting}
        async with locked(database=database, idempotency=rules) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            first = _id(await gateway.post("/v1/jobs", JOB, caller, KEY))
            refused = await gateway.post("/v1/jobs", other, caller, KEY)
            assert (refused.status, refused.code) == (setting, "idempotency_key_mismatch")
            assert _id(await gateway.post("/v1/jobs", JOB, caller, KEY)) == first
            assert await _count(gateway) == 1

    play(scene)


def test_the_same_wish_in_other_bytes_is_the_same_job(play: Play) -> None:
    """The fingerprint is of what is asked for: library, command line and HTTP agree, however each writes JSON."""

    async def scene() -> None:
        async with locked() as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            first = _id(await gateway.post("/v1/jobs", JOB, caller, KEY))
            turned = json.dumps({"input": BODY, "priority": 5, "task": "chat"}, indent=2).encode()
            assert _id(await gateway.post("/v1/jobs", turned, caller, KEY)) == first
            handle = await gateway.house.gateway.jobs.submit("chat", BODY, idempotency_key="click-1")
            assert (handle.id, handle.created) == (first, False)

    play(scene)


@pytest.mark.parametrize(
    "wrong",
    [{**JOB, "priority": "high"}, {**JOB, "task": "none"}, {**JOB, "model": "nobody"}, b"{"],
    ids=["field", "task", "model", "JSON"],
)
def test_after_a_refusal_the_key_is_free(play: Play, database: str, wrong: Any) -> None:
    async def scene() -> None:
        async with locked(database=database) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            assert (await gateway.post("/v1/jobs", wrong, caller, KEY)).status in {400, 404}
            mended = await gateway.post("/v1/jobs", JOB, caller, KEY)
            assert (bool(_id(mended)), _replayed(mended)) == (True, False)

    play(scene)


def test_after_a_full_backlog_the_key_runs(play: Play, database: str) -> None:
    """429 stored nothing: the retry with the same key is the first that counts. And a repeat needs no room."""

    async def scene() -> None:
        async with locked(database=database, jobs={"max_pending": 1}) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            blocker = _id(await gateway.post("/v1/jobs", JOB, caller, "Idempotency-Key: blocker"))
            full = await gateway.post("/v1/jobs", JOB, caller, KEY)
            assert (full.status, full.code) == (429, "queue_full")
            again = await gateway.post("/v1/jobs", JOB, caller, "Idempotency-Key: blocker")
            assert (_id(again), _replayed(again)) == (blocker, True)
            await gateway.post(f"/v1/jobs/{blocker}/cancel", None, caller)
            await asyncio.sleep(NEAR_LOOK_EVERY_S)  # Who waits is counted now and then, not each time.
            answer = await gateway.post("/v1/jobs", JOB, caller, KEY)
            assert _id(answer) != blocker
            assert not _replayed(answer)

    play(scene)


def test_the_key_on_another_route_is_another_key(play: Play, database: str) -> None:
    """Scoped by method and route: a job, an answer and a bulk replay do not meet."""

    async def scene() -> None:
        async with locked(database=database) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            job = await gateway.post("/v1/jobs", JOB, caller, KEY)
            answers = [
                await gateway.post(CHAT, BODY, caller, KEY),
                await gateway.post("/v1/dead-letters/replay", {"task": "chat"}, caller, KEY),
                await gateway.post("/v1/dead-letters/discard", {"task": "chat"}, caller, KEY),
            ]
            assert [answer.status for answer in answers] == [200, 202, 202]
            assert not any(_replayed(answer) for answer in answers)
            assert len({_id(one) for one in (job, *answers[1:])}) == 3

    play(scene)


def test_a_key_runs_once_whether_or_not_its_sender_waits(play: Play, database: str) -> None:
    """Who falls back from a job to a call, or the other way, under its key must not pay twice: it hears of the other."""

    async def scene() -> None:
        async with locked(database=database) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            later = "Prefer: respond-async"
            assert (await gateway.post(CHAT, BODY, caller, "Idempotency-Key: a")).status == 200
            assert (await gateway.post(CHAT, BODY, caller, "Idempotency-Key: b", later)).status == 202
            told = [
                await gateway.post(CHAT, BODY, caller, "Idempotency-Key: a", later),
                await gateway.post(CHAT, BODY, caller, "Idempotency-Key: b"),
            ]
            assert [(one.status, one.code) for one in told] == [(409, "idempotency_key_mismatch")] * 2

    play(scene)


def test_another_tenants_key_is_another_key(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database) as gateway:
            mine, theirs = await gateway.key(tenant="mine"), await gateway.key(tenant="theirs")
            ours = await gateway.key(tenant="mine")
            first = _id(await gateway.post("/v1/jobs", JOB, f"x-api-key: {mine}", KEY))
            other = await gateway.post("/v1/jobs", {**JOB, "priority": 1}, f"x-api-key: {theirs}", KEY)
            assert _id(other) != first
            assert not _replayed(other)
            again = await gateway.post("/v1/jobs", JOB, f"x-api-key: {ours}", KEY)
            assert (_id(again), _replayed(again)) == (first, True)
            assert [await _count(gateway, tenant) for tenant in ("mine", "theirs")] == [1, 1]

    play(scene)


def test_a_job_that_failed_stays_the_keys_job(play: Play, database: str) -> None:
    """Accepted is accepted: its end is told where the job is, and a replay is its second chance."""

    @headgate.task("wrong")
    async def wrong(ctx: headgate.Context, given: Any) -> None:
        raise headgate.Reject("never")

    async def scene() -> None:
        async with locked(database=database, work=True, tasks=[wrong]) as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            first = _id(await gateway.post("/v1/jobs", {"task": "wrong"}, caller, KEY))
            ended = json.loads((await gateway.get(f"/v1/jobs/{first}?wait=20", caller)).body)
            assert (ended["state"], ended["reason"]) == ("dead_letter", "permanent")
            assert _id(await gateway.post("/v1/jobs", {"task": "wrong"}, caller, KEY)) == first

    play(scene)
