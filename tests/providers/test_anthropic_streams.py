"""Streamed answers: events in, chunks out, and what happens when the events stop."""

import json
from typing import Any

import pytest
from providers.anthropic_stage import STAGE, anthropic_stage
from providers.asking import a_call
from providers.http_stage import as_stream, ask
from providers.stubs.anthropic import (
    PING,
    START,
    THINKING_BLOCK,
    ending,
    error,
    error_body,
    events,
    said,
    text_block,
    thinking_block,
    tool_block,
)
from providers.stubs.scripted import CUT, HANG, Reply, ScriptedServer

from headgate.core.answer import Usage
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Provider
from headgate.core.timeouts import Timeouts

HELLO = (START, PING, *text_block(0, "Hel", "lo! ", "✓"))


def test_text_comes_piece_by_piece_and_the_last_chunks_say_why_and_how_much() -> None:
    *pieces, last, counted = STAGE.chunks(events(*HELLO, *ending()))

    assert [piece.text for piece in pieces] == ["Hel", "lo! ", "✓"]
    assert (last.finish_reason, last.has_content) == ("stop", False)
    assert (counted.usage, counted.has_content) == (Usage(1125, 15), False)


@pytest.mark.parametrize("piece_bytes", [1, 7, 64])
def test_the_packets_may_fall_anywhere(piece_bytes: int) -> None:
    whole = events(START, *thinking_block(0), *text_block(1, "Grüße ✓", "!"), *ending())
    cut_up = Reply(whole.body, headers=whole.headers, piece_bytes=piece_bytes)

    assert STAGE.chunks(cut_up) == STAGE.chunks(whole)
    assert "".join(chunk.text for chunk in STAGE.chunks(cut_up)) == "Grüße ✓!"


def test_tool_calls_are_counted_without_the_other_blocks() -> None:
    """A tool without arguments says nothing at Anthropic; OpenAI's readers need a JSON object."""
    chunks = STAGE.chunks(
        events(
            START,
            *text_block(0, "Let me see."),
            *tool_block(1, "toolu_1", "get_weather", "", '{"loc', 'ation": "Paris"}'),
            *tool_block(2, "toolu_2", "get_time", ""),
            *ending("tool_use"),
        )
    )

    assert [call for chunk in chunks for call in chunk.tool_calls] == [
        {
            "index": 0,
            "id": "toolu_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": '{"loc'}},
        {"index": 0, "function": {"arguments": 'ation": "Paris"}'}},
        {"index": 1, "id": "toolu_2", "type": "function", "function": {"name": "get_time", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks[-2].finish_reason == "tool_calls"


def test_thinking_comes_as_it_is_thought_and_is_no_content() -> None:
    """A client that waits for the next piece must not take a model that thinks for one that hangs."""
    chunks = STAGE.chunks(events(START, PING, *thinking_block(0), *ending()))

    assert [chunk.reasoning for chunk in chunks if chunk.reasoning] == ["Let me ", "see…"]
    assert not any(chunk.has_content for chunk in chunks)


def test_a_refusal_comes_with_the_last_chunk() -> None:
    details = {"type": "refusal", "category": None, "explanation": "Not this."}
    last = STAGE.chunks(events(*HELLO, *ending("refusal", stop_details=details)))[-2]

    assert (last.refusal, last.finish_reason) == ("Not this.", "content_filter")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", FailureKind.THROTTLED),
        ("rate_limit_error", FailureKind.THROTTLED),
        ("api_error", FailureKind.TRANSIENT),
        ("timeout_error", FailureKind.TRANSIENT),
        ("invalid_request_error", FailureKind.REJECTED),
        ("request_too_large", FailureKind.REJECTED),
        ("authentication_error", FailureKind.MISCONFIGURED),
        ("yet_unheard_of", FailureKind.TRANSIENT),
    ],
)
def test_an_error_in_the_middle_has_its_class(kind: str, expected: FailureKind) -> None:
    text, failure = STAGE.stream_failure(events(*HELLO, error_body(kind, "Overloaded")))

    assert (text, failure.kind, failure.code) == ("Hello! ✓", expected, kind)
    assert "Overloaded" in failure.message


def test_an_error_event_without_an_error_is_a_broken_envelope() -> None:
    _, failure = STAGE.stream_failure(events(START, {"type": "error"}))

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_a_stream_that_ends_without_its_end_is_cut() -> None:
    """Everything but `message_stop` came: nobody may take that for the whole answer."""
    text, failure = STAGE.stream_failure(events(*HELLO, *ending()[:-1]))

    assert (text, failure.kind, failure.code) == ("Hello! ✓", FailureKind.TRANSIENT, "stream_cut")


def test_a_connection_that_breaks_is_transient() -> None:
    text, failure = STAGE.stream_failure(events(*HELLO, ending=CUT))

    assert (text, failure.kind) == ("Hello! ✓", FailureKind.TRANSIENT)


def test_silence_in_the_middle_is_a_timeout() -> None:
    text, failure = anthropic_stage(Timeouts(idle_s=0.1)).stream_failure(events(*HELLO, ending=HANG))

    assert (text, failure.kind, failure.timed_out) == ("Hello! ✓", FailureKind.TRANSIENT, True)


def test_silence_at_the_start_is_a_timeout() -> None:
    _, failure = anthropic_stage(Timeouts(first_token_s=0.1)).stream_failure(Reply(silent=True))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, True)


def test_silence_after_the_end_harms_nobody() -> None:
    chunks = STAGE.chunks(events(*HELLO, *ending(), ending=HANG))

    assert chunks[-2].finish_reason == "stop"


def test_the_stream_is_written_as_openai_writes_it() -> None:
    """Byte by byte what a client gets: nothing for events that hold nothing, the usage with its details, the end."""

    async def act(provider: Provider, server: ScriptedServer) -> bytes:
        return b"".join([piece async for piece in provider.stream(as_stream(ask()))])

    reply = events(START, PING, *thinking_block(0), *text_block(1, "Hi"), *ending())
    *data, end, rest = STAGE.play(act, reply).split(b"\n\n")
    bodies = [json.loads(line.removeprefix(b"data: ")) for line in data]

    assert (end, rest) == (b"data: [DONE]", b"")
    assert [choice for body in bodies for choice in body["choices"]] == [
        {"index": 0, "delta": {"role": "assistant", "reasoning_content": "Let me "}, "finish_reason": None},
        {"index": 0, "delta": {"reasoning_content": "see…"}, "finish_reason": None},
        {"index": 0, "delta": {"thinking_blocks": [THINKING_BLOCK]}, "finish_reason": None},
        {"index": 0, "delta": {"content": "Hi"}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    assert bodies[-1]["usage"] == {
        "prompt_tokens": 1125,
        "completion_tokens": 15,
        "total_tokens": 1140,
        "prompt_tokens_details": {"cached_tokens": 1000},
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 100,
    }
    assert {(body["object"], body["model"]) for body in bodies} == {("chat.completion.chunk", "public")}


def test_usage_comes_to_clients_that_asked_for_it() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> bytes:
        return b"".join([piece async for piece in provider.stream(a_call(stream=True, stream_options=None))])

    assert b'"usage"' not in STAGE.play(act, events(*HELLO, *ending()))


@pytest.mark.parametrize("stream", [True, False])
def test_anthropic_is_asked_for_a_stream_where_the_client_wants_one(stream: bool) -> None:
    async def act(provider: Provider, server: ScriptedServer) -> Any:
        if stream:
            [_ async for _ in provider.stream(as_stream(ask()))]
        else:
            await provider.send(ask())
        return server.requests[0].body

    reply = events(*HELLO, *ending()) if stream else said({"type": "text", "text": "Hi"})
    assert STAGE.play(act, reply).get("stream", False) is stream


def test_a_stream_refused_with_a_status_gives_no_chunk() -> None:
    text, failure = STAGE.stream_failure(error(529, "overloaded_error", "Overloaded"))

    assert (text, failure.kind, failure.status) == ("", FailureKind.THROTTLED, 529)


@pytest.mark.parametrize(
    "reply",
    [
        said({"type": "text", "text": "not streamed"}),
        Reply(b"<html>", headers={"content-type": "text/html"}),
        Reply(b"data: {\n\n", headers={"content-type": "text/event-stream"}),
        Reply(b'data: {"type": 3}\n\n', headers={"content-type": "text/event-stream"}),
    ],
)
def test_what_is_no_stream_of_events_is_a_broken_envelope(reply: Reply) -> None:
    _, failure = STAGE.stream_failure(reply)

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_a_stream_that_is_left_is_dropped_at_once() -> None:
    assert STAGE.seconds_until_left(events(*HELLO, ending=HANG), streamed=True) < 1
