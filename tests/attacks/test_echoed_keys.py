"""An upstream that quotes the key it was sent: in errors, in answers, in streams, and split wherever it likes."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from contracts.provider_stage import KEY, Part
from providers.stubs import anthropic, bedrock, ollama, openai
from providers.stubs.scripted import CUT, Reply, ScriptedServer
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import CHAT, COMPLETIONS, EMBEDDINGS, ask, one_model, upstream_of

from headgate.core.errors import HeadgateError
from headgate.providers.exchange import KeylessPieces, Secrets

HELLO: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUOTE: Final = f"your key is {KEY}, and you are welcome"
STRUCK: Final = "your key is ***, and you are welcome"


class Quoting(ScriptedServer):
    """An upstream with this answer for every request."""

    model = "amazon.nova-lite-v1:0"


def _split(reply: Reply, piece_bytes: int) -> Reply:
    return Reply(reply.body, reply.status, reply.headers, reply.ending, piece_bytes)


WHOLE: Final[Mapping[str, Callable[[], Reply]]] = {
    "openai": lambda: openai.completion({"content": QUOTE}),
    "anthropic": lambda: anthropic.said({"type": "text", "text": QUOTE}),
    "ollama": lambda: ollama.lines(ollama.line(QUOTE), ollama.last()),
}
STREAMED: Final[Mapping[str, Callable[[], Reply]]] = {
    "openai": lambda: openai.stream(openai.events({"content": QUOTE})),
    "anthropic": lambda: anthropic.events(
        anthropic.START, *anthropic.text_block(0, QUOTE), *anthropic.ending()
    ),
    "ollama": lambda: ollama.lines(ollama.line(QUOTE), ollama.last()),
}
_ERROR: Final = {"error": {"message": QUOTE, "type": "server_error", "code": None}}
BROKEN: Final[Mapping[str, Callable[[], bytes]]] = {
    "openai": lambda: (
        b"".join(openai.events(*openai.words(1))[:2]) + b"data: %b\n\n" % json.dumps(_ERROR).encode()
    ),
    "anthropic": lambda: (
        anthropic.events(
            anthropic.START,
            *anthropic.text_block(0, "well")[:2],
            {"type": "error", "error": {"type": "api_error", "message": QUOTE}},
        ).body
    ),
    "ollama": lambda: ollama.lines(ollama.line("well"), {"error": QUOTE}).body,
}


@pytest.mark.parametrize("piece_bytes", [1 << 20, 7, 1])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("provider", WHOLE)
def test_a_200_is_passed_on_without_the_key(
    play: Play, provider: str, stream: bool, piece_bytes: int
) -> None:
    reply = (STREAMED if stream else WHOLE)[provider]()

    async def scene() -> None:
        async with (
            Quoting(_split(reply, piece_bytes)) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            answer = await ask(house, stream=stream)
            assert answer.status == 200, answer.body
            assert STRUCK.encode() in answer.body
            assert KEY.encode() not in answer.body
            said = ""
            if stream:
                async for chunk in house.gateway.stream(**HELLO):
                    said += chunk.text
            else:
                said = (await house.gateway.complete(**HELLO)).content or ""
            assert said == STRUCK
            assert KEY in json.dumps(dict(stub.requests[0].headers)), "it was sent"

    play(scene)


@pytest.mark.parametrize("piece_bytes", [1 << 20, 7, 1])
@pytest.mark.parametrize("provider", BROKEN)
def test_an_error_in_a_stream_is_told_without_the_key_wherever_it_is_split(
    play: Play, caplog: pytest.LogCaptureFixture, provider: str, piece_bytes: int
) -> None:
    """Also in our own words: that the stream broke, and why."""
    caplog.set_level("DEBUG")
    kind = ollama.NDJSON if provider == "ollama" else openai.EVENTS

    async def scene() -> None:
        reply = Reply(BROKEN[provider](), headers=kind, piece_bytes=piece_bytes)
        async with (
            Quoting(reply) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            answer = await ask(house, stream=True)
            assert b"event: error" in answer.body
            assert KEY.encode() not in answer.body
            with pytest.raises(HeadgateError) as caught:
                async for _ in house.gateway.stream(**HELLO):
                    pass
            assert KEY not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
            assert "***" in str(caught.value)
        assert KEY not in caplog.text
        caplog.clear()

    play(scene)


@pytest.mark.parametrize("at", range(1, len(KEY), 5))
def test_a_stream_that_is_cut_within_the_key_shows_no_more_than_its_beginning(play: Play, at: int) -> None:
    async def scene() -> None:
        whole = b"".join(openai.events({"content": "well"}, {"content": QUOTE}))
        body = whole[: whole.index(KEY.encode()) + at]
        async with (
            Quoting(Reply(body, headers=openai.EVENTS, ending=CUT)) as stub,
            opened(one_model(upstream_of("openai", stub, Part.ANSWER))) as house,
        ):
            answer = await ask(house, stream=True)
            assert b"event: error" in answer.body
            assert KEY[:4].encode() not in answer.body

    play(scene)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("padding", [0, 460, 480, 490, 498])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_an_error_answer_holds_no_part_of_the_key_at_its_cut(
    play: Play, provider: str, padding: int, kind: str
) -> None:
    """Long texts are cut: half a key at the cut is no key to look for, and more than nothing to whoever reads it."""
    text = "x" * padding + KEY
    body = (
        text
        if kind == "text/plain"
        else json.dumps({"error": {"message": text, "type": "t"}, "type": "error"})
    )

    async def scene() -> None:
        async with (
            Quoting(Reply(body.encode(), 400, {"Content-Type": kind})) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            for stream in (False, True):
                answer = await ask(house, stream=stream)
                assert answer.status == 400
                assert KEY[:6].encode() not in answer.body

    play(scene)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_bodies_that_pass_through_are_otherwise_left_as_they_are(play: Play, path: str) -> None:
    """A short key, and a header or parameter that is none, may be words of any answer."""
    reply = {
        CHAT: openai.completion({"content": "ollama 2024-10-21 organization-of-mine sk-contract"}),
        COMPLETIONS: openai.text_completion("ollama 2024-10-21 organization-of-mine sk-contract"),
        EMBEDDINGS: openai.embeddings(),
    }[path]

    async def scene() -> None:
        async with Quoting(reply) as stub:
            upstream = upstream_of("openai", stub, Part.ANSWER)
            changed = {
                **upstream,
                "api_key": "ollama",
                "query": {"api-version": "2024-10-21"},
                "headers": {"openai-organization": "organization-of-mine"},
            }
            async with opened(one_model(changed)) as house:
                assert (await ask(house, path)).body == reply.body

    play(scene)


def test_bedrocks_streams_are_told_without_the_session_token(play: Play) -> None:
    token = "FwoGZXIvYXdzEXAMPLETOKEN//////////wEaDK=="
    events = bedrock.events(*bedrock.text_events(f"your token is {token}."))
    failing = bedrock.events(
        *bedrock.text_events("well")[:2], bedrock.exception("internalServerException", token)
    )

    async def scene() -> None:
        for told in (events, failing):
            async with Quoting(Reply(told.body, headers=told.headers)) as stub:
                upstream = upstream_of("bedrock", stub, Part.ANSWER, session_token=token)
                async with opened(one_model(upstream)) as house:
                    answer = await ask(house, stream=True)
                    assert token.encode() not in answer.body
                    assert (b"your token is ***." in answer.body) is (told is events)
                    said = ""
                    try:
                        async for chunk in house.gateway.stream(**HELLO):
                            said += chunk.text
                    except HeadgateError as error:
                        said += str(error)
                    assert token not in said
                    assert "***" in said

    play(scene)


def test_nothing_waits_but_what_may_be_the_beginning_of_a_key() -> None:
    keyless = KeylessPieces(Secrets(KEY, "another-key-of-ours"))
    assert keyless.feed(b'data: {"a": 1}\n\n') == b'data: {"a": 1}\n\n'
    assert keyless.feed(b"words of an ans") == b"words of an an"
    assert keyless.feed(b"wer") == b"swer"
    assert keyless.feed(b"sk-contract") == b""
    assert keyless.feed(b"s are long") == b"sk-contracts are long"
    assert keyless.feed(b"ssk-contract-0123456789-very-secre") == b"s"
    assert keyless.feed(b"t and another-key-of") == b"*** and "
    assert keyless.end() == b"another-key-of"
    assert keyless.end() == b""


def test_every_way_to_split_a_text_leaves_the_same() -> None:
    text = f"ssk-{KEY}{KEY}sk-contract-{KEY[:-1]} {KEY}".encode()
    wanted = text.replace(KEY.encode(), b"***")
    for size in range(1, len(text) + 1):
        keyless = KeylessPieces(Secrets(KEY))
        told = b"".join(keyless.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert told + keyless.end() == wanted
