"""One tenant's calls fail, and the provider quotes them. Another tenant must not read a word of it."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from attacks.tenants import bearer, job, message_of
from contracts.provider_stage import Part
from providers.stubs import openai
from server.http.front_stage import Play
from server.locked_stage import locked
from server.stage import opened
from server.upstreams import one_model, openai_stub, until, upstream_of

from headgate import Context, task
from headgate.core.errors import UpstreamMisconfigured
from headgate.core.ticket import CHAT

SAID: Final = "a guardrail blocked this prompt: my card is 4111-1111"
QUOTES: Final = openai.error(403, SAID, code="blocked")
BODY: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@task(name="ask-m", model=None)
async def ask_m(ctx: Context, _: Any) -> str | None:
    return (await ctx.llm.complete(model="m", messages=[{"role": "user", "content": "hello"}])).content


def one_quoting(stub: Any) -> Mapping[str, Any]:
    return one_model(upstream_of("openai", stub, Part.ANSWER))


def test_who_is_kept_out_by_a_hold_reads_nothing_of_the_call_that_caused_it(
    play: Play, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(QUOTES) as stub,
            locked(work=True, tasks=[ask_m], database=database, **one_quoting(stub)) as gateway,
        ):
            await gateway.key(name="boss", role="operate")
            mine, other = await gateway.key(tenant="a"), await gateway.key(name="b", tenant="b")
            for _ in range(3):
                await gateway.chat(mine, model="m")
            calls = len(stub.requests)
            whole = await gateway.chat(other, model="m")
            streamed = await gateway.chat(other, model="m", stream=True)
            kept = await gateway.chat(other, "Idempotency-Key: k", model="m")
            # A job for another model whose task calls the held one: a job of the model itself would wait.
            dead = await job(gateway, other, task="ask-m", hold=False, max_attempts=1)
            listed = await gateway.get("/v1/dead-letters", bearer(other))
            assert len(stub.requests) == calls, "the upstream is held"
            for answer in (whole, streamed, kept):
                assert answer.status == 502
                assert "misconfigured 403 blocked" in message_of(answer)
                assert b"4111" not in answer.body
            assert dead["state"] == "dead_letter"
            assert "4111" not in json.dumps(dead)
            assert dead["id"] in listed.body.decode()
            assert b"4111" not in listed.body
        caplog.clear()

    play(scene)


def test_a_job_keeps_the_words_to_its_own_call(
    play: Play, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(QUOTES) as stub,
            locked(work=True, database=database, **one_quoting(stub)) as gateway,
        ):
            key = await gateway.key(tenant="a")
            dead = await job(gateway, key, task="chat", input=BODY, hold=False, max_attempts=1)
            assert SAID in dead["error"]
        caplog.clear()

    play(scene)


def test_the_library_tells_whoever_is_held_back_class_status_and_code_only(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with openai_stub(QUOTES) as stub, opened(one_quoting(stub)) as house:
            messages = BODY["messages"]
            for _ in range(3):
                with pytest.raises(UpstreamMisconfigured, match="card"):
                    await house.gateway.complete(model="m", messages=messages)
            [upstream] = house.gateway.routes.find("m").upstreams
            await until(lambda: upstream.gate.admission.holds.blocks(CHAT, "b", time.monotonic()) is not None)
            with pytest.raises(UpstreamMisconfigured, match="misconfigured 403 blocked") as caught:
                await house.gateway.complete(model="m", messages=messages, tenant="b")
            assert "4111" not in f"{caught.value} {caught.value.failure} {caught.value.public}"
        caplog.clear()

    play(scene)


@pytest.mark.parametrize("status", [400, 429, 500, 403])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama", "bedrock"])
def test_a_tenants_job_does_not_tell_where_the_upstream_is(
    play: Play, caplog: pytest.LogCaptureFixture, provider: str, status: int
) -> None:
    """The operator finds the address in the log."""
    caplog.set_level("INFO", logger="headgate")

    async def scene() -> None:
        async with openai_stub(openai.error(status, SAID, code="some_code")) as stub:
            upstream = upstream_of(provider, _Address(stub.url.removesuffix("/v1"), stub.url), Part.ANSWER)
            async with locked(work=True, **one_model(upstream)) as gateway:
                key = await gateway.key(tenant="a")
                asked = {
                    "task": "chat",
                    "input": BODY,
                    "hold": False,
                    "max_attempts": 1,
                    "expires_after_s": 1.5,
                }
                dead = await job(gateway, key, **asked)
                assert dead["state"] == "dead_letter"
                assert "127.0.0.1" not in json.dumps(dead)
                assert any(stub.url.removesuffix("/v1") in line for line in caplog.messages)
        caplog.clear()

    play(scene)


class _Address:
    """Where an upstream is, as each provider's settings want it."""

    model = "amazon.test-v1"

    def __init__(self, root: str, versioned: str) -> None:
        self.root, self.versioned = root, versioned

    @property
    def url(self) -> str:
        return self.root
