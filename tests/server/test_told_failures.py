"""What a caller reads when an upstream fails: whose failure, which class, which status. Not where the upstream is.

The address and the operator's hint are in the gateway's log; a provider's words are in neither, unless the request is wrong.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from contracts.provider_stage import Part
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import QUICK, ask, one_model, upstream_of

WORDS: Final = "max_tokens is too large, says the provider"
MODELS: Final = {
    "openai": "upstream-model",
    "anthropic": "claude-test",
    "ollama": "gemma3:4b",
    "bedrock": "amazon.test-v1",
}


@dataclass
class Failing:
    """An upstream that answers every request with one status, and with words in all providers' formats."""

    url: str
    model: str = MODELS["bedrock"]


@asynccontextmanager
async def failing(status: int) -> AsyncIterator[Failing]:
    error = {"message": WORDS, "type": "some_error"}
    body = json.dumps({"type": "error", "error": error, "message": WORDS}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Failing(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("status", "answered", "kind"),
    [(500, 502, "transient"), (401, 502, "misconfigured"), (429, 429, "throttled"), (400, 400, "rejected")],
)
@pytest.mark.parametrize("provider", MODELS)
def test_a_caller_reads_which_upstream_failed_and_how_but_not_where_it_is(
    play: Play,
    caplog: pytest.LogCaptureFixture,
    provider: str,
    status: int,
    answered: int,
    kind: str,
    streamed: bool,
) -> None:
    caplog.set_level("INFO", logger="headgate")

    async def scene() -> None:
        async with failing(status) as upstream:
            told, address = await _told(upstream, provider, streamed=streamed), upstream.url
        assert told["status"] == answered
        message = told["message"]
        assert f"{provider}/{MODELS[provider]}: {kind} {status}" in message
        assert address not in message
        assert "127.0.0.1" not in message
        assert (WORDS in message) is (kind == "rejected"), (
            "who must change the request has to know what is wrong"
        )
        assert "api_key" not in message
        assert any(address in line for line in caplog.messages), "the operator finds the address in the log"
        assert not any(WORDS in line for line in caplog.messages)

    play(scene)


def test_nothing_that_listens_is_told_without_its_address(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="headgate")

    async def scene() -> None:
        async with failing(500) as upstream:
            pass
        told = await _told(upstream, "openai", streamed=False)
        assert told["status"] == 502
        assert "openai/upstream-model: transient after 2 attempts" in told["message"]
        assert "127.0.0.1" not in told["message"]
        assert any(upstream.url in line for line in caplog.messages)

    play(scene)


def test_a_held_upstream_is_told_without_its_address(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with (
            failing(401) as upstream,
            opened(one_model(upstream_of("openai", upstream, Part.ANSWER))) as house,
        ):
            for _ in range(4):
                answer = await ask(house)
            message = json.loads(answer.body)["error"]["message"]
            assert message.startswith("openai/upstream-model: held back")
            assert "misconfigured 401" in message
            assert "127.0.0.1" not in message
            assert WORDS not in message
        assert [record.levelname for record in caplog.records].count("ERROR") == 1, "that it is held"
        caplog.clear()

    play(scene)


async def _told(upstream: Failing, provider: str, *, streamed: bool) -> dict[str, Any]:
    settings = one_model(
        upstream_of(provider, upstream, Part.ANSWER), retry={**QUICK, "count_throttles": True}
    )
    async with opened(settings) as house:
        answer = await ask(house, stream=streamed)
        return {"status": answer.status, **json.loads(answer.body)["error"]}
