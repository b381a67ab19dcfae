"""Upstreams behind a served gateway: a provider's stub in one of its parts, and the settings that lead to it.

And the client of these tests: one request on a connection of its own, read to its end.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from contracts.provider_stage import KEY, QUESTION, SAID, Part, Stub, Troupe
from providers.stubs import anthropic, bedrock, ollama, openai, simulated
from providers.stubs.openai import OpenAIStub
from providers.stubs.scripted import Reply
from server.http.front_stage import Answer, Wire, post
from server.stage import House

from headgate.server.http.exchange import Exchange
from headgate.server.http.front import Front

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
ROUTES: Final = (CHAT, COMPLETIONS, EMBEDDINGS)
ASKED: Final[Mapping[str, Mapping[str, Any]]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": QUESTION}]},
    COMPLETIONS: {"model": "m", "prompt": QUESTION},
    EMBEDDINGS: {"model": "m", "input": ["first", "second"]},
}
"""A body that every route understands."""
QUICK: Final = {"max_attempts": 2, "first_wait_s": 0.01}
"""Retries that no test has to wait for."""
_TROUPES: Final[Mapping[str, Troupe]] = {
    "openai": openai.TROUPE,
    "anthropic": anthropic.TROUPE,
    "ollama": ollama.TROUPE,
    "bedrock": bedrock.TROUPE,
    "simulated": simulated.TROUPE,
}
PROVIDERS: Final = tuple(_TROUPES)


def can(provider: str, part: Part) -> bool:
    return part not in _TROUPES[provider].cannot


def stub_of(provider: str, part: Part) -> Stub:
    return _TROUPES[provider].make_stub(part)


def upstream_of(provider: str, stub: Any, part: Part, **more: Any) -> dict[str, Any]:
    """One entry of `upstreams` that leads to this stub."""
    options: Mapping[str, Callable[[], dict[str, Any]]] = {
        "openai": lambda: {"model": "upstream-model", "base_url": stub.url, "api_key": KEY},
        "anthropic": lambda: {"model": "claude-test", "base_url": stub.url, "api_key": KEY},
        "ollama": lambda: {
            "model": "gemma3:4b",
            "base_url": stub.url,
            "headers": {"authorization": f"Bearer {KEY}"},
        },
        "bedrock": lambda: {
            "model": stub.model,
            "base_url": stub.url,
            "region": bedrock.REGION,
            "access_key_id": bedrock.KEY_ID,
            "secret_access_key": KEY,
        },
        "simulated": lambda: {"latency_s": 0, "answers": {QUESTION: SAID}, **simulated.PARTS[part]},
    }
    return {"provider": provider, **options[provider](), **more}


def one_model(*upstreams: Mapping[str, Any], **model: Any) -> dict[str, Any]:
    """Settings with the model `m`, whose retries are quick."""
    return {"models": {"m": {"upstreams": [dict(one) for one in upstreams], "retry": QUICK, **model}}}


def openai_upstream(stub: OpenAIStub, **more: Any) -> dict[str, Any]:
    return upstream_of("openai", stub, Part.ANSWER, **more)


@contextlib.asynccontextmanager
async def openai_stub(*replies: Reply) -> AsyncIterator[OpenAIStub]:
    async with OpenAIStub(*replies) as stub:
        yield stub


# ---- The client ---------------------------------------------------------------------------------------


async def connected(house: House) -> Wire:
    return Wire(*await asyncio.open_connection("127.0.0.1", house.port))


def asking(path: str, *headers: str, stream: bool = False, **fields: Any) -> bytes:
    """The bytes of a request to one of the inference routes."""
    body = {**ASKED[path], **({"stream": True} if stream else {}), **fields}
    return post(json.dumps(body).encode(), path, "Content-Type: application/json", *headers)


async def sent(house: House, request: bytes) -> Answer:
    """The answer to these bytes, on a connection of their own."""
    wire = await connected(house)
    try:
        return await asyncio.wait_for(wire.ask(request), 20)
    finally:
        wire.writer.close()


async def ask(house: House, path: str = CHAT, *headers: str, stream: bool = False, **fields: Any) -> Answer:
    return await sent(house, asking(path, *headers, stream=stream, **fields))


async def look(house: House, path: str, *headers: str, method: str = "GET") -> Answer:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *headers, "", ""]
    return await sent(house, "\r\n".join(lines).encode())


def front_of(house: House) -> Front:
    front = house.serving.server._front
    assert front is not None
    return front


def interpose(house: House, look: Callable[[Exchange], None]) -> None:
    """Look at every request before it is served."""
    front = front_of(house)
    serve = front.serve

    def served(exchange: Exchange) -> Awaitable[None]:
        look(exchange)
        return serve(exchange)

    front.serve = served


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Come back as soon as it holds; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - many things are waited for, and few of them tell
            await asyncio.sleep(0.002)
