"""A tenant that stores whatever it can, and a disk that is nearly full: refused in time, and nobody else is hurt."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from batches.lines import CHAT, jsonl
from openai import AsyncOpenAI
from server.conftest import database, own_directory, play
from server.http.front_stage import Answer, Play, Wire
from server.keyed_stage import keyed_door
from server.stage import House, opened

from headgate.machine import disk

__all__ = ["database", "own_directory", "play"]
QUOTA = 200_000
TEXT = "x" * 20_000
FOR_EVER_BYTES = 2**50
MODELS: dict[str, Any] = {"m": {"upstreams": [{"provider": "simulated", "latency_s": 0, "slots": 32}]}}


@contextlib.asynccontextmanager
async def house_of(
    database: str, *, access: Any = None, work: bool = False, **limits: int
) -> AsyncIterator[House]:
    bounds = {"tenant_bytes": QUOTA, **limits}
    settings = {"data_dir": "data", "database": database, "models": MODELS, "limits": bounds}
    async with opened(settings, access=access, work=work) as house:
        yield house


async def ask(
    house: House, method: str, path: str, body: Any = None, *, key: str = "", idempotency_key: str = ""
) -> Answer:
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(sent)}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Idempotency-Key: {idempotency_key}"] if idempotency_key else []
    wire = Wire(*await asyncio.open_connection("127.0.0.1", house.port))
    try:
        return await wire.ask("\r\n".join([*lines, "", ""]).encode() + sent)
    finally:
        wire.writer.close()


def chat(text: str = "hello", model: str = "m") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def job(text: str = TEXT) -> dict[str, Any]:
    return {"task": "chat", "input": chat(text)}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.exists() else 0


async def stored(house: House, tenant: str = "local") -> int:
    return (await house.gateway.durable.store.stored_bytes(tenant=tenant)).get(tenant, 0)


def client_of(house: House, key: str = "any") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0)


def test_jobs_stop_at_the_quota(database: str, play: Play) -> None:
    """Twenty at once, again and again: at most a body of each passes it. Others are served."""

    async def scene() -> None:
        async with keyed_door() as door, house_of(database, access=door.access) as house:
            greedy, other = await door.key(tenant="greedy"), await door.key(tenant="other")
            answers: list[Answer] = []
            for _ in range(3):
                answers += await asyncio.gather(
                    *(ask(house, "POST", "/v1/jobs", job(), key=greedy) for _ in range(20))
                )
            assert {answer.status for answer in answers} == {202, 507}
            assert {answer.status for answer in answers[20:]} == {507}
            refused = next(answer for answer in answers if answer.status == 507)
            assert refused.code == "quota_exceeded"
            assert refused.headers["x-should-retry"] == "false"
            assert "at most 200,000" in refused.body.decode()
            # One writer checks and writes in one transaction; of several, each may pass it with one body.
            over = 0 if database == "sqlite" else 20 * (len(TEXT) + 200)
            assert await stored(house, "greedy") <= QUOTA + over
            assert (await ask(house, "POST", "/v1/jobs", job(), key=other)).status == 202
            many = [job("x" * 100) for _ in range(50)]
            assert (await ask(house, "POST", "/v1/jobs", [*many, job()], key=greedy)).status == 507
            # What needs no store goes on.
            assert (await ask(house, "POST", "/v1/chat/completions", chat(), key=greedy)).status == 200

    play(scene)


def test_a_repeat_is_answered_over_the_quota(database: str, play: Play) -> None:
    async def scene() -> None:
        async with house_of(database) as house:
            first = await ask(house, "POST", "/v1/jobs", job(), idempotency_key="k")
            answer = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="c")
            while (await ask(house, "POST", "/v1/jobs", job())).status == 202:
                pass
            while (await ask(house, "POST", "/v1/jobs", job("x"))).status == 202:
                pass
            again = await ask(house, "POST", "/v1/jobs", job(), idempotency_key="k")
            assert (again.status, json.loads(again.body)["id"]) == (202, json.loads(first.body)["id"])
            replayed = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="c")
            assert (replayed.status, replayed.body) == (200, answer.body)

    play(scene)


def test_answers_under_keys_stop_at_the_quota_before_they_are_paid_for(database: str, play: Play) -> None:
    async def scene() -> None:
        async with house_of(database, tenant_bytes=5_000) as house:
            statuses = []
            for number in range(60):
                answer = await ask(
                    house, "POST", "/v1/chat/completions", chat(), idempotency_key=f"k{number}"
                )
                statuses.append(answer.status)
            assert set(statuses) == {200, 507}
            assert await stored(house) <= 5_000 + 2_000
            before = len([event for event in house.events if type(event).__name__ == "AttemptStarted"])
            refused = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="new")
            assert (refused.status, refused.code) == (507, "quota_exceeded")
            after = len([event for event in house.events if type(event).__name__ == "AttemptStarted"])
            assert before == after, "the provider is not asked"

    play(scene)


def test_files_stop_at_the_quota_and_leave_no_bytes_behind(database: str, play: Play) -> None:
    """A file that is refused at its end is gone from the disk; one that is deleted makes room."""

    async def scene() -> None:
        async with house_of(database) as house, client_of(house) as client:
            folder = Path("data/files")
            ids = []
            for _ in range(3):
                file = await client.files.create(file=("in.jsonl", b"x" * 60_000), purpose="batch")
                ids.append(file.id)
            assert bytes_in(folder) == 180_000
            for _ in range(5):
                with pytest.raises(openai.InternalServerError) as refused:
                    await client.files.create(file=("in.jsonl", b"x" * 60_000), purpose="batch")
                assert (refused.value.status_code, refused.value.code) == (507, "quota_exceeded")
            assert bytes_in(folder) == 180_000

            await client.files.delete(ids[0])
            await client.files.create(file=("in.jsonl", b"x" * 60_000), purpose="batch")
            assert bytes_in(folder) == 180_000

    play(scene)


def test_batches_of_one_file_do_not_multiply_it(database: str, play: Play) -> None:
    """Each batch copies its lines into jobs: over the quota they wait, as they wait for places, until there is room."""

    async def scene() -> None:
        async with house_of(database, work=True) as house, client_of(house) as client:
            content = jsonl(range(100))
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            made = 0
            with contextlib.suppress(openai.InternalServerError):
                for _ in range(30):
                    await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
                    made += 1
            for _ in range(40):
                await asyncio.sleep(0.05)
            assert made >= 1
            lines = len(await house.gateway.jobs.list(task="chat", limit=1000))
            assert lines * len(content) / 100 <= QUOTA
            # What was accepted ends all the same.
            assert await house.gateway.jobs.list(task="chat", state="dead_letter") == []

    play(scene)


def test_what_expires_gives_its_bytes_back(database: str, play: Play) -> None:
    async def scene() -> None:
        async with house_of(database) as house:
            store = house.gateway.durable.store
            ids = []
            while (answer := await ask(house, "POST", "/v1/jobs", job())).status == 202:
                ids.append(json.loads(answer.body)["id"])
            for job_id in ids:
                await ask(house, "POST", f"/v1/jobs/{job_id}/cancel")
            assert (await ask(house, "POST", "/v1/jobs", job())).status == 507
            await store.prune(before=house.gateway.now() + 1, limit=100)
            assert await stored(house) == 0
            assert (await ask(house, "POST", "/v1/jobs", job())).status == 202

    play(scene)


# ---- The floor of free disk ------------------------------------------------------------------------------


async def low_on_disk(house: House, *, store_is_here: bool) -> None:
    """Files, jobs and keys are refused, and say so; calls without a key are served."""
    async with client_of(house) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("in.jsonl", b"x" * 100), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
        with pytest.raises(openai.InternalServerError) as refused:
            await client.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window="24h")
        assert refused.value.status_code == 503
    submitted = await ask(house, "POST", "/v1/jobs", job("x"))
    keyed = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="new")
    if store_is_here:
        for answer in (submitted, keyed):
            assert (answer.status, answer.code) == (503, "store_unavailable")
            assert "disk is nearly full" in answer.body.decode()
            assert int(answer.headers["retry-after"]) > 0
    else:
        assert (submitted.status, keyed.status) == (202, 200)
    assert (await ask(house, "POST", "/v1/chat/completions", chat())).status == 200


def test_below_the_floor_new_durable_work_is_refused(database: str, play: Play) -> None:
    """The floor is above what any disk has. On PostgreSQL only files and batches need this machine's disk."""

    async def scene() -> None:
        async with house_of(database, min_free_bytes=FOR_EVER_BYTES) as house:
            await low_on_disk(house, store_is_here=database == "sqlite")
            assert bytes_in(Path("data/files")) == 0

    play(scene)


def test_below_the_floor_repeats_are_answered_and_accepted_jobs_end(play: Play) -> None:
    async def scene() -> None:
        async with house_of("sqlite") as house:
            first = await ask(house, "POST", "/v1/jobs", job("x"), idempotency_key="j")
            answer = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="c")
        async with house_of("sqlite", min_free_bytes=FOR_EVER_BYTES, work=True) as house:
            again = await ask(house, "POST", "/v1/jobs", job("x"), idempotency_key="j")
            job_id = json.loads(first.body)["id"]
            assert (again.status, json.loads(again.body)["id"]) == (202, job_id)
            replayed = await ask(house, "POST", "/v1/chat/completions", chat(), idempotency_key="c")
            assert (replayed.status, replayed.body) == (200, answer.body)
            ended = json.loads((await ask(house, "GET", f"/v1/jobs/{job_id}?wait=30")).body)
            assert ended["state"] == "completed"

    play(scene)


def test_the_disk_is_not_asked_at_every_request(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    real = os.statvfs

    def counted(path: Any) -> os.statvfs_result:
        nonlocal asked
        asked += 1
        return real(path)

    async def scene() -> None:
        async with house_of("sqlite", tenant_bytes=10**9) as house:
            monkeypatch.setattr(os, "statvfs", counted)
            started = asyncio.get_running_loop().time()
            for _ in range(100):
                assert (await ask(house, "POST", "/v1/jobs", job("x"))).status == 202
            took_s = asyncio.get_running_loop().time() - started
            assert 1 <= asked <= 2 + took_s / disk.LOOK_EVERY_S

    play(scene)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MB. Skipped where this user may not mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def fill(client: AsyncOpenAI) -> None:
    """A megabyte after the other, until it is refused."""
    for _ in range(32):
        try:
            await client.files.create(file=("in.jsonl", bytes(2**20)), purpose="batch")
        except openai.InternalServerError as refused:
            assert (refused.status_code, refused.code) == (503, "store_unavailable")  # noqa: PT017 - the usual end
            return
        await asyncio.sleep(0.2)
    raise AssertionError("nothing was refused")


def test_a_small_disk_is_never_filled(small_disk: Path, play: Play) -> None:
    """Uploads until it is nearly full, then all that follows: the database goes on working."""

    async def scene() -> None:
        limits = {"min_free_bytes": 16 * 2**20, "tenant_bytes": 10**12}
        settings = {"data_dir": str(small_disk), "models": MODELS, "limits": limits}
        async with opened(settings, work=True) as house, client_of(house) as client:
            accepted = await ask(house, "POST", "/v1/jobs", job("x"))
            assert accepted.status == 202
            await fill(client)
            free = os.statvfs(small_disk)
            assert free.f_bavail * free.f_frsize > 2**20
            await low_on_disk(house, store_is_here=True)

            for file in (await client.files.list()).data:
                await client.files.delete(file.id)
            await asyncio.sleep(disk.LOOK_EVERY_S)
            answer = await ask(house, "POST", "/v1/jobs", job("x"))
            assert answer.status == 202
            ended = await ask(house, "GET", f"/v1/jobs/{json.loads(answer.body)['id']}?wait=30")
            assert json.loads(ended.body)["state"] == "completed"

    play(scene)
