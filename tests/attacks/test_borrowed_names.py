"""Names of ours in a job's input: what only the code of a task may say is not to be had from outside."""

import asyncio
import json
from typing import Any, Final

import pytest
from attacks.tenants import bearer, ended, job
from contracts.provider_stage import Part
from providers.stubs import openai
from server.http.front_stage import Play
from server.locked_stage import CHAT, locked
from server.upstreams import one_model, openai_stub, upstream_of

HELLO: Final = [{"role": "user", "content": "hello"}]
VALUES: Final = (99, -5, "x", [1], [{"temperature": 1}], None, 1e9)
NAMES: Final = ("regenerations", "check", "self")
INPUTS: Final[dict[str, dict[str, Any]]] = {
    "chat": {"model": "m", "messages": HELLO},
    "embeddings": {"model": "m", "input": "hello"},
}


@pytest.mark.parametrize("task", INPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_jobs_input_with_a_name_of_ours_is_refused_at_submission(
    play: Play, database: str, task: str, name: str
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(openai.completion({"content": ""})) as stub,
            locked(
                work=True, database=database, **one_model(upstream_of("openai", stub, Part.BLANK))
            ) as gateway,
        ):
            key = bearer(await gateway.key())
            for value in VALUES:
                body = {**INPUTS[task], name: value}
                told = await gateway.post("/v1/jobs", {"task": task, "input": body}, key)
                _is_refused(told, name)
                listed = await gateway.post("/v1/jobs", [{"task": task, "input": body}], key)
                _is_refused(listed, name)
            assert json.loads((await gateway.get("/v1/jobs", key)).body)["data"] == []
            assert stub.requests == []

    play(scene)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_becomes_a_job_and_a_replay_are_refused_alike(play: Play, name: str) -> None:
    async def scene() -> None:
        async with (
            openai_stub(openai.error(400)) as stub,
            locked(work=True, **one_model(upstream_of("openai", stub, Part.REJECTED))) as gateway,
        ):
            text = await gateway.key()
            key = bearer(text)
            body = {**INPUTS["chat"], name: 99}
            _is_refused(await gateway.post(CHAT, body, key, "Prefer: respond-async"), name)
            dead = await job(gateway, text, task="chat", input=INPUTS["chat"])
            assert dead["state"] == "dead_letter"
            _is_refused(await gateway.post(f"/v1/jobs/{dead['id']}/replay", {"input": body}, key), name)
            assert len(stub.requests) == 1

    play(scene)


def test_a_batch_with_such_a_line_fails_and_names_the_field(play: Play) -> None:
    async def scene() -> None:
        async with (
            openai_stub(openai.completion()) as stub,
            locked(work=True, **one_model(upstream_of("openai", stub, Part.ANSWER))) as gateway,
        ):
            text = await gateway.key()
            line = {
                "custom_id": "a",
                "method": "POST",
                "url": CHAT,
                "body": {**INPUTS["chat"], "regenerations": 99},
            }
            file_id = await _upload(gateway, text, json.dumps(line).encode() + b"\n")
            made = await gateway.post(
                "/v1/batches",
                {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"},
                bearer(text),
            )
            batch = json.loads(made.body)
            async with asyncio.timeout(30):
                while batch["status"] not in {"failed", "completed"}:
                    await asyncio.sleep(0.01)
                    batch = json.loads((await gateway.get(f"/v1/batches/{batch['id']}", bearer(text))).body)
            [error] = batch["errors"]["data"]
            assert (batch["status"], error["line"], error["param"]) == ("failed", 1, "body.regenerations")
            assert stub.requests == []

    play(scene)


def test_fields_that_nobody_here_knows_still_go_to_the_provider(play: Play, database: str) -> None:
    """Whatever they are called: also as arguments of our own functions are."""
    strange = {
        "deadline": 1,
        "lane": "x",
        "tenant": "b",
        "params": {"a": 1},
        "more": [2],
        "request": {},
        "ctx": 3,
        "policy": None,
        "new_param_of_tomorrow": {"deep": [True]},
    }

    async def scene() -> None:
        async with (
            openai_stub(openai.completion()) as stub,
            locked(
                work=True, database=database, **one_model(upstream_of("openai", stub, Part.ANSWER))
            ) as gateway,
        ):
            key = await gateway.key(tenant="a")
            done = await job(gateway, key, task="chat", input={**INPUTS["chat"], **strange})
            assert done["state"] == "completed"
            later = await gateway.post(
                CHAT, {**INPUTS["chat"], **strange}, bearer(key), "Prefer: respond-async"
            )
            await ended(gateway, key, json.loads(later.body)["id"])
            for seen in stub.requests:
                assert {name: seen.body[name] for name in strange} == strange
                assert seen.body["model"] == "upstream-model"
            assert len(stub.requests) == 2

    play(scene)


def _is_refused(answer: Any, name: str) -> None:
    error = json.loads(answer.body)["error"]
    assert answer.status == 400, answer.body
    assert error["code"] == "invalid_request"
    assert error["param"].rpartition(".")[2] == name
    assert name in error["message"]


async def _upload(gateway: Any, key: str, content: bytes) -> str:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        + content
        + b"\r\n--x--\r\n"
    )
    kind = "Content-Type: multipart/form-data; boundary=x"
    return str(json.loads((await gateway.post("/v1/files", body, bearer(key), kind)).body)["id"])
