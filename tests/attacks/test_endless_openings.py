"""Streams that go on for ever and say nothing: comments, roles, signs of life. All of it was kept in memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import pytest
from attacks.tenants import message_of
from contracts.provider_stage import Part
from providers.stubs import anthropic, bedrock, ollama, openai
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import ask, one_model, openai_stub, upstream_of

from headgate.core.errors import UpstreamUnavailable
from headgate.core.events import AttemptEnded

MIB: Final = 1024 * 1024
MOST_SENT_BYTES: Final = 8 * MIB
"""What an attempt reads, and what the sockets between hold."""
EVENTS: Final = "text/event-stream"
HEADS: Final = {
    "openai": EVENTS,
    "anthropic": EVENTS,
    "ollama": "application/x-ndjson",
    "bedrock": bedrock.EVENT_STREAM,
}
CHATTER: Final = {
    "openai comments": b": still thinking about it\n\n",
    "openai comments without an end": b": still thinking about it ",
    "openai roles": openai.event({"role": "assistant", "content": ""}),
    "openai usage": openai.event(choices=[], usage=openai.USAGE),
    "openai events of no shape": b'data: {"alive": true}\n\n',
    "anthropic comments": b": still thinking about it\n\n",
    "anthropic pings": b'event: ping\ndata: {"type": "ping"}\n\n',
    "ollama nothing said": json.dumps(ollama.line("")).encode() + b"\n",
    "ollama blank lines": b"\n",
    "bedrock beginnings": bedrock.event("messageStart", {"role": "assistant"}),
}
THOUGHTS: Final = {
    "openai": [openai.event({"reasoning_content": "hm " * 30})],
    "anthropic": [
        anthropic.events(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}
        ).body
    ],
    "ollama": [json.dumps(ollama.line("", message={"content": "", "thinking": "hm"})).encode() + b"\n"],
    "bedrock": [
        bedrock.event(
            "contentBlockDelta", {"delta": {"reasoningContent": {"text": "hm"}}, "contentBlockIndex": 0}
        )
    ],
}
ANSWERS: Final = {
    "openai": b"".join(openai.events(*openai.words())),
    "anthropic": anthropic.events(
        anthropic.START, *anthropic.text_block(0, "well"), *anthropic.ending()
    ).body,
    "ollama": ollama.lines(ollama.line("well"), ollama.last()).body,
    "bedrock": b"".join(bedrock.text_events("well")),
}


class Chatty:
    """An upstream that repeats the same bytes until the caller leaves, or as often as it is told to, and then ends."""

    model = "amazon.nova-lite-v1:0"

    def __init__(self, kind: str, said: bytes, times: int | None = None, ending: bytes = b"") -> None:
        self._kind = kind
        self._said = said * max(1, 65536 // len(said))
        self._pieces = None if times is None else -(-times * len(said) // len(self._said))
        self._ending = ending
        self._versioned = kind == EVENTS
        self.sent_bytes = 0
        self.calls = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Chatty"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n" % self._kind.encode())
            for _ in self._rounds():
                writer.write(self._said)
                await writer.drain()
                self.sent_bytes += len(self._said)
            writer.write(self._ending)
            await writer.drain()
        writer.close()

    def _rounds(self) -> Iterable[int]:
        return range(self._pieces) if self._pieces is not None else range(10**9)


def chatty_upstream(provider: str, stub: Chatty) -> dict[str, Any]:
    return upstream_of(provider, stub, Part.STREAM)


@pytest.mark.parametrize("what", CHATTER)
def test_a_stream_that_says_nothing_ends_after_a_mebibyte_and_another_upstream_answers(
    play: Play, what: str
) -> None:
    provider = what.partition(" ")[0]

    async def scene() -> None:
        chatty = Chatty(HEADS[provider], CHATTER[what])
        async with chatty.serving(), openai_stub(openai.stream(openai.events(*openai.words()))) as good:
            good_one = upstream_of("openai", good, Part.STREAM, model="good")
            async with opened(one_model(chatty_upstream(provider, chatty), good_one)) as house:
                answer = await ask(house, stream=True)
                failures = [event.failure for event in house.events if isinstance(event, AttemptEnded)]
        assert answer.status == 200
        assert b"[DONE]" in answer.body
        assert answer.headers["x-headgate-upstream"] == "openai/good"
        assert [failure.error for failure in failures if failure is not None] == [
            "transient bad_envelope"
        ] * chatty.calls
        assert chatty.sent_bytes <= chatty.calls * MOST_SENT_BYTES * (3 if "without an end" in what else 1)

    play(scene)


def test_it_is_retried_as_any_broken_envelope_and_then_told(play: Play) -> None:
    async def scene() -> None:
        chatty = Chatty(EVENTS, CHATTER["openai comments"])
        async with (
            chatty.serving(),
            opened(one_model(chatty_upstream("openai", chatty))) as house,
        ):
            answer = await ask(house, stream=True)
            assert answer.status == 502
            assert "transient bad_envelope after 2 attempts" in message_of(answer)
            assert chatty.calls == 2
            assert house.all_free

    play(scene)


@pytest.mark.parametrize("what", [name for name in CHATTER if "usage" not in name])
def test_the_library_reads_no_more_of_it(play: Play, what: str) -> None:
    provider = what.partition(" ")[0]

    async def scene() -> None:
        chatty = Chatty(HEADS[provider], CHATTER[what])
        async with chatty.serving(), opened(one_model(chatty_upstream(provider, chatty))) as house:
            stream = house.gateway.stream(model="m", messages=[{"role": "user", "content": "hello"}])
            with pytest.raises(UpstreamUnavailable) as caught:
                async with stream:
                    raise AssertionError("it has no content")
            assert caught.value.failure.code == "bad_envelope"
            if provider == "ollama":
                with pytest.raises(UpstreamUnavailable):
                    await house.gateway.complete(model="m", messages=[{"role": "user", "content": "hello"}])
            assert chatty.sent_bytes <= chatty.calls * MOST_SENT_BYTES * (
                3 if "without an end" in what else 1
            )

    play(scene)


@pytest.mark.parametrize("provider", THOUGHTS)
def test_a_model_that_thinks_for_long_before_it_answers_is_waited_for(play: Play, provider: str) -> None:
    """Two mebibytes of thoughts that a caller may not even see."""

    async def scene() -> None:
        thought = b"".join(THOUGHTS[provider])
        chatty = Chatty(HEADS[provider], thought, 2 * MIB // len(thought), ANSWERS[provider])
        async with chatty.serving(), opened(one_model(chatty_upstream(provider, chatty))) as house:
            answer = await ask(house, stream=True)
            assert answer.status == 200
            assert b"[DONE]" in answer.body
            assert chatty.calls == 1
            said = ""
            async for chunk in house.gateway.stream(
                model="m", messages=[{"role": "user", "content": "hello"}]
            ):
                said += chunk.text
            assert said

    play(scene)


def test_a_first_event_may_be_longer_than_that(play: Play) -> None:
    """A picture comes in one event."""

    async def scene() -> None:
        picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3 * MIB}}]
        whole = openai.events({"images": picture})
        async with (
            openai_stub(openai.stream(whole)) as stub,
            opened(one_model(upstream_of("openai", stub, Part.STREAM))) as house,
        ):
            answer = await ask(house, stream=True)
            assert answer.body == b"".join(whole)
            assert len(stub.requests) == 1

    play(scene)
