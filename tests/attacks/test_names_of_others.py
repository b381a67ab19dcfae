"""Names that one tenant gives, and where upstreams and hosts are: none of another tenant's business."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
from attacks.tenants import bearer, ended, job, message_of
from providers.stubs import openai
from providers.stubs.openai import OpenAIStub
from server.http.front_stage import Play
from server.locked_stage import CHAT, Locked, locked
from server.upstreams import COMPLETIONS, EMBEDDINGS, openai_stub

from headgate.observe.metrics import Metrics

HELLO: Final = [{"role": "user", "content": "hello"}]
SECRET_KEY: Final = "key-of-acme-ltd"
FAMILY: Final = "ft/acme-layoffs"
DOWN: Final[dict[str, Any]] = {"provider": "simulated", "latency_s": 0, "outcome": {"status": 400}}
MODELS: Final[dict[str, Any]] = {
    name: {"upstreams": [{"provider": "simulated", "latency_s": 0}]}
    for name in ("sharp", "shallow", "payroll", "board-minutes")
} | {
    "broken": {"upstreams": [DOWN]},
}


def with_family(stub: OpenAIStub) -> dict[str, Any]:
    family = {"provider": "openai", "base_url": stub.url, "api_key": "sk-nothing"}
    return {**MODELS, "ft/*": {"upstreams": [family]}}


async def first_events(gateway: Locked, key: str, *kinds: str) -> str:
    """All events of these types that this key may read."""
    async with (
        httpx.AsyncClient(base_url=gateway.house.url) as http,
        http.stream(
            "GET",
            f"/events?after=0&types={','.join(kinds)},WaitEnded",
            headers={"authorization": f"Bearer {key}"},
        ) as stream,
    ):
        told = ""
        try:
            async with asyncio.timeout(1.0):
                async for text in stream.aiter_text():
                    told += text
        except TimeoutError:
            return told
    return told


def test_a_read_key_of_another_tenant_does_not_see_who_replayed(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(work=True, models=MODELS, database=database) as gateway:
            metrics = Metrics(models=gateway.house.gateway.routes.names, status=gateway.house.gateway.status)
            gateway.house.gateway.listen(metrics)
            mine = await gateway.key(name=SECRET_KEY, tenant="acme")
            reader = await gateway.key(name="reader", tenant="b", role="read")
            own = await gateway.key(name="own-reader", tenant="acme", role="read")
            boss = await gateway.key(name="boss", tenant="c", role="operate")
            dead = await job(
                gateway, mine, task="chat", input={"model": "broken", "messages": HELLO}, max_attempts=1
            )
            answer = await gateway.post(f"/v1/jobs/{dead['id']}/replay", {}, bearer(mine))
            assert answer.status == 202
            await ended(gateway, mine, dead["id"])
            assert SECRET_KEY not in await first_events(gateway, reader, "JobsReplayed")
            assert SECRET_KEY in await first_events(gateway, own, "JobsReplayed")
            assert SECRET_KEY in await first_events(gateway, boss, "JobsReplayed")
            page = metrics.exposition().decode()
            assert "headgate_replays_total 1" in page
            assert SECRET_KEY not in page

    play(scene)


def test_a_read_key_does_not_see_which_key_paused_a_model(play: Play) -> None:
    async def scene() -> None:
        async with locked(models=MODELS) as gateway:
            reader = await gateway.key(name="reader", tenant="b", role="read")
            boss = await gateway.key(name=SECRET_KEY, tenant="acme", role="operate")
            assert (await gateway.post("/v1/models/pause", {"model": "sharp"}, bearer(boss))).status == 200
            told = await first_events(gateway, reader, "ModelPauseChanged")
            assert "ModelPauseChanged" in told
            assert SECRET_KEY not in told
            assert SECRET_KEY in await first_events(gateway, boss, "ModelPauseChanged")
            async with looking(gateway, reader) as browser:
                page = (await browser.get("/models")).text
                assert "paused" in page
                assert SECRET_KEY not in page
            async with looking(gateway, boss) as browser:
                assert SECRET_KEY in (await browser.get("/models")).text

    play(scene)


@pytest.mark.parametrize("role", ["call", "read"])
def test_members_of_families_are_shown_to_those_who_called_them(play: Play, role: str) -> None:
    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub, locked(models=with_family(stub)) as gateway:
            mine = await gateway.key(name="a", tenant="acme")
            own = await gateway.key(name="a2", tenant="acme", role=role)
            other = await gateway.key(name="b", tenant="b", role=role)
            boss = await gateway.key(name="boss", tenant="c", role="operate")
            assert (await gateway.chat(mine, model=FAMILY)).status == 200
            for key, seen in ((own, True), (other, False), (boss, True)):
                async with looking(gateway, key) as browser:
                    page = (await browser.get("/models")).text
                    found = (await browser.get("/models?q=acme")).text
                    assert ("acme-layoffs" in page) is seen
                    assert ("acme-layoffs" in found) is seen
                    assert "payroll" in page

    play(scene)


def test_a_404_names_only_models_that_the_key_may_use(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(work=True, models=MODELS, database=database) as gateway:
            key = await gateway.key(tenant="b", models=("sha*",))
            told = [
                await gateway.chat(key, model="sharq"),
                await gateway.chat(key, model="sharq", stream=True),
                await gateway.chat(key, "Idempotency-Key: k", model="sharq"),
                await gateway.chat(key, "Prefer: respond-async", model="sharq"),
                await gateway.post(COMPLETIONS, {"model": "sharq", "prompt": "hello"}, bearer(key)),
                await gateway.post(EMBEDDINGS, {"model": "sharq", "input": "hello"}, bearer(key)),
                await gateway.get("/v1/models/sharq", bearer(key)),
                await gateway.post("/v1/jobs", _job("sharq"), bearer(key)),
                await gateway.post("/v1/jobs", [_job("sharp"), _job("sharq")], bearer(key)),
            ]
            for answer in told:
                assert answer.status == 404, answer.body
                message = message_of(answer)
                assert "did you mean 'sharp'?" in message
                assert "known: sharp, shallow" in message
                for name in ("payroll", "board-minutes", "simulated", "broken"):
                    assert name not in message
            nothing = await gateway.key(name="c", models=("zz*",))
            bare = message_of(await gateway.chat(nothing, model="zzz"))
            assert bare == "no model is called 'zzz'"
            whole = await gateway.key(name="d")
            assert "payroll" in message_of(await gateway.chat(whole, model="sharq"))

    play(scene)


def test_a_batch_that_names_an_unknown_model_is_told_no_others(play: Play) -> None:
    async def scene() -> None:
        async with locked(work=True, models=MODELS) as gateway:
            key = await gateway.key(tenant="b", models=("sha*",))
            line = {"custom_id": "a", "method": "POST", "url": CHAT}
            content = json.dumps({**line, "body": {"model": "sharq", "messages": HELLO}}).encode()
            form = (
                b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
                b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
                + content
                + b"\n\r\n--x--\r\n"
            )
            kind = "Content-Type: multipart/form-data; boundary=x"
            file = json.loads((await gateway.post("/v1/files", form, bearer(key), kind)).body)
            asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
            batch = json.loads((await gateway.post("/v1/batches", asked, bearer(key))).body)
            async with asyncio.timeout(30):
                while batch["status"] != "failed":
                    await asyncio.sleep(0.01)
                    batch = json.loads((await gateway.get(f"/v1/batches/{batch['id']}", bearer(key))).body)
            [error] = batch["errors"]["data"]
            assert "known: sharp, shallow" in error["message"]
            assert "payroll" not in error["message"]

    play(scene)


def test_a_refused_webhook_does_not_tell_where_its_name_leads(
    play: Play, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`ip6-localhost` and the like are names that only this machine's resolver knows; the operator reads the log."""
    caplog.set_level("INFO", logger="headgate")
    [name] = [name for name in _own_names() if name][:1]

    async def scene() -> None:
        async with locked(work=True, models=MODELS, database=database) as gateway:
            key = await gateway.key(tenant="b")
            asked = {**_job("sharp"), "webhook": f"http://{name}:9/hook"}
            answer = await gateway.post("/v1/jobs", asked, bearer(key))
            if answer.status == 400:
                told = answer.body.decode()
            else:
                await ended(gateway, key, json.loads(answer.body)["id"])
                listed = json.loads((await gateway.get("/v1/jobs?task=headgate.webhook", bearer(key))).body)
                [delivery] = listed["data"]
                told = json.dumps(await ended(gateway, key, delivery["id"]))
            assert "not allowed" in told
            assert "127." not in told
            assert "::1" not in told
            assert "this machine" not in told
            assert any("leads to" in line for line in caplog.messages)
        caplog.clear()

    play(scene)


def _own_names() -> list[str]:
    """Names of this machine that a URL may hold and that are not localhost."""
    import socket  # noqa: PLC0415 - one test needs it

    return [socket.gethostname()]


def _job(model: str) -> dict[str, Any]:
    return {"task": "chat", "input": {"model": model, "messages": HELLO}}


@asynccontextmanager
async def looking(gateway: Locked, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has logged in."""
    async with httpx.AsyncClient(base_url=gateway.house.url, headers={"accept": "text/html"}) as browser:
        form = {"origin": gateway.house.url, "content-type": "application/x-www-form-urlencoded"}
        assert (await browser.post("/login", content=f"key={key}", headers=form)).status_code == 303
        yield browser
