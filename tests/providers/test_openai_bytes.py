"""Bodies and streams that pass through byte by byte."""

import asyncio
import json
from typing import Any

import pytest
from contracts.provider_stage import KEY, SAID, TEXTS
from providers.openai_stage import MODEL, a_raw_call, failure_from, on_stub
from providers.stubs.openai import (
    DONE,
    OpenAIStub,
    completion,
    embeddings,
    error,
    events,
    stream,
    text_completion,
    whole,
    with_extras,
    words,
)
from providers.stubs.scripted import CUT, HANG, Reply

from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format
from headgate.core.failures import FailureKind
from headgate.formats import chat
from headgate.providers.openai import OpenAIProvider

SLOW_DOWN = {"message": "slow down", "code": 429}
ASK = a_raw_call({"messages": [{"role": "user", "content": "hi"}]})
ASK_STREAM = a_raw_call({"messages": []}, stream=True)


def answer_to(reply: Reply, call: Call = ASK) -> Answer:
    async def act(provider: OpenAIProvider, _: OpenAIStub) -> Answer:
        return await provider.send(call)

    return on_stub(act, reply)


async def send(provider: OpenAIProvider, _: OpenAIStub) -> object:
    return await provider.send(ASK)


async def stream_bytes(provider: OpenAIProvider, _: OpenAIStub) -> bytes:
    return b"".join([piece async for piece in provider.stream(ASK_STREAM)])


@pytest.mark.parametrize("streams", [False, True])
def test_the_fields_of_a_request_pass_byte_by_byte(streams: bool) -> None:
    """Numbers, escapes, spaces and fields of next year: what we do not read we cannot spoil."""
    fields = b'{"messages": [ {"role":"user","content":"\\u00e9\\/ \xc3\xa9"} ], "seed": 1.0e3, "new": {"b":1, "a" :2}}'

    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> bytes:
        call = a_raw_call(fields, stream=streams)
        if streams:
            assert [piece async for piece in provider.stream(call)]
        else:
            await provider.send(call)
        return stub.requests[0].raw

    sent = on_stub(act, stream(events(*words())) if streams else completion())

    for value in (b'[ {"role":"user","content":"\\u00e9\\/ \xc3\xa9"} ]', b"1.0e3", b'{"b":1, "a" :2}'):
        assert value in sent
    body = json.loads(sent)
    assert body["model"] == MODEL
    assert body.get("stream") is (True if streams else None)
    assert set(body) == {"model", "messages", "seed", "new"} | ({"stream"} if streams else set())


@pytest.mark.parametrize(
    ("shape", "reply", "usage"),
    [
        (Format.CHAT, completion(), Usage(12, 4)),
        (Format.CHAT, with_extras(), Usage(12, 4)),
        (Format.COMPLETIONS, text_completion(), Usage(12, 4)),
        (Format.EMBEDDINGS, embeddings(), Usage(3, 0)),
    ],
)
def test_an_answer_passes_byte_by_byte_and_its_usage_is_known(
    shape: Format, reply: Reply, usage: Usage
) -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> tuple[Answer, str]:
        answer = await provider.send(a_raw_call({"input": TEXTS}, shape=shape))
        return answer, stub.requests[0].path

    answer, target = on_stub(act, reply)

    assert (answer.body, answer.usage, answer.flaw) == (reply.body, usage, None)
    assert target == f"/v1/{shape}"


BLANK: list[Any] = [None, "", " ", "\n\t \r", "\u00a0", []]
SAYING: list[Any] = ["x", " x", "null", "\\n", [{"type": "text", "text": "x"}], "\u200b"]


@pytest.mark.parametrize("content", BLANK)
def test_an_answer_without_content_is_blank(content: Any) -> None:
    assert answer_to(completion({"content": content})).blank


@pytest.mark.parametrize("content", SAYING)
def test_an_answer_with_content_is_not_blank(content: Any) -> None:
    assert not answer_to(completion({"content": content})).blank


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"id": "c"}]},
        {"refusal": "no"},
        {"function_call": {"name": "f"}},
        {"audio": {"id": "a"}},
        {"images": [{"type": "image_url"}]},
    ],
)
def test_an_answer_that_says_it_otherwise_is_not_blank(message: dict[str, Any]) -> None:
    assert not answer_to(completion({"content": None, **message})).blank


def test_thoughts_alone_are_a_blank_answer() -> None:
    """As everywhere: the caller was to get content, a tool call or a refusal."""
    assert answer_to(completion({"content": "", "reasoning_content": "hm", "tool_calls": []})).blank


def test_of_several_choices_one_that_says_something_is_enough() -> None:
    silent = {"index": 0, "message": {"role": "assistant", "content": ""}}
    saying = {"index": 1, "message": {"role": "assistant", "content": "x"}}

    assert not answer_to(completion(choices=[silent, saying])).blank
    assert answer_to(completion(choices=[silent, silent])).blank


def test_a_text_completion_may_be_blank() -> None:
    call = a_raw_call({"prompt": "x"}, shape=Format.COMPLETIONS)

    assert answer_to(text_completion(" \n"), call).blank
    assert not answer_to(text_completion("x"), call).blank


@pytest.mark.parametrize("usage", [None, {}, "x", {"prompt_tokens": 1.5}])
def test_an_odd_usage_costs_nobody_the_answer(usage: object) -> None:
    answer = answer_to(completion(usage=usage))

    assert answer.usage is None
    assert not answer.blank


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Format.CHAT, {"choices": []}),
        (Format.CHAT, {"choices": [{"text": "x"}]}),
        (Format.CHAT, {"data": []}),
        (Format.COMPLETIONS, {"choices": [{"message": {}}]}),
        (Format.COMPLETIONS, {"choices": []}),
        (Format.EMBEDDINGS, {"data": []}),
        (Format.EMBEDDINGS, {"choices": []}),
    ],
)
def test_a_200_without_an_answer_is_a_failure(shape: Format, body: object) -> None:
    async def act(provider: OpenAIProvider, _: OpenAIStub) -> object:
        return await provider.send(a_raw_call({"input": "x"}, shape=shape))

    failure = failure_from(act, whole(body))

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


@pytest.mark.parametrize("reply", [whole({"error": SLOW_DOWN}), completion(error=SLOW_DOWN)])
def test_an_error_in_a_200_has_its_own_class(reply: Reply) -> None:
    assert failure_from(send, reply).kind is FailureKind.THROTTLED


@pytest.mark.parametrize("act", [send, stream_bytes])
def test_an_error_answer_has_its_class_and_never_the_key(act: Any) -> None:
    failure = failure_from(act, error(401, f"Incorrect API key provided: {KEY}", code="invalid_api_key"))

    assert failure.kind is FailureKind.MISCONFIGURED
    assert KEY not in repr(failure)


def test_a_stream_passes_byte_by_byte() -> None:
    sent = [b": ping\n\n", *events(*words()), b": bye\r\n\r\n"]

    assert on_stub(stream_bytes, stream(sent)) == b"".join(sent)


def test_pieces_pass_as_they_come() -> None:
    """Holding a piece back until the next would show in every reader's first token."""

    async def act(provider: OpenAIProvider, _: OpenAIStub) -> bytes:
        pieces = provider.stream(ASK_STREAM)
        first = await asyncio.wait_for(anext(pieces), 2)
        await pieces.aclose()
        return first

    assert on_stub(act, stream([b"data: {"], ending=HANG)) == b"data: {"


def test_whether_done_came_is_for_the_reader_to_see() -> None:
    assert on_stub(stream_bytes, stream(events(*words())[:2])) == b"".join(events(*words())[:2])


def test_a_cut_within_the_body_is_a_failure() -> None:
    assert failure_from(stream_bytes, stream(events(*words())[:2], ending=CUT)).kind is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (whole({"error": {"message": "no", "code": 400}}), FailureKind.REJECTED),
        (completion(), FailureKind.TRANSIENT),
        (Reply(headers={"Content-Type": "text/html"}, body=b"<html>"), FailureKind.TRANSIENT),
    ],
)
def test_what_is_no_stream_is_a_failure_before_the_first_byte(reply: Reply, kind: FailureKind) -> None:
    assert failure_from(stream_bytes, reply).kind is kind


def test_a_stream_that_was_read_frees_its_connection_and_one_that_was_left_hangs_up() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> tuple[int, int]:
        await stream_bytes(provider, stub)
        await stream_bytes(provider, stub)
        used = stub.connections
        pieces = provider.stream(ASK_STREAM)
        await anext(pieces)
        await pieces.aclose()
        async with asyncio.timeout(1):
            while not stub.hang_ups:  # noqa: ASYNC110 - the stub only counts
                await asyncio.sleep(0.01)
        return used, stub.hang_ups

    whole_stream = stream(events(*words()))

    assert on_stub(act, whole_stream, whole_stream, stream([DONE], ending=HANG)) == (1, 1)


def test_the_text_of_an_answer_is_not_copied() -> None:
    """The body the caller gets is the very object that came from the socket."""
    body = completion({"content": SAID * 1000}).body

    assert chat.read_answer(body).body is body


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
def test_an_answer_that_says_why_it_is_empty_is_an_answer(reason: str) -> None:
    """A reasoning model that used up its tokens: asking again costs as much again and changes nothing."""
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": reason}

    assert not answer_to(completion(choices=[choice])).blank
    assert answer_to(completion(choices=[{**choice, "finish_reason": "stop"}])).blank


def test_a_key_that_an_error_event_quotes_is_struck_from_the_stream() -> None:
    """Some proxies repeat what they were sent; the operator's key is not for the caller."""
    failed = b'data: {"error": {"message": "no such key: %b", "code": "invalid_api_key"}}\n\n' % KEY.encode()

    data = on_stub(stream_bytes, stream([*events(*words(1))[:2], failed]))

    assert b"no such key: ***" in data
    assert KEY.encode() not in data
