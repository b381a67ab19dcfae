"""The sixteen faults of a provider (and one: a 429 tells its wait in three ways), with a healthy upstream and without.

Each is asked whole and streamed. The answer is whole and right, or an honest error, and it comes soon. A 200 that is
not the answer, or an end of a stream that is none, is the one thing that must never happen.
"""

import asyncio
import email.utils
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
from conftest import Figure
from contracts.provider_stage import SAID
from providers.stubs.openai import DONE, EVENTS, JSON, OpenAIStub, completion, error, events, stream, words
from providers.stubs.scripted import CUT, HANG, Reply
from server.http.front_stage import Answer, Play
from server.stage import opened
from server.upstreams import ask, one_model, openai_upstream

TIMEOUTS: Final = {"connect_s": 0.5, "first_token_s": 0.3, "idle_s": 0.3, "total_s": 2.0}
PROMPT_S: Final = 4.0
"""`total_s`, and what a busy machine adds. The quickest drip would take nine seconds."""
WHOLE: Final = completion()
STREAMED: Final = stream(events(*words()))
BEGINNING: Final = events(*words())[:2]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def good(*, streamed: bool) -> Reply:
    return STREAMED if streamed else WHOLE


@dataclass(frozen=True)
class Fault:
    """`whole` and `streamed` are what the provider does, for every request; None where it makes no sense."""

    whole: Reply | Handler | None = None
    streamed: Reply | Handler | None = None
    rejects: bool = False
    """The request itself is called wrong: no other upstream is asked."""
    after_content: bool = False
    """It breaks when the client has read a part already: nothing can be done but say so."""


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


def _drip(reply: Reply) -> Handler:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        kind = reply.headers["Content-Type"]
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(reply.body)}\r\n\r\n".encode()
        )
        for at in range(len(reply.body)):
            if writer.is_closing():
                return  # The gateway has left. uvloop does not take a write for that.
            writer.write(reply.body[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.02)

    return drip


def _throttled(**headers: str) -> Fault:
    reply = error(
        429,
        code="rate_limit_exceeded",
        kind="requests",
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )
    return Fault(reply, reply)


def _both(reply: Reply | Handler, *, rejects: bool = False) -> Fault:
    return Fault(reply, reply, rejects=rejects)


REFUSED: Final = "connection refused"
FAULTS: Final[Mapping[str, Fault]] = {
    "500": _both(error(500, kind="server_error")),
    "503": _both(error(503, kind="server_error")),
    "429 without Retry-After": _throttled(),
    "429, Retry-After in seconds": _throttled(Retry_After="1"),
    "429, Retry-After as a date": _throttled(
        Retry_After=email.utils.formatdate(time.time() + 3600, usegmt=True)
    ),
    "429, long Retry-After": _throttled(Retry_After="86400"),
    "401": _both(error(401, code="invalid_api_key")),
    "400": _both(error(400, code="context_length_exceeded"), rejects=True),
    REFUSED: _both(_reset),
    "reset before headers": _both(_reset),
    "reset mid-stream": Fault(None, stream(BEGINNING, CUT), after_content=True),
    "stall before first token": _both(Reply(silent=True)),
    "stall mid-stream": Fault(None, stream(BEGINNING, HANG), after_content=True),
    "truncated JSON": Fault(Reply(WHOLE.body[:-40], headers=JSON), Reply(STREAMED.body[:60], headers=EVENTS)),
    "blank answer": Fault(completion({"content": ""}), stream([*events(usage=False)])),
    "wrong content type": _both(
        Reply(b"<html><h1>Log in</h1></html>", headers={"Content-Type": "text/html"})
    ),
    "slow drip": Fault(_drip(WHOLE), _drip(STREAMED)),
}


@asynccontextmanager
async def playing(behaviour: Reply | Handler, *, refused: bool) -> AsyncIterator[str]:
    """The address of a provider that behaves so."""
    if isinstance(behaviour, Reply):
        async with OpenAIStub(behaviour) as stub:
            yield stub.url
        return
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # The gateway has left, or the test ends.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    if refused:
        server.close()
        await server.wait_closed()
    try:
        yield url
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Verdict:
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.what}, {self.seconds * 1000:.0f} ms"


async def judged(behaviour: Reply | Handler, name: str, *, streamed: bool, fallback: bool) -> Verdict:
    """Ask once, and see what the client has in the end."""
    async with (
        playing(behaviour, refused=name == REFUSED) as url,
        OpenAIStub(good(streamed=streamed)) as healthy,
    ):
        first = {"provider": "openai", "model": "sick", "base_url": url, "api_key": "k"}
        upstreams = [first, openai_upstream(healthy)] if fallback else [first]
        async with opened(one_model(*upstreams, timeouts=TIMEOUTS)) as house:
            started = time.monotonic()
            answer = await ask(house, stream=streamed)
            verdict = Verdict(_read(answer, streamed=streamed, healthy=healthy), time.monotonic() - started)
            assert house.all_free
            return verdict


def _read(answer: Answer, *, streamed: bool, healthy: OpenAIStub) -> str:
    assert b"127.0.0.1" not in answer.body, "no caller reads where the upstream is"
    if answer.status != 200:
        told = json.loads(answer.body)["error"]
        assert told["message"]
        return f"{answer.status} {told['code']}"
    if not streamed:
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == SAID
    elif b"event: error" in answer.body:
        assert DONE not in answer.body
        assert json.loads(answer.body.split(b"event: error\ndata: ")[1])["error"]["code"]
        return "error event, no [DONE]"
    else:
        assert answer.body == STREAMED.body
    return "served by fallback" if healthy.calls else "served"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_survived_or_told(play: Play, figure: Figure, name: str) -> None:
    fault = FAULTS[name]
    told: list[str] = []

    async def scene() -> None:
        for streamed, behaviour in ((False, fault.whole), (True, fault.streamed)):
            if behaviour is None:
                continue
            way = "streamed" if streamed else "whole"
            with_fallback = await judged(behaviour, name, streamed=streamed, fallback=True)
            alone = await judged(behaviour, name, streamed=streamed, fallback=False)
            assert max(with_fallback.seconds, alone.seconds) < PROMPT_S
            assert not alone.what.startswith("served"), alone
            if fault.after_content:
                assert with_fallback.what == alone.what == "error event, no [DONE]"
            elif fault.rejects:
                assert with_fallback.what == alone.what == "400 invalid_request"
            else:
                assert with_fallback.what == "served by fallback", with_fallback
            told.append(f"{way}: {with_fallback} (alone: {alone})")

    play(scene)
    figure(f"fault: {name}", " · ".join(told))


@pytest.mark.parametrize(
    "name",
    ["500", "503", "429 without Retry-After", "reset before headers", "truncated JSON", "blank answer"],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_fault_that_passes_is_survived_by_a_retry(play: Play, name: str, streamed: bool) -> None:
    fault = FAULTS[name]
    behaviour = fault.streamed if streamed else fault.whole

    async def scene() -> None:
        replies = [behaviour] if isinstance(behaviour, Reply) else [Reply(ending=CUT)]
        async with (
            OpenAIStub(*replies, good(streamed=streamed)) as stub,
            opened(one_model(openai_upstream(stub), timeouts=TIMEOUTS)) as house,
        ):
            answer = await ask(house, stream=streamed)
            assert answer.status == 200
            assert answer.headers["x-headgate-attempts"] == "2"
            assert answer.body == good(streamed=streamed).body

    play(scene)
