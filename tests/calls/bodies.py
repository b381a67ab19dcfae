"""Requests as they come over HTTP: bodies whose fields are still JSON, answered with bytes."""

import dataclasses
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
from loops import World
from stage import Stage

from headgate import wiring
from headgate.calls.call import RoutedCall
from headgate.calls.keyed_stream import KeyedStream
from headgate.calls.streams import CallStream
from headgate.core.answer import Answer, Reply, Usage
from headgate.core.call import Call, Format
from headgate.core.ports.provider import Provider
from headgate.gateway import Gateway

CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "Summarise this."}]}
WORD: Final = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
COUNT: Final = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}\n\n'
END: Final = b"data: [DONE]\n\n"
_numbers: Final = count()


def a_call(
    gateway: Gateway,
    wanted: Format = Format.CHAT,
    *,
    stream: bool = False,
    deadline_s: float | None = None,
    waits: bool = True,
    **fields: Any,
) -> RoutedCall:
    """A call to the model `m`; fields are values here and JSON there."""
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in (fields or CHAT).items()}
    return gateway.requests.begin(
        f"r{next(_numbers)}",
        "m",
        raw,
        wanted=wanted,
        size_bytes=100,
        stream=stream,
        deadline_s=deadline_s,
        waits=waits,
    )


async def answer(gateway: Gateway, wanted: Format = Format.CHAT, **given: Any) -> Reply:
    return await gateway.requests.answer(a_call(gateway, wanted, **given))


def a_stream(gateway: Gateway, wanted: Format = Format.CHAT, **given: Any) -> CallStream:
    return gateway.requests.stream(a_call(gateway, wanted, stream=True, **given))


async def answer_once(gateway: Gateway, key: str = "k", body: bytes = b"body") -> Reply:
    return await gateway.keyed.answer(a_call(gateway), key, body, scope=Format.CHAT)


async def stream_once(gateway: Gateway, key: str = "k", body: bytes = b"body") -> KeyedStream:
    return await gateway.keyed.stream(a_call(gateway, stream=True), key, body, scope=Format.CHAT)


async def bytes_of(stream: CallStream | KeyedStream) -> bytes:
    async with stream:
        return b"".join([piece async for piece in stream])


async def text_of(stream: CallStream | KeyedStream) -> str:
    """What a client makes of the events."""
    *events, end = (await bytes_of(stream)).decode().strip().split("\n\n")
    assert end == "data: [DONE]"
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    return "".join(body["choices"][0]["delta"].get("content", "") for body in bodies if body["choices"])


def keyed(world: World, folder: Path, **upstream: Any) -> Gateway:
    """A gateway with a store, for keys."""
    settings = wiring.read_settings(
        {
            "data_dir": str(folder),
            "jobs": {"lease_s": 3600},
            "models": {"m": {"upstreams": [{"provider": "simulated", "latency_s": 1.0, **upstream}]}},
        },
        env={},
    )
    return wiring.build(settings, clock=world.clock, chance=world.chance)


def calls(gateway: Gateway) -> int:
    """How many the simulated provider got."""
    made: int = gateway.routes.find("m").upstreams[0].provider.calls  # type: ignore[attr-defined]
    return made


def put(gateway: Gateway | Stage, provider: Provider, upstream: int = 0) -> None:
    """Give an upstream of `m` another provider; its route looks at it anew."""
    routes = gateway.routes if isinstance(gateway, Gateway) else gateway.gateway.routes
    route = routes.find("m")
    route.upstreams[upstream].provider = provider
    routes._routes["m"] = dataclasses.replace(route)


class Passing:
    """Takes every format and reads nothing. A stream is these pieces, a number among them is a pause in seconds."""

    reads = False

    def __init__(
        self, world: World, *pieces: bytes | float, formats: frozenset[Format] = frozenset(Format)
    ) -> None:
        self.formats = formats
        self.answer = Answer(body=b"as it came", usage=Usage(1, 1))
        self.seen: list[Call] = []
        self.closed = 0
        """Streams that are over, one way or another."""
        self._world = world
        self._pieces = pieces

    async def send(self, call: Call) -> Answer:
        self.seen.append(call)
        return self.answer

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        self.seen.append(call)
        try:
            for piece in self._pieces:
                if isinstance(piece, bytes):
                    yield piece
                else:
                    await self._world.clock.sleep(piece)
        finally:
            self.closed += 1

    async def aclose(self) -> None:
        """Nothing to close."""
