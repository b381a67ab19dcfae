"""`/v1/jobs` at a real port: submit, list, wait, cancel, replay."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from conftest import Figure
from server.http.front_stage import Answer, Play, Wire
from server.locked_stage import BODY, Locked, locked
from server.stage import opened
from server.upstreams import look, until

import headgate
from headgate import Context

FIELDS: Final = {
    *(
        "id",
        "task",
        "state",
        "attempts",
        "max_attempts",
        "generation",
        "lane",
        "priority",
        "model",
        "dedup_key",
    ),
    *("crashes", "tenant", "metadata", "progress", "input", "result", "error", "reason", "history"),
    *("created_at", "started_at", "finished_at", "run_at"),
}
"""What clients rely on."""


@headgate.task("echo")
async def echo(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("fragile", model=None)
async def fragile(ctx: Context, given: Any) -> Any:
    if given != "right":
        raise headgate.Reject("it is wrong")
    return given


@headgate.task("endless")
async def endless(ctx: Context, given: Any) -> None:
    await asyncio.sleep(3600)


TASKS: Final = (echo, fragile, endless)


def _read(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return json.loads(answer.body)


async def _ended(gateway: Locked, key: str, **job: Any) -> Any:
    """Submit a job and see its end, all of it over HTTP."""
    taken = _read(await gateway.post("/v1/jobs", job, key), 202)
    return _read(await gateway.get(f"/v1/jobs/{taken['id']}?wait=20", key))


def test_a_job_is_taken_in_and_its_record_tells_all(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            later = datetime.now(UTC) + timedelta(hours=1)
            asked = {
                "task": "echo",
                "input": {"a": [1, 2.5, None, "ä"]},
                "lane": "interactive",
                "priority": 2,
                "max_attempts": 7,
                "run_at": later.isoformat(),
                "timeout_s": 30,
                "expires_after_s": 60,
                "dedup_key": "twin",
                "hold": False,
                "webhook": "https://example.org/hook",
                "metadata": {"for": "me"},
            }
            answer = await gateway.post("/v1/jobs", asked, key)
            job = _read(answer, 202)
            assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
            assert set(job) >= FIELDS
            same = (
                "task",
                "input",
                "lane",
                "priority",
                "max_attempts",
                "timeout_s",
                "dedup_key",
                "hold",
                "webhook",
                "metadata",
            )
            assert {name: job[name] for name in same} == {name: asked[name] for name in same}
            assert (job["state"], job["tenant"], job["attempts"]) == ("pending", "local", 0)
            assert datetime.fromisoformat(job["run_at"]) == later
            assert _read(await gateway.get(answer.headers["location"], key)) == job
            twin = await gateway.post("/v1/jobs", {**asked, "priority": 9}, key)
            assert (_read(twin, 202)["id"], "idempotent-replayed" in twin.headers) == (job["id"], False)

    play(scene)


def test_a_body_needs_no_content_type(play: Play) -> None:
    async def scene() -> None:
        async with locked(tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            for header in ([], ["Content-Type: application/json; charset=utf-8"]):
                assert (await gateway.post("/v1/jobs", {"task": "echo"}, key, *header)).status == 202

    play(scene)


def test_a_thousand_are_taken_in_at_once(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            many = [{"task": "echo", "input": number} for number in range(1000)]
            taken = _read(await gateway.post("/v1/jobs", many, key), 202)
            assert (taken["object"], taken["has_more"], len(taken["data"])) == ("list", False, 1000)
            assert taken["last_id"] == taken["data"][-1]["id"]
            assert {(one["task"], one["state"]) for one in taken["data"]} == {("echo", "pending")}
            job = _read(await gateway.get(f"/v1/jobs/{taken['data'][17]['id']}", key))
            assert job["input"] == 17, "in the order they were given"

    play(scene)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"task": "echo", "priority": 10}, "jobs[2].priority"),
        ({"task": "echo", "priority": "high"}, "jobs[2].priority"),
        ({"task": "echo", "colour": "red"}, "jobs[2].colour"),
        ({"input": 1}, "jobs[2].task"),
        ({"task": "none"}, "jobs[2].task"),
        ({"task": "chat", "input": {"model": "simulated"}}, "jobs[2].messages"),
        ({"task": "chat", "input": {"messages": []}}, "jobs[2].messages"),
        ({"task": "headgate.replay", "input": {"by": "me"}}, "jobs[2].task"),
        (7, "jobs[2]"),
    ],
    ids=str,
)
def test_one_wrong_job_of_a_list_is_named_and_none_is_taken(play: Play, wrong: Any, param: str) -> None:
    async def scene() -> None:
        async with locked(tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            good = {"task": "echo"}
            answer = await gateway.post("/v1/jobs", [good, good, wrong, good], key)
            error = _read(answer, 400)["error"]
            assert (error["code"], error["param"]) == ("invalid_request", param)
            assert "jobs[2]" in error["message"]
            assert _read(await gateway.get("/v1/jobs", key))["data"] == []

    play(scene)


@pytest.mark.parametrize("count", [0, 1001])
def test_no_job_at_all_and_more_than_a_thousand_are_refused(play: Play, count: int) -> None:
    async def scene() -> None:
        async with locked(tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            answer = await gateway.post("/v1/jobs", [{"task": "echo"}] * count, key)
            assert "1 to 1,000" in _read(answer, 400)["error"]["message"]

    play(scene)


def test_a_key_submits_for_its_own_models_only(play: Play) -> None:
    """By the submission's model, by the input's, in a list; a name nobody has is refused in the same words."""

    async def scene() -> None:
        async with locked() as gateway:
            key = f"x-api-key: {await gateway.key(models=('simulated/instant',))}"
            assert (await gateway.post("/v1/jobs", {"task": "chat", "input": BODY}, key)).status == 202
            for model in ("simulated/slow", "nobody"):
                by_input = {"task": "chat", "input": {**BODY, "model": model}}
                by_option = {"task": "chat", "input": BODY, "model": model}
                for body in (by_input, by_option, [by_input]):
                    answer = await gateway.post("/v1/jobs", body, key)
                    assert (answer.status, answer.code) == (403, "model_not_allowed"), answer.body

    play(scene)


def test_pages_go_from_the_newest_to_the_oldest(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            made = [await gateway.post("/v1/jobs", {"task": "echo"}, key) for _ in range(25)]
            ids = [_read(answer, 202)["id"] for answer in made]
            first = _read(await gateway.get("/v1/jobs", key))
            assert (len(first["data"]), first["has_more"], first["object"]) == (20, True, "list")
            assert first["last_id"] == first["data"][-1]["id"]
            second = _read(await gateway.get(f"/v1/jobs?after={first['last_id']}", key))
            assert (len(second["data"]), second["has_more"]) == (5, False)
            listed = [job["id"] for job in first["data"] + second["data"]]
            assert set(listed) == set(ids)
            assert listed == sorted(ids, reverse=True)
            exact = _read(await gateway.get("/v1/jobs?limit=25", key))
            assert (len(exact["data"]), exact["has_more"]) == (25, False)
            nothing = _read(await gateway.get("/v1/jobs?state=completed", key))
            assert (nothing["data"], nothing["has_more"], nothing["last_id"]) == ([], False, None)

    play(scene)


def test_lists_are_narrowed_by_state_task_and_model(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            chat = _read(await gateway.post("/v1/jobs", {"task": "chat", "input": BODY}, key), 202)["id"]
            plain = _read(await gateway.post("/v1/jobs", {"task": "echo"}, key), 202)["id"]
            await gateway.post(f"/v1/jobs/{plain}/cancel", None, key)
            for query, found in (
                ("state=cancelled", plain),
                ("state=pending", chat),
                ("task=echo", plain),
                ("model=simulated/instant", chat),
                ("task=chat&state=pending&model=simulated%2Finstant", chat),
            ):
                listed = _read(await gateway.get(f"/v1/jobs?{query}", key))["data"]
                assert [job["id"] for job in listed] == [found], query

    play(scene)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=2.5", "limit"),
        ("limit=", "limit"),
        ("state=lost", "state"),
        ("task=", "task"),
        ("after=tomorrow", "after"),
        ("order=asc", "order"),
        ("limit=1&limit=2", "limit"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(play: Play, query: str, param: str) -> None:
    async def scene() -> None:
        async with opened({}) as house:
            assert _read(await look(house, f"/v1/jobs?{query}"), 400)["error"]["param"] == param

    play(scene)


def test_a_client_that_leaves_amid_its_body_submits_nothing_and_is_no_error(play: Play) -> None:
    """The log stays quiet: `play` looks."""

    async def scene() -> None:
        async with opened({}, tasks=TASKS) as house:
            wire = Wire(*await asyncio.open_connection("127.0.0.1", house.port))
            await wire.send(b'POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{"task": "echo"')
            await until(lambda: house.serving.server.connections == 1)
            wire.reset()
            await until(lambda: not house.serving.server.connections)
            assert await house.gateway.jobs.list() == []

    play(scene)


# ---- Waiting --------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_job(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, work=True, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            job = await _ended(gateway, key, task="echo", input={"a": 1})
            assert (job["state"], job["result"]) == ("completed", {"a": 1})

    play(scene)


def test_when_time_is_up_the_record_is_told_as_it_is(play: Play) -> None:
    async def scene() -> None:
        async with opened({}, tasks=TASKS) as house:
            handle = await house.gateway.jobs.submit("echo", 1)
            started = asyncio.get_running_loop().time()
            job = _read(await look(house, f"/v1/jobs/{handle.id}?wait=0.2"))
            assert job["state"] == "pending"
            # The loop's clock counts in milliseconds.
            assert asyncio.get_running_loop().time() - started >= 0.19

    play(scene)


@pytest.mark.parametrize("wait", ["61", "-1", "nan", "1e999", "soon", ""])
def test_a_wait_is_a_number_of_seconds_up_to_60(play: Play, wait: str) -> None:
    async def scene() -> None:
        async with opened({}, tasks=TASKS) as house:
            handle = await house.gateway.jobs.submit("echo", 1)
            answer = await look(house, f"/v1/jobs/{handle.id}?wait={wait}")
            assert _read(answer, 400)["error"]["param"] == "wait"

    play(scene)


def test_a_wait_for_nobodys_job_is_over_at_once(play: Play) -> None:
    async def scene() -> None:
        async with opened({}) as house:
            assert (await look(house, "/v1/jobs/job_nobodys?wait=30")).status == 404

    play(scene)


def test_a_client_that_leaves_frees_everything(play: Play) -> None:
    """Nobody is left waiting for a job on behalf of a hundred clients that have gone."""

    async def scene() -> None:
        async with opened({}, tasks=TASKS) as house:
            handle = await house.gateway.jobs.submit("echo", 1)
            watch = house.gateway.durable.watch
            wires = []
            for _ in range(100):
                wire = Wire(*await asyncio.open_connection("127.0.0.1", house.port))
                await wire.send(f"GET /v1/jobs/{handle.id}?wait=60 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                wires.append(wire)
            await until(lambda: len(watch._waiting.get(handle.id, ())) == 100)
            for wire in wires:
                wire.reset()
            await until(lambda: not watch._waiting and not house.serving.server.connections)
            ours = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await until(lambda: sum(not task.done() for task in ours) <= 3, within_s=3)

    play(scene)


def test_a_stop_ends_the_wait_with_the_record(play: Play, figure: Figure) -> None:
    async def scene() -> None:
        async with opened({}, tasks=TASKS) as house:
            handle = await house.gateway.jobs.submit("echo", 1)
            waiting = asyncio.ensure_future(look(house, f"/v1/jobs/{handle.id}?wait=60"))
            await until(lambda: handle.id in house.gateway.durable.watch._waiting)
            loop = asyncio.get_running_loop()
            started = loop.time()
            await house.serving.stop(20.0)
            assert _read(await waiting)["state"] == "pending"
            took_s = loop.time() - started
            assert took_s < 5
            figure("a stop while a client waits for a job", f"the wait ends after {took_s * 1000:.0f} ms")

    play(scene)


# ---- Cancel and replay ------------------------------------------------------------------------------------------


def test_a_pending_job_is_cancelled_and_once_more_is_no_mistake(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            job_id = _read(await gateway.post("/v1/jobs", {"task": "echo"}, key), 202)["id"]
            for _ in range(2):
                job = _read(await gateway.post(f"/v1/jobs/{job_id}/cancel", None, key))
                assert (job["state"], job["reason"]) == ("cancelled", "cancelled")

    play(scene)


def test_a_running_job_is_told_to_stop(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, work=True, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            job_id = _read(await gateway.post("/v1/jobs", {"task": "endless"}, key), 202)["id"]
            await until(lambda: gateway.house.gateway.durable.running == 1)
            assert _read(await gateway.post(f"/v1/jobs/{job_id}/cancel", None, key))["state"] in {
                "running",
                "cancelled",
            }
            assert _read(await gateway.get(f"/v1/jobs/{job_id}?wait=20", key))["state"] == "cancelled"

    play(scene)


def test_a_finished_job_cannot_be_cancelled_or_replayed(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, work=True, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            job = await _ended(gateway, key, task="echo")
            for verb in ("cancel", "replay"):
                answer = await gateway.post(f"/v1/jobs/{job['id']}/{verb}", None, key)
                assert (answer.status, answer.code) == (409, "state_conflict")

    play(scene)


def test_a_dead_letter_is_replayed_with_another_input(play: Play, database: str) -> None:
    """The old input, the whole story and who did it stay in the history."""

    async def scene() -> None:
        async with locked(database=database, work=True, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key(name='night shift')}"
            dead = await _ended(gateway, key, task="fragile", input="wrong")
            assert dead["state"] == "dead_letter"
            answer = await gateway.post(f"/v1/jobs/{dead['id']}/replay", {"input": "right"}, key)
            assert _read(answer, 202)["generation"] == 2
            assert answer.headers["location"] == f"/v1/jobs/{dead['id']}"
            job = _read(await gateway.get(f"/v1/jobs/{dead['id']}?wait=20", key))
            assert (job["state"], job["input"], job["result"]) == ("completed", "right", "right")
            [replayed] = [entry for entry in job["history"] if entry["outcome"] == "replayed"]
            assert (replayed["by"], replayed["input"]) == ("night shift", "wrong")
            again = await gateway.post(f"/v1/jobs/{dead['id']}/replay", None, key)
            assert (again.status, again.code) == (409, "state_conflict")

    play(scene)


def test_a_replay_whose_answer_was_lost_is_asked_for_again_with_its_key(play: Play, database: str) -> None:
    """Without one it would hear 409, and could not tell whose replay that was."""

    async def scene() -> None:
        async with locked(database=database, work=True, tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            dead = await _ended(gateway, key, task="fragile", input="wrong")
            path, named = f"/v1/jobs/{dead['id']}/replay", "Idempotency-Key: click"
            first, again = [await gateway.post(path, {"input": "wrong"}, key, named) for _ in range(2)]
            assert (_read(first, 202)["generation"], _read(again, 202)["generation"]) == (2, 2)
            told = [answer.headers.get("idempotent-replayed") for answer in (first, again)]
            assert told == [None, "true"]
            other = await gateway.post(path, {"input": "right"}, key, named)
            assert (other.status, other.code) == (409, "idempotency_key_mismatch")

    play(scene)


def test_a_key_for_some_models_moves_no_job_to_another(play: Play) -> None:
    async def scene() -> None:
        async with locked(work=True) as gateway:
            few = f"x-api-key: {await gateway.key(models=('simulated/rejecting',))}"
            body = {"model": "simulated/rejecting", "messages": [{"role": "user", "content": "x"}]}
            dead = await _ended(gateway, few, task="chat", input=body)
            for model in ("simulated", "nobody"):
                edited = {"input": {**body, "model": model}}
                answer = await gateway.post(f"/v1/jobs/{dead['id']}/replay", edited, few)
                assert (answer.status, answer.code) == (403, "model_not_allowed")

    play(scene)


def test_another_tenants_jobs_are_not_there(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, tasks=TASKS) as gateway:
            mine, theirs = [f"x-api-key: {await gateway.key(tenant=name)}" for name in ("mine", "theirs")]
            job_id = _read(await gateway.post("/v1/jobs", {"task": "echo"}, mine), 202)["id"]
            assert _read(await gateway.get("/v1/jobs", theirs))["data"] == []
            assert (await gateway.get(f"/v1/jobs/{job_id}", theirs)).status == 404
            for verb in ("cancel", "replay"):
                assert (await gateway.post(f"/v1/jobs/{job_id}/{verb}", None, theirs)).status == 404
            assert _read(await gateway.get(f"/v1/jobs/{job_id}", mine))["state"] == "pending"

    play(scene)


def test_a_date_at_the_end_of_the_calendar_is_refused(play: Play) -> None:
    """In another zone its year would not exist."""

    async def scene() -> None:
        async with locked() as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            for date in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
                answer = await gateway.post(
                    "/v1/jobs", {"task": "chat", "input": BODY, "run_at": date}, caller
                )
                assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "run_at")

    play(scene)


def test_a_strange_name_is_not_sent_back_whole(play: Play) -> None:
    """An answer as long as what somebody made up is work for nothing, here and wherever it is logged."""

    async def scene() -> None:
        async with locked(tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            long = "x" * 1_000_000
            for body in (
                {"task": "chat", long: 1},
                [{"task": "chat", long: 1}],
                {"task": "chat", "input": {long: 1}},
            ):
                answer = await gateway.post("/v1/jobs", body, key)
                assert answer.status == 400
                assert len(answer.body) < 1000

    play(scene)


def test_millions_of_small_values_are_refused_before_they_are_read(play: Play) -> None:
    """To read them takes seconds, and everybody waits meanwhile."""

    async def scene() -> None:
        async with locked() as gateway:
            caller = f"x-api-key: {await gateway.key()}"
            body = b'{"task": "chat", "input": [' + b"{}," * 600_000 + b"1]}"
            answer = await gateway.post("/v1/jobs", body, caller)
            assert (answer.status, answer.code) == (400, "invalid_request")

    play(scene)


def test_half_a_character_is_called_what_it_is(play: Play) -> None:
    async def scene() -> None:
        async with locked(tasks=TASKS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            answer = await gateway.post("/v1/jobs", rb'{"task": "\ud800"}', key)
            assert answer.status == 400
            assert rb"\\ud800 is half a character" in answer.body

    play(scene)
