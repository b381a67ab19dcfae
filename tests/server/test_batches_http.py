"""Files and batches over HTTP, by the official client, unmodified."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from batches.lines import CHAT, jsonl, line
from openai import AsyncOpenAI
from openai.types import Batch
from server.http.front_stage import Answer, Play, Wire, post
from server.keyed_stage import keyed_door
from server.stage import House, opened

from headgate.core.batch_order import job_id_of
from headgate.server.files import UPLOADS
from headgate.server.http import HttpLimits

ENDED = {"completed", "failed", "expired", "cancelled"}
MODELS: dict[str, Any] = {
    "m": {"upstreams": [{"provider": "simulated", "latency_s": 0, "slots": 32}]},
    "slow": {"upstreams": [{"provider": "simulated", "latency_s": 5}]},
    "n": {"upstreams": [{"provider": "simulated", "latency_s": 0}]},
}


@asynccontextmanager
async def house_of(**options: Any) -> AsyncIterator[House]:
    settings = {"data_dir": "data", "models": MODELS, **options.pop("settings", {})}
    async with opened(settings, **{"work": True, **options}) as house:
        yield house


def client_of(house: House, key: str = "any") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0)


async def wait(client: AsyncOpenAI, batch: Batch) -> Batch:
    while batch.status not in ENDED:
        await asyncio.sleep(0.02)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def until_done(client: AsyncOpenAI, batch: Batch, lines: int) -> None:
    """So many of its lines have been answered."""
    done = 0
    while done < lines:
        await asyncio.sleep(0.02)
        counts = (await client.batches.retrieve(batch.id)).request_counts
        done = 0 if counts is None else counts.completed


async def run(client: AsyncOpenAI, content: bytes, **options: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", **options
    )
    assert batch.status in {"validating", "in_progress", "finalizing", "completed", "failed"}
    return await wait(client, batch)


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = (await client.files.content(file_id)).content
    return {(told := json.loads(one))["custom_id"]: told for one in content.splitlines()}


def test_a_file_becomes_a_batch_becomes_files(play: Play) -> None:
    async def scene() -> None:
        async with house_of() as house, client_of(house) as client:
            content = jsonl(range(30)) + line("wrong", model="simulated/rejecting")
            batch = await run(client, content, metadata={"a": "b"})
            assert batch.status == "completed"
            counts = batch.request_counts
            assert counts is not None
            assert (counts.total, counts.completed, counts.failed) == (31, 30, 1)
            assert batch.metadata == {"a": "b"}
            output = await lines_of(client, batch.output_file_id)
            errors = await lines_of(client, batch.error_file_id)
            assert set(output) == {f"line {number}" for number in range(30)}
            assert set(errors) == {"wrong"}
            assert output["line 3"]["response"]["status_code"] == 200
            assert errors["wrong"]["response"]["status_code"] == 400
            assert (await client.files.content(batch.input_file_id)).content == content

    play(scene)


def test_lists_show_the_newest_first_and_go_on(play: Play) -> None:
    async def scene() -> None:
        async with house_of() as house, client_of(house) as client:
            made = [(await run(client, jsonl(range(1)))).id for _ in range(3)]
            assert [one.id async for one in client.batches.list(limit=2)] == made[::-1]
            uploaded = [one async for one in client.files.list(limit=2, purpose="batch")]
            assert len(uploaded) == 3
            assert len([one async for one in client.files.list(limit=2)]) == 6
            file = await client.files.retrieve(uploaded[0].id)
            assert (file.filename, file.status) == ("in.jsonl", "processed")
            assert (await client.files.delete(file.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(file.id)

    play(scene)


def test_bad_lines_are_named_as_the_client_knows_it(play: Play) -> None:
    async def scene() -> None:
        async with house_of() as house, client_of(house) as client:
            batch = await run(client, line("a") + b"{\n" + line("a"))
            assert batch.status == "failed"
            assert batch.errors is not None
            assert [(one.code, one.line) for one in batch.errors.data or ()] == [
                ("invalid_json_line", 2),
                ("duplicate_custom_id", 3),
            ]

    play(scene)


def test_a_batch_can_be_cancelled_and_its_rest_retried(play: Play) -> None:
    async def scene() -> None:
        async with house_of() as house, client_of(house) as client:
            file = await client.files.create(
                file=("in.jsonl", jsonl(range(3)) + jsonl("ab", model="slow")), purpose="batch"
            )
            batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            with pytest.raises(openai.ConflictError):
                await client.files.delete(file.id)
            await until_done(client, batch, 3)
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
            # The lines that run are told at the node's next renewal; here nobody wants to wait for that.
            await house.gateway.durable.node._renew()
            while (over := await client.batches.retrieve(batch.id)).status not in ENDED:
                await house.gateway.durable.node._renew()
                await asyncio.sleep(0.05)
            assert over.status == "cancelled"
            assert len(await lines_of(client, over.output_file_id)) == 3
            assert set(await lines_of(client, over.error_file_id)) == {"line a", "line b"}
            with pytest.raises(openai.ConflictError):
                await client.batches.cancel(batch.id)
            again = await client.post(f"/batches/{batch.id}/retry", cast_to=Batch)
            assert again.metadata == {"retry_of": batch.id}

    play(scene)


def test_a_batch_s_job_is_a_conflict_to_cancel_that_names_the_batch_s_route(play: Play) -> None:
    async def scene() -> None:
        async with house_of(work=False) as house, client_of(house) as client:
            file = await client.files.create(file=("in.jsonl", jsonl(range(1))), purpose="batch")
            batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            answer = await _ask(house, post(b"", f"/v1/jobs/{job_id_of(batch.id)}/cancel"))
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"]) == (409, "state_conflict")
            assert f"/v1/batches/{batch.id}/cancel" in error["message"]
            assert (await client.batches.cancel(batch.id)).status == "cancelling"

    play(scene)


def test_the_same_key_gives_the_same_batch(play: Play) -> None:
    async def scene() -> None:
        async with house_of(work=False) as house, client_of(house) as client:
            file = await client.files.create(file=("in.jsonl", jsonl(range(1))), purpose="batch")
            asked: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
            headers = {"Idempotency-Key": "one"}
            first = await client.batches.create(**asked, extra_headers=headers)
            again = await client.batches.with_raw_response.create(**asked, extra_headers=headers)
            assert again.headers["idempotent-replayed"] == "true"
            assert again.parse().id == first.id
            assert (await client.batches.create(**asked)).id != first.id

    play(scene)


def test_a_key_s_models_bind_the_lines_and_tenants_are_apart(play: Play) -> None:
    async def scene() -> None:
        async with keyed_door() as door, house_of(access=door.access) as house:
            acme = client_of(house, await door.key(tenant="acme", models=("m",)))
            beta = client_of(house, await door.key(tenant="beta"))
            async with acme, beta:
                batch = await run(acme, line("a") + line("b", model="n"))
                assert batch.errors is not None
                assert [(one.code, one.line) for one in batch.errors.data or ()] == [("model_not_allowed", 2)]
                for look in (beta.batches.retrieve, beta.batches.cancel):
                    with pytest.raises(openai.NotFoundError):
                        await look(batch.id)
                with pytest.raises(openai.NotFoundError):
                    await beta.files.content(batch.input_file_id)

    play(scene)


def test_an_upload_may_be_larger_than_other_bodies_and_no_more(play: Play) -> None:
    """Its limit is its own: everything else is still refused at the door."""

    async def scene() -> None:
        limits = HttpLimits(body_bytes=10_000, larger_bodies={UPLOADS: 3_000_000})
        settings = {"limits": {"file_bytes": 2_000_000}}
        async with house_of(limits=limits, settings=settings) as house, client_of(house) as client:
            file = await client.files.create(file=("a", b"x" * 2_000_000), purpose="batch")
            assert file.bytes == 2_000_000
            for size in (2_000_001, 4_000_000):
                with pytest.raises(openai.APIStatusError) as refused:
                    await client.files.create(file=("a", b"x" * size), purpose="batch")
                assert refused.value.status_code == 413
            assert (await _ask(house, post(b" " * 10_001, "/v1/batches"))).status == 413
            assert [one.name for one in Path("data/files").iterdir()] == [file.id]  # noqa: ASYNC240

    play(scene)


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ({"purpose": b"batch"}, "file"),
        ({"file": b"x"}, "purpose"),
        ({"file": b"x", "purpose": b"fine-tune"}, "purpose"),
        ({"file": b"x", "purpose": b"batch", "expires_after[seconds]": b"3600"}, "expires_after[seconds]"),
        ({"file": b"x", "purpose": b"b" * 70_000}, "purpose"),
    ],
)
def test_an_upload_that_says_something_else_is_refused(
    play: Play, parts: dict[str, bytes], param: str
) -> None:
    async def scene() -> None:
        async with house_of(work=False) as house:
            body = b"".join(
                b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), content)
                for name, content in parts.items()
            )
            kind = "Content-Type: multipart/form-data; boundary=x"
            answer = await _ask(house, post(body + b"--x--\r\n", UPLOADS, kind))
            assert answer.status == 400
            assert json.loads(answer.body)["error"]["param"] == param
            assert await house.gateway.files.list() == []

    play(scene)


async def _ask(house: House, request: bytes) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    try:
        return await asyncio.wait_for(Wire(reader, writer).ask(request), 10)
    finally:
        writer.close()
        await writer.wait_closed()
