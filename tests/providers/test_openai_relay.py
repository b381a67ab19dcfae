"""Bodies and streams that pass through byte by byte."""

import asyncio
import json
from typing import Any

import pytest
from contracts.provider_stage import KEY, SAID
from providers.openai_stage import MODEL, a_wire_request, failure_from, on_stub
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
    words,
)
from providers.stubs.scripted import CUT, HANG, Reply

from headgate.core.failures import FailureKind
from headgate.core.messages import Usage
from headgate.core.ports.provider import WireProvider
from headgate.core.wire import Endpoint, WireAnswer, WireRequest
from headgate.providers.openai import OpenAIProvider
from headgate.providers.openai.envelopes import read_envelope
from headgate.providers.openai.errors import ErrorReader

SLOW_DOWN = {"message": "slow down", "code": 429}
ASK = a_wire_request({"messages": [{"role": "user", "content": "hi"}]})
ASK_STREAM = a_wire_request({"messages": []}, stream=True)


def relayed(reply: Reply, request: WireRequest = ASK) -> WireAnswer:
    async def act(provider: OpenAIProvider, _: OpenAIStub) -> WireAnswer:
        return await provider.relay(request)

    return on_stub(act, reply)


async def relay(provider: OpenAIProvider, _: OpenAIStub) -> object:
    return await provider.relay(ASK)


async def relay_stream(provider: OpenAIProvider, _: OpenAIStub) -> bytes:
    return b"".join([piece async for piece in provider.relay_stream(ASK_STREAM)])


def test_it_is_a_wire_provider() -> None:
    async def act(provider: OpenAIProvider, _: OpenAIStub) -> bool:
        return isinstance(provider, WireProvider)

    assert on_stub(act, completion())


@pytest.mark.parametrize("streams", [False, True])
def test_the_fields_of_a_request_pass_byte_by_byte(streams: bool) -> None:
    """Numbers, escapes, spaces and fields of next year: what we do not read we cannot spoil."""
    fields = b'{"messages": [ {"role":"user","content":"\\u00e9\\/ \xc3\xa9"} ], "seed": 1.0e3, "new": {"b":1, "a" :2}}'

    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> bytes:
        request = a_wire_request(fields, stream=streams)
        if streams:
            assert [piece async for piece in provider.relay_stream(request)]
        else:
            await provider.relay(request)
        return stub.requests[0].raw

    sent = on_stub(act, stream(events(*words())) if streams else completion())

    for value in (b'[ {"role":"user","content":"\\u00e9\\/ \xc3\xa9"} ]', b"1.0e3", b'{"b":1, "a" :2}'):
        assert value in sent
    body = json.loads(sent)
    assert body["model"] == MODEL
    assert body.get("stream") is (True if streams else None)
    assert set(body) == {"model", "messages", "seed", "new"} | ({"stream"} if streams else set())


@pytest.mark.parametrize(
    ("endpoint", "reply", "usage"),
    [
        (Endpoint.CHAT, completion(), Usage(12, 4)),
        (Endpoint.COMPLETIONS, text_completion(), Usage(12, 4)),
        (Endpoint.EMBEDDINGS, embeddings(), Usage(3, 0)),
    ],
)
def test_an_answer_passes_byte_by_byte_and_its_usage_is_known(
    endpoint: Endpoint, reply: Reply, usage: Usage
) -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> tuple[WireAnswer, str]:
        answer = await provider.relay(a_wire_request({"input": "x"}, endpoint=endpoint))
        return answer, stub.requests[0].path

    answer, target = on_stub(act, reply)

    assert answer == WireAnswer(body=reply.body, usage=usage, blank=False)
    assert target == f"/v1/{endpoint}"


BLANK: list[Any] = [None, "", " ", "\n\t \r", "\u00a0", []]
SAYING: list[Any] = ["x", " x", "null", "\\n", [{"type": "text", "text": "x"}], "\u200b"]


@pytest.mark.parametrize("content", BLANK)
def test_an_answer_without_content_is_blank(content: Any) -> None:
    assert relayed(completion({"content": content})).blank


@pytest.mark.parametrize("content", SAYING)
def test_an_answer_with_content_is_not_blank(content: Any) -> None:
    assert not relayed(completion({"content": content})).blank


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
    assert not relayed(completion({"content": None, **message})).blank


def test_thoughts_alone_are_a_blank_answer() -> None:
    """As everywhere: the caller was to get content, a tool call or a refusal."""
    assert relayed(completion({"content": "", "reasoning_content": "hm", "tool_calls": []})).blank


def test_of_several_choices_one_that_says_something_is_enough() -> None:
    silent = {"index": 0, "message": {"role": "assistant", "content": ""}}
    saying = {"index": 1, "message": {"role": "assistant", "content": "x"}}

    assert not relayed(completion(choices=[silent, saying])).blank
    assert relayed(completion(choices=[silent, silent])).blank


def test_a_text_completion_may_be_blank() -> None:
    request = a_wire_request({"prompt": "x"}, endpoint=Endpoint.COMPLETIONS)

    assert relayed(text_completion(" \n"), request).blank
    assert not relayed(text_completion("x"), request).blank


@pytest.mark.parametrize("usage", [None, {}, "x", {"prompt_tokens": 1.5}])
def test_an_odd_usage_costs_nobody_the_answer(usage: object) -> None:
    answer = relayed(completion(usage=usage))

    assert answer.usage is None
    assert not answer.blank


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, {"choices": []}),
        (Endpoint.CHAT, {"choices": [{"text": "x"}]}),
        (Endpoint.CHAT, {"data": []}),
        (Endpoint.COMPLETIONS, {"choices": [{"message": {}}]}),
        (Endpoint.COMPLETIONS, {"choices": []}),
        (Endpoint.EMBEDDINGS, {"data": []}),
        (Endpoint.EMBEDDINGS, {"choices": []}),
    ],
)
def test_a_200_without_an_answer_is_a_failure(endpoint: Endpoint, body: object) -> None:
    async def act(provider: OpenAIProvider, _: OpenAIStub) -> object:
        return await provider.relay(a_wire_request({"input": "x"}, endpoint=endpoint))

    failure = failure_from(act, whole(body))

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


@pytest.mark.parametrize("reply", [whole({"error": SLOW_DOWN}), completion(error=SLOW_DOWN)])
def test_an_error_in_a_200_has_its_own_class(reply: Reply) -> None:
    assert failure_from(relay, reply).kind is FailureKind.THROTTLED


@pytest.mark.parametrize("act", [relay, relay_stream])
def test_an_error_answer_has_its_class_and_never_the_key(act: Any) -> None:
    failure = failure_from(act, error(401, f"Incorrect API key provided: {KEY}", code="invalid_api_key"))

    assert failure.kind is FailureKind.MISCONFIGURED
    assert KEY not in repr(failure)


def test_a_stream_passes_byte_by_byte() -> None:
    told = [b": ping\n\n", *events(*words()), b": bye\r\n\r\n"]

    assert on_stub(relay_stream, stream(told)) == b"".join(told)


def test_pieces_pass_as_they_come() -> None:
    """Holding a piece back until the next would show in every reader's first token."""

    async def act(provider: OpenAIProvider, _: OpenAIStub) -> bytes:
        pieces = provider.relay_stream(ASK_STREAM)
        first = await asyncio.wait_for(anext(pieces), 2)
        await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator
        return first

    assert on_stub(act, stream([b"data: {"], ending=HANG)) == b"data: {"


def test_whether_done_came_is_for_the_reader_to_see() -> None:
    assert on_stub(relay_stream, stream(events(*words())[:2])) == b"".join(events(*words())[:2])


def test_a_cut_within_the_body_is_a_failure() -> None:
    assert failure_from(relay_stream, stream(events(*words())[:2], ending=CUT)).kind is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (whole({"error": {"message": "no", "code": 400}}), FailureKind.REJECTED),
        (completion(), FailureKind.TRANSIENT),
        (Reply(headers={"Content-Type": "text/html"}, body=b"<html>"), FailureKind.TRANSIENT),
    ],
)
def test_what_is_no_stream_is_a_failure_before_the_first_byte(reply: Reply, kind: FailureKind) -> None:
    assert failure_from(relay_stream, reply).kind is kind


def test_a_stream_that_was_read_frees_its_connection_and_one_that_was_left_hangs_up() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> tuple[int, int]:
        await relay_stream(provider, stub)
        await relay_stream(provider, stub)
        used = stub.connections
        pieces = provider.relay_stream(ASK_STREAM)
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator
        async with asyncio.timeout(1):
            while not stub.hang_ups:  # noqa: ASYNC110 - the stub counts; it does not know who waits
                await asyncio.sleep(0.01)
        return used, stub.hang_ups

    told = stream(events(*words()))

    assert on_stub(act, told, told, stream([DONE], ending=HANG)) == (1, 1)


def test_the_text_of_an_answer_is_not_copied() -> None:
    """The body the caller gets is the very object that came from the socket."""
    body = completion({"content": SAID * 1000}).body

    assert read_envelope(Endpoint.CHAT, body, ErrorReader("http://host")).body is body


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
def test_an_answer_that_says_why_it_is_empty_is_an_answer(reason: str) -> None:
    """A reasoning model that used up its tokens: asking again costs as much again and helps nobody."""
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": reason}

    assert not relayed(completion(choices=[choice])).blank
    assert relayed(completion(choices=[{**choice, "finish_reason": "stop"}])).blank


def test_a_key_that_an_error_event_quotes_is_struck_from_the_stream() -> None:
    """Some proxies repeat what they were sent; the operator's key is not for the caller."""
    told = b'data: {"error": {"message": "no such key: %b", "code": "invalid_api_key"}}\n\n' % KEY.encode()

    data = on_stub(relay_stream, stream([*events(*words(1))[:2], told]))

    assert b"no such key: ***" in data
    assert KEY.encode() not in data
