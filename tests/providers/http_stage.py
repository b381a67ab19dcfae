"""The stage for providers that are reached over HTTP: a scripted server, a real transport, ways to look at the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from providers.asking import a_call, an_embedding_call, chunks_of
from providers.stubs.scripted import Reply, ScriptedServer

from headgate.core.answer import Answer, Chunk
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.ports.provider import Provider
from headgate.transport import Transport

KEY = "sk-secret-0123456789"
T = TypeVar("T")
Build = Callable[[str, Transport], Provider]
"""Makes the provider under test for a server's URL."""
Act = Callable[[Provider, ScriptedServer], Awaitable[T]]


def ask(content: Any = "Hi", **params: Any) -> Call:
    return a_call(content, **params)


def vectors_for(*texts: str, **params: Any) -> Call:
    return an_embedding_call(*texts, **params)


def as_stream(call: Call) -> Call:
    """The same call as a stream that asks for its usage. Stays as it is when it is one already."""
    if call.stream:
        return call
    fields = {"stream_options": {"include_usage": True}, **call.fields}
    return msgspec.structs.replace(call, stream=True, fields=fields, read=None)


def play(build: Build, replies: Sequence[Reply], act: Act[T]) -> T:
    async def story() -> T:
        transport = Transport()
        async with ScriptedServer(*replies) as server:
            try:
                return await act(build(server.url, transport), server)
            finally:
                await transport.aclose()

    return asyncio.run(story())


class Stage:
    """Short ways to one call of the provider under test."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def play(self, act: Act[T], *replies: Reply) -> T:
        return play(self._build, replies, act)

    def answer(self, reply: Reply, call: Call | None = None) -> Answer:
        async def act(provider: Provider, server: ScriptedServer) -> Answer:
            return await provider.send(call or ask())

        return self.play(act, reply)

    def chunks(self, reply: Reply, call: Call | None = None) -> list[Chunk]:
        async def act(provider: Provider, server: ScriptedServer) -> list[Chunk]:
            return [chunk async for chunk in chunks_of(provider, as_stream(call or ask()))]

        return self.play(act, reply)

    def sent(self, reply: Reply, call: Call) -> Any:
        """The body that reached the server."""

        async def act(provider: Provider, server: ScriptedServer) -> Any:
            await provider.send(call)
            return server.requests[0].body

        return self.play(act, reply)

    def failure(self, reply: Reply, call: Call | None = None) -> Failure:
        with pytest.raises(ProviderFailure) as caught:
            self.answer(reply, call)
        return caught.value.failure

    def stream_failure(self, reply: Reply, call: Call | None = None) -> tuple[str, Failure]:
        """The text that came before the failure, and the failure."""
        texts: list[str] = []

        async def act(provider: Provider, server: ScriptedServer) -> None:
            async for chunk in chunks_of(provider, as_stream(call or ask())):
                texts.append(chunk.text)  # noqa: PERF401 - what came before the failure must be kept

        with pytest.raises(ProviderFailure) as caught:
            self.play(act, reply)
        return "".join(texts), caught.value.failure

    def refused_unsent(self, call: Call) -> Failure:
        """The failure of a request that never reached the server."""

        async def act(provider: Provider, server: ScriptedServer) -> Failure:
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(call)
            assert not server.requests
            return caught.value.failure

        return self.play(act, Reply(status=500))

    def seconds_until_left(self, reply: Reply, *, streamed: bool) -> float:
        """How long after a cancellation (or after a stream is closed) the server sees the connection end."""

        async def act(provider: Provider, server: ScriptedServer) -> float:
            loop = asyncio.get_running_loop()
            if streamed:
                pieces = provider.stream(as_stream(ask()))
                await anext(pieces)
                started = loop.time()
                await pieces.aclose()  # type: ignore[attr-defined] # the seam promises an iterator; ours are generators
            else:
                sending = asyncio.ensure_future(provider.send(ask()))
                await server.asked.wait()
                started = loop.time()
                sending.cancel()
            await asyncio.wait_for(server.left.wait(), 5)
            return loop.time() - started

        return self.play(act, reply)
