"""Streams through the gateway: the upstream's bytes and nothing else, comments while it is slow, an honest end."""

import asyncio
import contextlib
import json
from typing import Any, Final

import openai
import pytest
from contracts.provider_stage import WORDS, Part
from openai import AsyncOpenAI
from providers.stubs.openai import DONE, EVENTS, USAGE, OpenAIStub, error, event, events, stream, words
from providers.stubs.scripted import CUT, HANG, Reply
from server.http.front_stage import Play, post
from server.stage import House, opened
from server.upstreams import (
    ASKED,
    CHAT,
    COMPLETIONS,
    PROVIDERS,
    ask,
    asking,
    can,
    connected,
    one_model,
    openai_upstream,
    sent,
    stub_of,
    upstream_of,
)

from headgate.core.events import Responded
from headgate.server.http import HttpLimits
from headgate.server.inference import stream as delivery

PIECES: Final = events(*words())
HEARTBEAT: Final = b": still waiting\n\n"
ODD: Final = b"".join(
    [
        b": a comment of the upstream's own\n\n",
        b"retry: 3000\r\n\r\n",
        event({"role": "assistant", "content": ""}),
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\u00e4\\ud83d\\ude00"}}], "x_unknown": [1,  2]}\r\n\r\n',
        b'id: 7\nevent: message\ndata:{"choices":[{"index":0,"delta":{"content":"no space"}}]}\n\n',
        'data: {"choices": [{"index": 0, "delta": {"content": "äöü 漢字 😀"}}]}\n\n'.encode(),
        event({}, finish_reason="stop"),
        event(choices=[], usage=USAGE),
        b"data: [DONE]\n\n",
    ]
)


def responded(house: House) -> Responded:
    [ended] = [one for one in house.events if isinstance(one, Responded)]
    return ended


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", [(), ("Idempotency-Key: k",)], ids=["plain", "keyed"])
def test_bytes_out_are_bytes_in(play: Play, path: str, piece_bytes: int, key: tuple[str, ...]) -> None:
    """Comments, unknown fields, odd spaces and line ends, characters cut in the middle: nothing is touched."""

    async def scene() -> None:
        async with (
            OpenAIStub(Reply(ODD, headers=EVENTS, piece_bytes=piece_bytes)) as stub,
            opened(one_model(openai_upstream(stub))) as house,
        ):
            answer = await ask(house, path, *key, stream=True)
            assert answer.body == ODD
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["cache-control"] == "no-cache"
            usage = responded(house).usage
            assert usage is not None
            assert (usage.input_tokens, usage.output_tokens) == (12, 4)
            assert not usage.estimated
            assert house.all_free

    play(scene)


def test_the_body_goes_up_as_it_came(play: Play) -> None:
    """Unknown fields, the order of things and the way numbers are written belong to the client and the provider."""

    async def scene() -> None:
        async with OpenAIStub(stream(PIECES)) as stub, opened(one_model(openai_upstream(stub))) as house:
            fields: dict[str, Any] = {"x_unknown": {"b": 1.50, "a": [None, "ä"]}, "stream_options": {}}
            await ask(house, CHAT, stream=True, **fields)
            body = stub.requests[0].body
            assert body["model"] == "upstream-model"
            assert body["x_unknown"] == fields["x_unknown"]
            assert body["stream"] is True
            assert list(body["x_unknown"]) == ["b", "a"]

    play(scene)


def test_usage_that_nobody_told_is_estimated_and_marked_so(play: Play) -> None:
    async def scene() -> None:
        async with (
            OpenAIStub(stream(events(*words(), usage=False))) as stub,
            opened(one_model(openai_upstream(stub))) as house,
        ):
            assert (await ask(house, stream=True)).body.endswith(DONE)
            usage = responded(house).usage
            assert usage is not None
            assert usage.estimated
            assert usage.output_tokens > 0

    play(scene)


@pytest.mark.parametrize("wish", [None, {}, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize("indent", [None, 2], ids=["compact", "pretty"])
def test_a_translated_stream_tells_usage_when_asked(play: Play, wish: Any, indent: int | None) -> None:
    """However the client writes its JSON."""

    async def scene() -> None:
        async with (
            stub_of("ollama", Part.STREAM) as stub,
            opened(one_model(upstream_of("ollama", stub, Part.STREAM))) as house,
        ):
            body = {**ASKED[CHAT], "stream": True, "stream_options": wish}
            answer = await sent(house, post(json.dumps(body, indent=indent).encode(), CHAT))
            assert answer.status == 200
            assert (b'"usage"' in answer.body) == bool(wish and wish["include_usage"])

    play(scene)


# ---- Heartbeats -------------------------------------------------------------------------------------------------


def test_comments_come_after_the_grant_and_only_then(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in the queue may still be refused with a status, so nothing is sent to it."""
    monkeypatch.setattr(delivery, "HEARTBEAT_S", 0.02)

    async def scene() -> None:
        async with (
            stub_of("openai", Part.SILENT) as stub,
            opened(one_model(upstream_of("openai", stub, Part.SILENT, slots=1))) as house,
        ):
            holder, waiter = await connected(house), await connected(house)
            await holder.send(asking(CHAT, stream=True))
            async with asyncio.timeout(2):
                status, headers = await holder.head()
                assert status == 200
                assert headers["x-headgate-attempts"] == "1"
                assert "x-headgate-upstream" not in headers
                beats = holder.chunks()
                assert [await anext(beats) for _ in range(3)] == [HEARTBEAT] * 3
            await waiter.send(asking(CHAT, "X-Headgate-Timeout: 0.2", stream=True))
            answer = await asyncio.wait_for(waiter.answer(), 2)
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            holder.reset()
            waiter.writer.close()

    play(scene)


@pytest.mark.parametrize("key", [(), ("Idempotency-Key: k",)], ids=["plain", "keyed"])
def test_after_comments_the_stream_is_whole(
    play: Play, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    """A slow first token, a retry and a fallback behind them: the client reads comments, then one clean stream."""
    monkeypatch.setattr(delivery, "HEARTBEAT_S", 0.02)

    async def scene() -> None:
        async with OpenAIStub(Reply(silent=True)) as slow, OpenAIStub(stream(PIECES)) as healthy:
            upstreams = [openai_upstream(slow, model="slow"), openai_upstream(healthy)]
            async with opened(one_model(*upstreams, timeouts={"first_token_s": 0.2})) as house:
                answer = await ask(house, CHAT, *key, stream=True)
                assert answer.body.startswith(HEARTBEAT)
                assert answer.body.replace(HEARTBEAT, b"") == b"".join(PIECES)
                again = await ask(house, CHAT, *key, stream=True)
                if key:
                    assert again.body == b"".join(PIECES)
                    assert again.headers["idempotent-replayed"] == "true"

    play(scene)


def test_a_failure_after_comments_is_told_inside(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is out; the official client raises all the same."""
    monkeypatch.setattr(delivery, "HEARTBEAT_S", 0.02)

    async def scene() -> None:
        async with (
            OpenAIStub(Reply(silent=True)) as slow,
            opened(one_model(openai_upstream(slow), timeouts={"first_token_s": 0.1})) as house,
        ):
            answer = await ask(house, stream=True)
            assert answer.status == 200
            assert answer.body.startswith(HEARTBEAT)
            assert DONE not in answer.body
            assert b'"code":"upstream_unavailable"' in answer.body
            async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="k") as client:
                asked = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "?"}], stream=True
                )
                with pytest.raises(openai.APIError):
                    await anext(asked)

    play(scene)


# ---- Ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "part"),
    [
        pytest.param(provider, part, id=f"{provider}-{part.name.lower()}")
        for provider in PROVIDERS
        for part in (Part.CUT_STREAM, Part.SHORT_STREAM, Part.FAILING_STREAM, Part.STALLING_STREAM)
        if can(provider, part)
    ],
)
def test_a_stream_that_breaks_says_so(play: Play, provider: str, part: Part) -> None:
    """An `error` event and no [DONE], for every provider and every way to break."""

    async def scene() -> None:
        async with stub_of(provider, part) as stub:
            settings = one_model(upstream_of(provider, stub, part), timeouts={"idle_s": 0.2})
            async with opened(settings) as house:
                answer = await ask(house, stream=True)
                assert answer.status == 200
                assert b"[DONE]" not in answer.body
                [told] = answer.body.split(b"event: error\ndata: ")[1:]
                assert json.loads(told)["error"]["code"] == "upstream_unavailable"
                assert told.endswith(b"\n\n")
                assert responded(house).error is not None
                assert house.all_free

    play(scene)


def test_a_deadline_in_mid_stream_is_told(play: Play) -> None:
    """As the caller's own, each time: uvloop's timers ring up to a millisecond early, and no upstream is to blame for that."""

    async def scene() -> None:
        async with (
            OpenAIStub(stream(PIECES[:2], HANG)) as stub,
            opened(one_model(openai_upstream(stub, slots=20))) as house,
        ):
            answers = await asyncio.gather(
                *(
                    ask(house, CHAT, f"X-Headgate-Timeout: 0.5{number:02d}7", stream=True)
                    for number in range(20)
                )
            )
            for answer in answers:
                assert answer.status == 200
                assert b'"code":"deadline_exceeded"' in answer.body
                assert b"[DONE]" not in answer.body
            await asyncio.wait_for(stub.left.wait(), 1)
            assert house.all_free

    play(scene)


def test_the_official_client_raises_on_a_cut_stream(play: Play) -> None:
    async def scene() -> None:
        async with (
            OpenAIStub(stream(PIECES[:3], CUT)) as stub,
            opened(one_model(openai_upstream(stub))) as house,
            AsyncOpenAI(base_url=f"{house.url}/v1", api_key="k") as client,
        ):
            asked = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "?"}], stream=True
            )
            said = [await anext(asked) for _ in range(3)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == "".join(WORDS[:2])
            with pytest.raises(openai.APIError) as caught:
                await anext(asked)
            assert "stream broke" in caught.value.message

    play(scene)


def test_a_stream_cut_by_draining_ends_honestly(play: Play) -> None:
    """The process goes, the stream does not end in time: an error event or a visible cut, never a proper end."""

    async def scene() -> None:
        async with (
            OpenAIStub(stream(PIECES[:3], HANG)) as stub,
            opened(one_model(openai_upstream(stub))) as house,
        ):
            wire = await connected(house)
            await wire.send(asking(CHAT, stream=True))
            assert (await wire.head())[0] == 200
            await house.serving.stop(0.2)
            rest = await asyncio.wait_for(wire.rest(), 5)
            assert b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n") or b"event: error" in rest
            assert house.all_free
            wire.writer.close()

    play(scene)


def test_a_provider_that_breaks_in_mid_stream_is_told_too(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception nobody foresaw, after the first byte."""

    async def scene() -> None:
        async with OpenAIStub(stream(PIECES)) as stub, opened(one_model(openai_upstream(stub))) as house:
            provider: Any = house.gateway.routes.find("m").upstreams[0].provider

            async def broken(request: object) -> Any:
                yield b"".join(PIECES[:2])
                raise ZeroDivisionError("nobody foresaw this")

            monkeypatch.setattr(provider, "stream", broken)
            answer = await ask(house, stream=True)
            assert answer.status == 200
            assert b"event: error" in answer.body
            assert DONE not in answer.body
            assert b"foresaw" not in answer.body
            assert house.all_free
            assert "ZeroDivisionError" in caplog.text
            assert "foresaw this" not in caplog.text.replace('ZeroDivisionError("nobody foresaw this")', "")
            caplog.clear()

    play(scene)


def test_an_error_before_content_is_a_status(play: Play) -> None:
    """Inside a 200 as well: some servers open a stream, and then say that they cannot."""

    async def scene() -> None:
        inside = b'data: {"error": {"message": "no", "type": "invalid_request_error", "code": null}}\n\n'
        for reply in (error(400), Reply(inside, headers=EVENTS), Reply(inside + DONE, headers=EVENTS)):
            async with OpenAIStub(reply) as stub, opened(one_model(openai_upstream(stub))) as house:
                answer = await ask(house, stream=True)
                assert (answer.status, answer.code) == (400, "invalid_request")

    play(scene)


# ---- Clients that do not read ------------------------------------------------------------------------------------------


class Fountain:
    """An upstream that streams as fast as it is read, without an end, and knows how much it has got rid of."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        piece = event({"content": "x" * 10_000})
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                self.sent_bytes += len(piece)
        self.left.set()
        writer.close()


def test_a_client_that_does_not_read_holds_back_its_upstream_and_is_cut_off(play: Play) -> None:
    """Nothing piles up in the gateway; after a while the client has to go, and everything it held is free."""

    async def scene() -> None:
        fountain = Fountain()
        server = await asyncio.start_server(fountain.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        upstream = {"provider": "openai", "model": "endless", "base_url": url, "api_key": "k"}
        limits = HttpLimits(write_timeout_s=1.0)
        async with opened(one_model(upstream), limits=limits) as house:
            wire = await connected(house)
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(asking(CHAT, stream=True))
            await asyncio.sleep(0.5)
            before = fountain.sent_bytes
            await asyncio.sleep(0.3)
            assert fountain.sent_bytes == before
            assert before < 20_000_000  # Buffers of the kernel on both connections, and little of ours.
            await asyncio.wait_for(fountain.left.wait(), 5)
            assert house.all_free
            wire.reset()
        server.close()
        await server.wait_closed()

    play(scene)
