"""What the tests of the Bedrock provider share: a provider in front of a stub, and ways to ask it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from providers.asking import a_call, chunks_of
from providers.stubs.bedrock import (
    KEY_ID,
    REGION,
    SECRET,
    TOKEN,
    BedrockStub,
    Reply,
    Seen,
    said,
)

from headgate.core.answer import Answer, Chunk
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.timeouts import Timeouts
from headgate.providers.bedrock import BedrockProvider, read_options
from headgate.transport import Transport

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
KEYS = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "session_token": TOKEN}
HELLO = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def stage(
    *replies: Reply,
    model: str = MODEL,
    keys: Mapping[str, str] = KEYS,
    timeouts: Timeouts | None = None,
    **options: Any,
) -> AsyncIterator[tuple[BedrockStub, BedrockProvider]]:
    transport = Transport()
    async with BedrockStub(*replies) as stub:
        given = {"region": REGION, "base_url": stub.url, **keys, **options}
        provider = BedrockProvider(
            read_options(given, env={}), model=model, transport=transport, timeouts=timeouts or Timeouts()
        )
        try:
            yield stub, provider
        finally:
            await provider.aclose()
            await transport.aclose()


def ask(messages: Sequence[Mapping[str, Any]] = HELLO, **fields: Any) -> Call:
    return a_call(messages=messages, **fields)


def complete(reply: Reply, call: Call | None = None, **options: Any) -> Answer:
    async def scene() -> Answer:
        async with stage(reply, **options) as (_, provider):
            return await provider.send(call or ask())

    return asyncio.run(scene())


def sent(messages: Sequence[Mapping[str, Any]] = HELLO, **params: Any) -> Any:
    """The body that reaches Bedrock, which its own model of the service has found right."""
    return request_seen(ask(messages, **params)).body


def request_seen(call: Call, **options: Any) -> Seen:
    async def scene() -> Seen:
        async with stage(said({"text": "Hi"}), **options) as (stub, provider):
            try:
                await provider.send(call)
            finally:
                assert stub.problems == []
            return stub.seen[0]

    return asyncio.run(scene())


def refused(messages: Sequence[Mapping[str, Any]] = HELLO, **params: Any) -> Failure:
    """The failure of a request that must not reach Bedrock."""

    async def scene() -> Failure:
        async with stage() as (stub, provider):
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask(messages, **params))
            assert stub.seen == []
            return caught.value.failure

    return asyncio.run(scene())


def failed(reply: Reply, **options: Any) -> Failure:
    async def scene() -> Failure:
        async with stage(reply, **options) as (stub, provider):
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            assert len(stub.seen) == 1
            return caught.value.failure

    return asyncio.run(scene())


def streamed(reply: Reply, call: Call | None = None, **options: Any) -> tuple[list[Chunk], Failure | None]:
    """What came, and what ended it if it was no proper end."""

    async def scene() -> tuple[list[Chunk], Failure | None]:
        chunks: list[Chunk] = []
        async with stage(reply, **options) as (_, provider):
            try:
                async for chunk in chunks_of(provider, call or ask(stream=True)):
                    chunks.append(chunk)  # noqa: PERF401 - what came before the end is the point
            except ProviderFailure as error:
                return chunks, error.failure
        return chunks, None

    return asyncio.run(scene())
