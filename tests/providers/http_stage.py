"""The stage for providers that are reached over HTTP: a scripted server, a real transport, ways to look at the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
from providers.stubs.scripted import Reply, ScriptedServer

from headgate.core.embeddings import EmbeddingRequest
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.ports.provider import Provider
from headgate.transport import Transport

KEY = "sk-secret-0123456789"
T = TypeVar("T")
Build = Callable[[str, Transport], Provider]
"""Makes the provider under test for a server's URL."""
Act = Callable[[Provider, ScriptedServer], Awaitable[T]]


def ask(content: Any = "Hi", **params: Any) -> Request:
    messages = params.pop("messages", [{"role": "user", "content": content}])
    return Request(id="r-1", model="public-name", messages=messages, params=params)


def vectors_for(*texts: str, **params: Any) -> EmbeddingRequest:
    return EmbeddingRequest(id="e-1", model="public-name", input=texts, params=params)


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

    def answer(self, reply: Reply, request: Request | None = None) -> Answer:
        async def act(provider: Provider, server: ScriptedServer) -> Answer:
            return await provider.complete(request or ask())

        return self.play(act, reply)

    def chunks(self, reply: Reply, request: Request | None = None) -> list[Chunk]:
        async def act(provider: Provider, server: ScriptedServer) -> list[Chunk]:
            return [chunk async for chunk in provider.stream(request or ask())]

        return self.play(act, reply)

    def sent(self, reply: Reply, request: Request) -> Any:
        """The body that reached the server."""

        async def act(provider: Provider, server: ScriptedServer) -> Any:
            await provider.complete(request)
            return server.requests[0].body

        return self.play(act, reply)

    def failure(self, reply: Reply, request: Request | None = None) -> Failure:
        with pytest.raises(ProviderFailure) as caught:
            self.answer(reply, request)
        return caught.value.failure

    def stream_failure(self, reply: Reply) -> tuple[str, Failure]:
        """The text that came before the failure, and the failure."""
        texts: list[str] = []

        async def act(provider: Provider, server: ScriptedServer) -> None:
            async for chunk in provider.stream(ask()):
                texts.append(chunk.text)  # noqa: PERF401 - what came before the failure must be kept

        with pytest.raises(ProviderFailure) as caught:
            self.play(act, reply)
        return "".join(texts), caught.value.failure

    def refused_unsent(self, request: Request) -> Failure:
        """The failure of a request that never reached the server."""

        async def act(provider: Provider, server: ScriptedServer) -> Failure:
            with pytest.raises(ProviderFailure) as caught:
                await provider.complete(request)
            assert not server.requests
            return caught.value.failure

        return self.play(act, Reply(status=500))

    def seconds_until_left(self, reply: Reply, *, streamed: bool) -> float:
        """How long after a cancellation (or after leaving a stream) the server sees the caller gone."""

        async def act(provider: Provider, server: ScriptedServer) -> float:
            loop = asyncio.get_running_loop()
            if streamed:
                chunks = provider.stream(ask())
                await anext(chunks)
                started = loop.time()
                await chunks.aclose()  # type: ignore[attr-defined] # the seam promises an iterator; ours are generators
            else:
                call = asyncio.ensure_future(provider.complete(ask()))
                await server.asked.wait()
                started = loop.time()
                call.cancel()
            await asyncio.wait_for(server.left.wait(), 5)
            return loop.time() - started

        return self.play(act, reply)
