"""The stage for the OpenAI provider's tests: a stub that answers by a script, a provider in front of it, calls."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import pytest
from contracts.provider_stage import KEY, QUESTION, TIMEOUTS
from providers import asking
from providers.stubs.openai import OpenAIStub
from providers.stubs.scripted import Reply

from headgate.core.answer import Answer, Chunk
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.timeouts import Timeouts
from headgate.providers.openai import OpenAIOptions, OpenAIProvider
from headgate.transport import Transport

T = TypeVar("T")
MODEL = "upstream-model"


def on_stub(
    act: Callable[[OpenAIProvider, OpenAIStub], Awaitable[T]],
    *script: Reply,
    timeouts: Timeouts = TIMEOUTS,
    **options: Any,
) -> T:
    """Run `act` with a provider in front of a stub that plays the script."""

    async def run() -> T:
        transport = Transport()
        async with asyncio.timeout(15), OpenAIStub(*script) as stub:
            given = OpenAIOptions(**{"base_url": stub.url, "api_key": KEY, **options})
            provider = OpenAIProvider(given, model=MODEL, transport=transport, timeouts=timeouts)
            try:
                return await act(provider, stub)
            finally:
                await transport.aclose()

    return asyncio.run(run())


def failure_from(
    act: Callable[[OpenAIProvider, OpenAIStub], Awaitable[Any]], *script: Reply, **given: Any
) -> Failure:
    with pytest.raises(ProviderFailure) as caught:
        on_stub(act, *script, **given)
    return caught.value.failure


async def send(provider: OpenAIProvider, _: OpenAIStub) -> Answer:
    return await provider.send(asking.a_call(QUESTION))


async def chunks_of(provider: OpenAIProvider, call: Call | None = None) -> list[Chunk]:
    asked = call or asking.a_call(QUESTION, stream=True)
    return [chunk async for chunk in asking.chunks_of(provider, asked)]


async def streamed(provider: OpenAIProvider, _: OpenAIStub) -> list[Chunk]:
    return await chunks_of(provider)


def a_raw_call(
    fields: Mapping[str, Any] | bytes, *, shape: Format = Format.CHAT, stream: bool = False
) -> Call:
    """As it comes over HTTP: each field is still JSON."""
    raw = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    kept = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return Call(id="w1", format=shape, model="public", fields=kept, size_bytes=len(raw), stream=stream)
