"""Whole answers: what reaches Anthropic, and what its messages become."""

import asyncio
from typing import Any

import anthropic
import pytest
from providers.anthropic_stage import STAGE, anthropic_stage
from providers.http_stage import KEY, as_stream, ask
from providers.stubs.anthropic import START as STARTED
from providers.stubs.anthropic import (
    TEXT_BLOCK,
    THINKING_BLOCK,
    TOOL_BLOCK,
    ending,
    error,
    events,
    said,
    text_block,
    tool_block,
)
from providers.stubs.scripted import HANG, Reply, ScriptedServer

from headgate.core.answer import Usage
from headgate.core.call import Call, Format
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Provider

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather somewhere.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}


def sent(call: Call) -> Any:
    return STAGE.sent(said(TEXT_BLOCK), call)


def test_a_plain_question_gets_its_answer() -> None:
    answer = STAGE.answer(said(TEXT_BLOCK))

    assert (answer.content, answer.finish_reason, list(answer.tool_calls)) == ("Hello!", "stop", [])


def test_the_request_goes_where_anthropic_listens_with_its_headers() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> None:
        await provider.send(ask())
        seen = server.requests[0]
        assert (seen.method, seen.path) == ("POST", "/v1/messages?tag=a+b")
        assert seen.headers["x-api-key"] == KEY
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert seen.headers["anthropic-beta"] == "files-api"
        assert seen.body == {
            "model": "claude-test",
            "max_tokens": 4096,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        }

    stage = anthropic_stage(headers={"Anthropic-Beta": "files-api"}, query={"tag": "a b"})
    stage.play(act, said(TEXT_BLOCK))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_with_its_version(path: str) -> None:
    async def act(provider: Provider, server: ScriptedServer) -> str:
        await provider.send(ask())
        return server.requests[0].path

    assert anthropic_stage(path=path).play(act, said(TEXT_BLOCK)) == "/v1/messages"


def test_one_connection_serves_calls_in_turn() -> None:
    """A stream's end may come after its last word; leaving in between would cost a connection per call."""

    async def act(provider: Provider, server: ScriptedServer) -> int:
        await provider.send(ask())
        [_ async for _ in provider.stream(as_stream(ask()))]
        await provider.send(ask())
        return server.connections

    slow_to_end = events(STARTED, *text_block(0, "Hi"), *ending(), end_after_s=0.05)
    assert STAGE.play(act, said(TEXT_BLOCK), slow_to_end, said(TEXT_BLOCK)) == 1


@pytest.mark.parametrize(
    ("params", "bound"),
    [
        ({}, 4096),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_completion_tokens": 8, "max_tokens": 7}, 8),
        ({"max_tokens": None}, 4096),
    ],
)
def test_anthropic_wants_a_bound_and_gets_one(params: dict[str, Any], bound: int) -> None:
    assert sent(ask(**params))["max_tokens"] == bound


def test_the_bound_of_answers_can_be_set() -> None:
    assert anthropic_stage(max_tokens=99).sent(said(TEXT_BLOCK), ask())["max_tokens"] == 99


def test_system_messages_are_gathered_in_front() -> None:
    body = sent(
        ask(
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "developer", "content": [{"type": "text", "text": "Be kind.", "cache_control": {}}]},
            ]
        )
    )

    assert body["system"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Be kind.", "cache_control": {}},
    ]
    assert [turn["role"] for turn in body["messages"]] == ["user"]


def test_images_come_as_base64_or_as_a_url() -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,aGk=", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]

    assert sent(ask(parts))["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aGk="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]


def test_empty_texts_are_left_out() -> None:
    """Anthropic refuses a whole conversation for one of them."""
    parts = [{"type": "text", "text": ""}, {"type": "text", "text": "Hi"}]

    assert sent(ask(parts))["messages"][0]["content"] == [{"type": "text", "text": "Hi"}]


def test_parts_of_anthropics_own_pass_untouched() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}

    assert sent(ask([document]))["messages"][0]["content"] == [document]


def test_tools_make_the_round_trip() -> None:
    """Parallel results must stand together in one turn, or Anthropic refuses the conversation."""
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        for n, arguments in enumerate(['{"location": "Paris"}', ""])
    ]
    body = sent(
        ask(
            messages=[
                {"role": "user", "content": "The weather?"},
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
                {"role": "user", "content": "And?"},
            ],
            tools=[WEATHER],
        )
    )

    assert body["tools"] == [
        {
            "name": "get_weather",
            "description": "The weather somewhere.",
            "input_schema": WEATHER["function"]["parameters"],  # type: ignore[index]
        }
    ]
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_0", "name": "get_weather", "input": {"location": "Paris"}},
                {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_0", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "rain"}],
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ]


def test_tool_calls_come_back_in_openais_shape() -> None:
    other = {**TOOL_BLOCK, "id": "toolu_2", "input": {}}
    answer = STAGE.answer(said(THINKING_BLOCK, TOOL_BLOCK, other, stop_reason="tool_use"))

    assert (answer.content, answer.finish_reason) == (None, "tool_calls")
    assert list(answer.tool_calls) == [
        {
            "id": TOOL_BLOCK["id"],
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"location": "San Francisco, CA"}'},
        },
        {"id": "toolu_2", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
    ]


@pytest.mark.parametrize(
    ("params", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, {"type": "tool", "name": "a"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
    ],
)
def test_the_choice_of_tools_is_translated(params: dict[str, Any], choice: object) -> None:
    assert sent(ask(tools=[WEATHER], **params)).get("tool_choice") == choice


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
        ({"temperature": 0.5, "top_k": 3, "thinking": {"type": "adaptive"}}, None),
        ({"something_new": {"a": 1}}, None),
        ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
        ({"metadata": {"user_id": "u-2", "team": "x"}}, {"metadata": {"user_id": "u-2"}}),
        ({"service_tier": "default"}, {"service_tier": "standard_only"}),
        ({"service_tier": "flex"}, {}),
        ({"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "object"}},
                }
            },
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, {}),
        (
            {"n": 1, "logprobs": False, "presence_penalty": 0, "seed": None, "logit_bias": {}, "store": True},
            {},
        ),
    ],
)
def test_parameters_are_translated_passed_or_harmless(
    params: dict[str, Any], told: dict[str, Any] | None
) -> None:
    body = sent(ask(**params))
    rest = {name: value for name, value in body.items() if name not in {"model", "messages", "max_tokens"}}

    assert rest == (params if told is None else told)


@pytest.mark.parametrize(
    "params",
    [
        {"n": 2},
        {"seed": 1},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"logit_bias": {"1": 2}},
        {"functions": [{"name": "a"}]},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "minimal"},
        {"tool_choice": "required"},
        {"tool_choice": "sometimes", "tools": [WEATHER]},
        {"tools": [{"type": "custom", "custom": {"name": "a"}}]},
        {"tools": 3},
    ],
)
def test_what_anthropic_cannot_be_asked_is_refused_by_name(params: dict[str, Any]) -> None:
    """Dropped in silence it would be a wrong answer that looks right."""
    failure = STAGE.refused_unsent(ask(**params))

    assert (failure.kind, failure.code) == (FailureKind.REJECTED, "unsupported_parameter")
    assert failure.message.startswith(next(iter(params)))


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "function", "name": "a", "content": "b"}, "messages[0].role"),
        ({"role": "user", "content": ""}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,x"}}]},
            "messages[0].content[0].image_url",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "thinking_blocks": {"type": "thinking"}}, "messages[0].thinking_blocks"),
        ({"role": "assistant", "content": "a", "thinking_blocks": ["b"]}, "messages[0].thinking_blocks"),
    ],
)
def test_a_message_anthropic_cannot_take_is_refused_by_its_place(message: dict[str, Any], where: str) -> None:
    failure = STAGE.refused_unsent(ask(messages=[message]))

    assert failure.kind is FailureKind.REJECTED
    assert failure.message.startswith(f"{where} ")


def test_what_json_cannot_carry_is_refused() -> None:
    assert STAGE.refused_unsent(ask(extra=object())).kind is FailureKind.REJECTED


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("yet_unheard_of", "stop"),
    ],
)
def test_stop_reasons_become_finish_reasons(stop_reason: str, finish_reason: str) -> None:
    assert STAGE.answer(said(TEXT_BLOCK, stop_reason=stop_reason)).finish_reason == finish_reason


def test_a_refusal_is_no_blank_answer() -> None:
    """A blank answer would be generated anew, and refused again."""
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}

    assert STAGE.answer(said(stop_reason="refusal", stop_details=details)).refusal == "Not this."
    assert not STAGE.answer(said(stop_reason="refusal")).blank


def test_cached_input_counts_as_input() -> None:
    assert STAGE.answer(said(TEXT_BLOCK)).usage == Usage(1125, 15)


def test_thinking_is_not_content_and_a_blank_answer_is_blank() -> None:
    assert STAGE.answer(said(THINKING_BLOCK, TEXT_BLOCK)).content == "Hello!"
    assert STAGE.answer(said(THINKING_BLOCK)).blank


def test_it_takes_chats_only_and_reads_them() -> None:
    """Embeddings are rejected before they reach it."""

    async def act(provider: Provider, server: ScriptedServer) -> None:
        assert provider.formats == {Format.CHAT}
        assert provider.reads

    STAGE.play(act)


def test_a_cancelled_call_leaves_at_once() -> None:
    assert STAGE.seconds_until_left(Reply(silent=True), streamed=False) < 1


def test_the_stub_speaks_what_the_official_sdk_understands() -> None:
    """Otherwise the tests above would prove only that two of our own mistakes agree."""
    in_pieces = events(
        STARTED, *text_block(0, "Hi", " there"), *tool_block(1, "t1", "f", '{"a"', ": 1}"), *ending()
    )

    async def story() -> None:
        async with (
            ScriptedServer(said(TEXT_BLOCK, TOOL_BLOCK), in_pieces, error(529, "overloaded_error")) as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client,
        ):
            given: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
            whole = await client.messages.create(**given)
            assert [block.type for block in whole.content] == ["text", "tool_use"]
            async with client.messages.stream(**given) as stream:
                final = await stream.get_final_message()
            assert final.content[0].text == "Hi there"  # type: ignore[union-attr]
            assert final.content[1].input == {"a": 1}  # type: ignore[union-attr]
            assert (final.usage.input_tokens, final.usage.output_tokens) == (25, 15)
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**given)
            assert caught.value.type == "overloaded_error"
            assert server.requests[0].path == "/v1/messages"

    asyncio.run(story())


def test_a_call_that_is_left_while_the_body_comes_is_dropped() -> None:
    slow = Reply(b'{"type": "message", ', headers={"content-type": "application/json"}, ending=HANG)

    assert STAGE.seconds_until_left(slow, streamed=False) < 1
