"""What comes back from Bedrock: whole answers, and answers that are none."""

import asyncio
from typing import Any

import pytest
from providers.bedrock_stage import ask, complete, failed, stage
from providers.stubs.bedrock import Reply, said, whole

from headgate.core.answer import Usage
from headgate.core.call import Format
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Probing, Provider
from headgate.providers.bedrock import BedrockProvider


def thought(text: str, signature: str) -> dict[str, Any]:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


def test_a_plain_answer() -> None:
    answer = complete(said({"text": "Hi "}, {"text": "there"}))

    assert answer.content == "Hi there"
    assert answer.finish_reason == "stop"
    assert answer.usage == Usage(11, 7)


def test_tool_calls_come_in_openais_shape() -> None:
    use = {"toolUseId": "t1", "name": "weather", "input": {"city": "Oslo"}}
    bare = {"toolUseId": "t2", "name": "now", "input": {}}

    answer = complete(said({"text": "Let me see."}, {"toolUse": use}, {"toolUse": bare}, stop="tool_use"))

    assert answer.content == "Let me see."
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls == [
        {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
        {"id": "t2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ]


def test_the_answer_is_the_clients_body() -> None:
    assert complete(said({"text": "Hi"}), ask(stream=False)).json() == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 0,
        "model": "public",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def test_reasoning_goes_beside_the_content_with_its_signatures() -> None:
    answer = complete(
        said(
            thought("Hmm. ", "s1"),
            {"reasoningContent": {"redactedContent": "AAEC/w=="}},
            thought("Aha!", "s2"),
            {"text": "42"},
        )
    )

    assert answer.content == "42"
    assert answer.reasoning == "Hmm. Aha!"
    assert answer.message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "Hmm. ", "signature": "s1"},
        {"type": "redacted_thinking", "data": "AAEC/w=="},
        {"type": "thinking", "thinking": "Aha!", "signature": "s2"},
    ]


@pytest.mark.parametrize("signature", [{}, {"signature": None}, {"signature": ""}])
def test_reasoning_without_a_signature_is_only_text(signature: dict[str, Any]) -> None:
    """Nova, DeepSeek and others do not sign, and Bedrock takes no unsigned reasoning back."""
    answer = complete(
        said({"reasoningContent": {"reasoningText": {"text": "Hmm.", **signature}}}, {"text": "42"})
    )

    assert answer.reasoning == "Hmm."
    assert "thinking_blocks" not in answer.message


def test_reasoning_that_is_not_shown_keeps_its_signature() -> None:
    answer = complete(said(thought("", "s"), {"text": "42"}))

    assert answer.reasoning is None
    assert answer.message["thinking_blocks"] == [{"type": "thinking", "thinking": "", "signature": "s"}]


def test_an_answer_without_reasoning_says_nothing_of_it() -> None:
    assert set(complete(said({"text": "Hi"})).message) == {"role", "content"}


@pytest.mark.parametrize(
    "block",
    [
        {"reasoningContent": {"reasoningText": {"text": "Hmm."}}},
        {"reasoningContent": {"reasoningText": {"text": "Hmm.", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": "AAEC"}},
        {"reasoningContent": {}},
    ],
)
def test_an_answer_of_nothing_but_reasoning_is_blank(block: dict[str, Any]) -> None:
    assert complete(said(block)).blank


def test_text_with_sources_is_content() -> None:
    assert (
        complete(said({"citationsContent": {"content": [{"text": "Cited."}], "citations": []}})).content
        == "Cited."
    )


def test_calls_of_bedrocks_own_tools_are_not_the_callers() -> None:
    use = {"toolUseId": "t1", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}

    assert not complete(said({"toolUse": use}, {"text": "Found."})).tool_calls


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("something_new", "something_new"),
    ],
)
def test_why_an_answer_ended(stop: str, finish: str) -> None:
    assert complete(said({"text": "Sorry, I cannot help with that."}, stop=stop)).finish_reason == finish


@pytest.mark.parametrize("stop", ["malformed_model_output", "malformed_tool_use"])
def test_output_that_bedrock_could_not_read_is_invalid(stop: str) -> None:
    failure = failed(said({"text": "{"}, stop=stop))

    assert (failure.kind, failure.code) == (FailureKind.INVALID_OUTPUT, stop)


def test_tokens_from_the_prompt_cache_are_input() -> None:
    """Bedrock counts them apart: without them a cached prompt would look almost free of tokens."""
    usage = {
        "inputTokens": 3,
        "outputTokens": 5,
        "totalTokens": 128,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
    }

    answer = complete(said({"text": "Hi"}, usage=usage))

    assert answer.usage == Usage(123, 5)
    assert answer.json()["usage"] == {
        "prompt_tokens": 123,
        "completion_tokens": 5,
        "total_tokens": 128,
        "prompt_tokens_details": {"cached_tokens": 100},
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
    }


def test_only_what_was_counted_of_the_prompt_cache_is_passed_on() -> None:
    usage = {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8, "cacheReadInputTokens": 0}

    assert complete(said({"text": "Hi"}, usage=usage)).json()["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "cache_read_input_tokens": 0,
    }


def test_an_answer_without_usage() -> None:
    body = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
    }

    assert complete(whole(body)).usage == Usage(2, 1, estimated=True)


def test_an_answer_with_an_impossible_usage() -> None:
    usage = complete(said({"text": "Hi"}, usage={"inputTokens": -1, "cacheReadInputTokens": 9})).usage

    assert usage == Usage(2, 1, estimated=True)


@pytest.mark.parametrize(
    "reply",
    [
        whole({"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}, "Version": "1.0"}),
        whole({"output": {"message": {"content": None}}}),
        said({"reasoningContent": {"redactedContent": "not base64"}}),
        whole([]),
        Reply(body=b'{"output": {"mess'),
        Reply(body=b"\xff"),
        Reply(body=b""),
        Reply(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"}),
        Reply(body=b"{}", headers={}),
    ],
    ids=lambda reply: str(reply.body[:20]),
)
def test_a_broken_envelope_is_transient(reply: Reply) -> None:
    failure = failed(reply)

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")
    assert "127.0.0.1" in failure.message


def test_an_answer_cut_in_its_middle_is_transient() -> None:
    assert failed(Reply(body=b'{"output":', ending="cut")).kind is FailureKind.TRANSIENT


def test_one_connection_serves_many_calls() -> None:
    async def scene() -> int:
        async with stage(*(said({"text": "Hi"}) for _ in range(3))) as (stub, provider):
            for _ in range(3):
                await provider.send(ask())
            return stub.connections

    assert asyncio.run(scene()) == 1


def test_what_it_takes() -> None:
    async def scene() -> BedrockProvider:
        async with stage() as (_, provider):
            return provider

    provider: Provider = asyncio.run(scene())
    assert provider.formats == {Format.CHAT, Format.EMBEDDINGS}
    assert provider.reads
    assert isinstance(provider, Probing)


def test_a_cancelled_call_closes_its_connection_at_once() -> None:
    async def scene() -> None:
        async with stage(Reply(body=b"{", ending="hold")) as (stub, provider):
            call = asyncio.create_task(provider.send(ask()))
            await stub.asked.wait()
            call.cancel()
            async with asyncio.timeout(1):
                await stub.left.wait()

    asyncio.run(scene())
