"""Webhooks at a real port: a job with an address, the secret to check it with, telling it again."""

import asyncio
import json
from typing import Any

import pytest
from observe.receivers_stage import Receiver
from server.http.front_stage import Answer, Play, Wire, eventually
from server.keyed_stage import keyed_door
from server.stage import House, opened
from standardwebhooks.webhooks import Webhook

BODY = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}
SETTINGS: dict[str, Any] = {"data_dir": "data", "webhooks": {"allow_private": True}}


async def ask(house: House, method: str, path: str, body: Any = None, key: str | None = None) -> Answer:
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(sent)}"]
    lines += [] if key is None else [f"Authorization: Bearer {key}"]
    wire = Wire(*await asyncio.open_connection("127.0.0.1", house.port))
    try:
        return await wire.ask("\r\n".join([*lines, "", ""]).encode() + sent)
    finally:
        wire.writer.close()


def read(answer: Answer) -> Any:
    return json.loads(answer.body)


def test_a_job_is_told_and_told_again_and_passes_the_official_check(play: Play) -> None:
    async def scene() -> None:
        receiver = Receiver(asyncio.get_running_loop().time)
        await receiver.up()
        async with opened(SETTINGS, work=True) as house:
            job = read(
                await ask(
                    house, "POST", "/v1/jobs", {"task": "chat", "input": BODY, "webhook": receiver.url()}
                )
            )
            assert job["webhook"] == receiver.url()
            await ask(house, "GET", f"/v1/jobs/{job['id']}?wait=30")
            secret = read(await ask(house, "GET", "/v1/webhooks/secret"))["secret"]
            again = await ask(house, "POST", f"/v1/jobs/{job['id']}/redeliver")
            assert again.status == 202
            delivery = read(again)
            assert again.headers["location"] == f"/v1/jobs/{delivery['id']}"
            ended = read(await ask(house, "GET", f"/v1/jobs/{delivery['id']}?wait=30"))
            assert (ended["state"], ended["task"]) == ("completed", "headgate.webhook")
            await eventually(lambda: len(receiver.received) == 2)
        first, second = receiver.received
        assert first.id == second.id == delivery["metadata"]["webhook_id"]
        for message in receiver.received:
            told = Webhook(secret).verify(message.body, message.headers)
            assert told["data"]["id"] == job["id"]
            assert told["data"]["result"]["object"] == "chat.completion"
        receiver.close()

    play(scene)


def test_a_tenant_has_its_own_secret_and_its_own_deliveries(play: Play) -> None:
    """Who may only look could forge messages if it knew the secret: it is not told."""

    async def scene() -> None:
        async with keyed_door() as door, opened(SETTINGS, access=door.access) as house:
            acme, other = await door.key(tenant="acme"), await door.key(tenant="other")
            reader, operator = await door.key(tenant="acme", role="read"), await door.key(role="operate")
            path = "/v1/webhooks/secret"
            secrets = [
                read(await ask(house, "GET", path, key=key))["secret"] for key in (acme, other, operator)
            ]
            assert len(set(secrets)) == 3
            assert (await ask(house, "GET", path, key=reader)).status == 403
            assert (await ask(house, "GET", path)).status == 401

            submitted = {"task": "chat", "input": BODY, "webhook": "http://127.0.0.1:9/"}
            job = read(await ask(house, "POST", "/v1/jobs", submitted, key=acme))
            again = f"/v1/jobs/{job['id']}/redeliver"
            assert (await ask(house, "POST", again, key=other)).status == 404
            assert (await ask(house, "POST", again, key=reader)).status == 403
            early = await ask(house, "POST", again, key=acme)
            assert (early.status, read(early)["error"]["code"]) == (409, "state_conflict")
            assert (await ask(house, "POST", again, {"to": "me"}, key=acme)).status == 400

    play(scene)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "ftp://a.example/", "https://a:b@c.example/", "http://169.254.169.254/", 7, ""],
)
def test_an_address_that_cannot_work_is_a_wrong_request(url: Any, play: Play) -> None:
    async def scene() -> None:
        async with opened({"data_dir": "data"}) as house:
            refused = await ask(house, "POST", "/v1/jobs", {"task": "chat", "input": BODY, "webhook": url})
            error = read(refused)["error"]
            assert (refused.status, error["code"], error["param"]) == (400, "invalid_request", "webhook")

    play(scene)


def test_headgate_s_own_task_cannot_be_submitted(play: Play) -> None:
    async def scene() -> None:
        async with opened({"data_dir": "data"}) as house:
            forged: dict[str, Any] = {"id": "msg_1", "payload": {}, "url": None}
            refused = await ask(house, "POST", "/v1/jobs", {"task": "headgate.webhook", "input": forged})
            assert (refused.status, read(refused)["error"]["param"]) == (400, "task")

    play(scene)
