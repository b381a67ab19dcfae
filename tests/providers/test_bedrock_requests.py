"""What Bedrock is sent. Every body is checked by the stub against botocore's model of Converse."""

import base64
import json
from typing import Any

import pytest
from providers.bedrock_stage import HELLO, MODEL, ask, complete, refused, request_seen, sent
from providers.stubs.bedrock import said

from headgate.core.failures import FailureKind

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n").decode()
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}


Messages = list[dict[str, Any]]


def call(call_id: str, arguments: str = '{"city":"Oslo"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


ROUND_TRIP: Messages = [
    {"role": "user", "content": "Oslo and Bergen?"},
    {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", "")]},
    {"role": "tool", "tool_call_id": "a", "content": "4 °C"},
    {"role": "tool", "tool_call_id": "b", "content": ""},
    {"role": "user", "content": "In Fahrenheit, please."},
]


def test_a_plain_request_holds_nothing_that_was_not_asked_for() -> None:
    assert sent() == {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}


def test_system_and_developer_messages_become_system_blocks() -> None:
    body = sent(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "In French."}]},
            *HELLO,
        ]
    )

    assert body["system"] == [{"text": "Be brief."}, {"text": "In French."}]
    assert [turn["role"] for turn in body["messages"]] == ["user"]


def test_neighbours_of_one_role_become_one_turn() -> None:
    """Converse refuses a conversation whose roles do not alternate."""
    body = sent(
        [
            {"role": "user", "content": "One"},
            {"role": "user", "content": "Two"},
            {"role": "assistant", "content": "Three"},
            {"role": "assistant", "content": "Four"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "Five"},
        ]
    )

    assert body["messages"] == [
        {"role": "user", "content": [{"text": "One"}, {"text": "Two"}]},
        {"role": "assistant", "content": [{"text": "Three"}, {"text": "Four"}]},
        {"role": "user", "content": [{"text": "Five"}]},
    ]


def test_an_image_goes_as_the_base64_it_came_in() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PNG}}]

    content = sent([{"role": "user", "content": parts}])["messages"][0]["content"]

    assert content == [
        {"text": "What is it?"},
        {"image": {"format": "png", "source": {"bytes": base64.b64encode(b"\x89PNG\r\n").decode()}}},
    ]


def test_parallel_tool_calls_and_their_results_are_one_turn_each() -> None:
    body = sent(ROUND_TRIP, tools=[TOOL])

    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"toolUse": {"toolUseId": "a", "name": "weather", "input": {"city": "Oslo"}}},
                {"toolUse": {"toolUseId": "b", "name": "weather", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "a", "content": [{"text": "4 °C"}]}},
                {"toolResult": {"toolUseId": "b", "content": [{"text": "(no output)"}]}},
                {"text": "In Fahrenheit, please."},
            ],
        },
    ]


def test_tools_become_tool_specs() -> None:
    bare = {"type": "function", "function": {"name": "now"}}

    assert sent(tools=[TOOL, bare])["toolConfig"]["tools"] == [
        {
            "toolSpec": {
                "name": "weather",
                "description": "The weather of a city",
                "inputSchema": {"json": TOOL["function"]["parameters"]},  # type: ignore[index]
                "strict": True,
            }
        },
        {"toolSpec": {"name": "now", "inputSchema": {"json": {"type": "object", "properties": {}}}}},
    ]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("auto", None),
        ("required", {"any": {}}),
        ({"type": "function", "function": {"name": "weather"}}, {"tool": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, told: Any) -> None:
    assert sent(tools=[TOOL], tool_choice=choice)["toolConfig"].get("toolChoice") == told


def test_none_leaves_the_tools_out() -> None:
    assert "toolConfig" not in sent(tools=[TOOL], tool_choice="none")


@pytest.mark.parametrize("params", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_earlier_tool_calls_without_tools_get_one_that_does_nothing(params: Any) -> None:
    """Bedrock refuses tool calls in the history of a request that has no toolConfig."""
    tools = sent(ROUND_TRIP, **params)["toolConfig"]["tools"]

    assert [tool["toolSpec"]["name"] for tool in tools] == ["no_tools_now"]


def test_sampling_parameters_go_into_inference_config() -> None:
    body = sent(max_completion_tokens=9, temperature=0.5, top_p=0.9, stop="END")

    assert body["inferenceConfig"] == {
        "maxTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "stopSequences": ["END"],
    }


def test_a_schema_for_the_answer() -> None:
    schema = {"type": "object", "properties": {"label": {"type": "string"}}}
    body = sent(response_format={"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}})

    structure = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert structure["name"] == "verdict"
    assert json.loads(structure["schema"]) == schema


def test_fields_of_converse_keep_their_place_and_the_models_own_go_to_the_model() -> None:
    guardrail = {"guardrailIdentifier": "abc", "guardrailVersion": "1"}
    body = sent(guardrailConfig=guardrail, top_k=40, service_tier="flex", metadata={"team": "search"})

    assert body["guardrailConfig"] == guardrail
    assert body["additionalModelRequestFields"] == {"top_k": 40}
    assert body["serviceTier"] == {"type": "flex"}
    assert body["requestMetadata"] == {"team": "search"}


def test_a_requests_own_fields_come_on_top_of_the_options() -> None:
    options = {"additional_fields": {"top_k": 1, "anthropic_beta": ["x"]}}
    request = ask(top_k=2, additionalModelRequestFields={"thinking": {"type": "enabled"}})

    assert request_seen(request, **options).body["additionalModelRequestFields"] == {
        "top_k": 2,
        "anthropic_beta": ["x"],
        "thinking": {"type": "enabled"},
    }


def test_what_changes_nothing_is_passed_over() -> None:
    body = sent(
        n=1,
        user="me",
        stream_options={"include_usage": True},
        presence_penalty=0.0,
        logprobs=False,
        parallel_tool_calls=True,
        response_format={"type": "text"},
        service_tier="auto",
        seed=None,
    )

    assert set(body) == {"messages"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("seed", 7),
        ("logprobs", True),
        ("parallel_tool_calls", False),
        ("presence_penalty", 0.5),
        ("functions", [{"name": "x"}]),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "allowed_tools"}),
        ("tools", [{"type": "web_search"}]),
        ("tools", "weather"),
        ("additionalModelRequestFields", 3),
    ],
)
def test_what_cannot_be_said_in_converse_is_refused_by_its_name(name: str, value: Any) -> None:
    failure = refused(**{name: value})

    assert failure.kind is FailureKind.REJECTED
    assert failure.code == "unsupported_parameter"
    assert failure.message.startswith(name)


def test_thoughts_go_back_in_front_of_what_was_said_as_they_came() -> None:
    body = sent(
        [
            *HELLO,
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": "Hmm. Aha!",
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "Hmm. ", "signature": "s1"},
                    {"type": "redacted_thinking", "data": "AAEC/w=="},
                    {"type": "thinking", "thinking": "", "signature": "s2"},
                ],
                "tool_calls": [call("a")],
            },
            {"role": "tool", "tool_call_id": "a", "content": "4 °C"},
        ],
        tools=[TOOL],
    )

    assert body["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hmm. ", "signature": "s1"}}},
        {"reasoningContent": {"redactedContent": "AAEC/w=="}},
        {"reasoningContent": {"reasoningText": {"text": "", "signature": "s2"}}},
        {"text": "Let me see."},
        {"toolUse": {"toolUseId": "a", "name": "weather", "input": {"city": "Oslo"}}},
    ]


def test_the_thoughts_of_an_answer_can_be_sent_back() -> None:
    thought = {"reasoningContent": {"reasoningText": {"text": "Hmm.", "signature": "s"}}}
    hidden = {"reasoningContent": {"redactedContent": "AAEC/w=="}}
    answer = complete(said(thought, hidden, {"text": "42"}))

    assert sent([*HELLO, answer.message, *HELLO])["messages"][1] == {
        "role": "assistant",
        "content": [thought, hidden, {"text": "42"}],
    }


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning_content": "Hmm."},
        {"thinking_blocks": None},
        {"thinking_blocks": []},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hmm."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hmm.", "signature": ""}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hmm.", "signature": None}]},
    ],
)
def test_thoughts_without_a_signature_stay_here(thoughts: dict[str, Any]) -> None:
    """Claude wants a signature, and the models that do not sign take no thoughts back."""
    body = sent([*HELLO, {"role": "assistant", "content": "42", **thoughts}, *HELLO])

    assert body["messages"][1] == {"role": "assistant", "content": [{"text": "42"}]}


def test_a_message_of_nothing_but_thoughts_stays_here() -> None:
    """Newer Claudes take it for the beginning of their answer, and refuse the request."""
    blocks = [{"type": "thinking", "thinking": "Hmm.", "signature": "s"}]

    body = sent([*HELLO, {"role": "assistant", "content": "", "thinking_blocks": blocks}, *HELLO])

    assert body["messages"] == [{"role": "user", "content": [{"text": "Hello"}, {"text": "Hello"}]}]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "user", "content": " "}, "messages[1].content is blank"),
        ({"role": "critic", "content": "Hm"}, "messages[1].role"),
        ({"role": "tool", "content": "4 °C"}, "messages[1].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [call("a", "[1]")]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [call("a", "{")]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "function_call": {"name": "x"}}, "messages[1].function_call"),
        (
            {"role": "assistant", "content": "42", "thinking_blocks": "Hmm."},
            "messages[1].thinking_blocks must be a list",
        ),
        (
            {"role": "assistant", "content": "42", "thinking_blocks": ["Hmm."]},
            "messages[1].thinking_blocks[0] must be a block",
        ),
        (
            {"role": "assistant", "content": "42", "thinking_blocks": [{"type": "thinking"}]},
            "messages[1].thinking_blocks[0] must be a block",
        ),
        (
            {"role": "assistant", "thinking_blocks": [{"type": "redacted_thinking", "data": 3}]},
            "messages[1].thinking_blocks[0] must be a block",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio"}]},
            "messages[1].content[0] is of type 'input_audio'",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}],
            },
            "messages[1].content[0].image_url must be a data URL",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}],
            },
            "messages[1].content[0].image_url must be a data URL of a PNG",
        ),
        (
            {"role": "system", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
            "messages[1].content may hold nothing but text",
        ),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_its_place(message: Any, where: str) -> None:
    failure = refused([*HELLO, message])

    assert failure.kind is FailureKind.REJECTED
    assert failure.message.startswith(where)


def test_a_request_without_a_turn_is_refused() -> None:
    assert "at least one message of the user" in refused([{"role": "system", "content": "Be brief."}]).message


def test_a_value_that_is_no_json_is_refused() -> None:
    assert "JSON cannot carry" in refused(top_k=object()).message


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (MODEL, "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"),
        (
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-lite-v1:0",
            "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.amazon.nova-lite-v1%3A0/converse",
        ),
    ],
)
def test_the_model_is_spelled_in_the_path_as_botocore_does(model: str, path: str) -> None:
    assert request_seen(ask(), model=model).target == path


def test_own_headers_are_sent_and_signed() -> None:
    seen = request_seen(ask(), headers={"X-Amzn-Bedrock-Trace": "ENABLED", "X-Team": "a  b"})

    assert seen.headers["x-team"] == "a  b"
    assert "x-amzn-bedrock-trace;x-team" in seen.headers["authorization"]


def test_a_large_body_is_signed_like_a_small_one() -> None:
    """Its hash is computed in a thread."""
    image = "data:image/webp;base64," + base64.b64encode(bytes(2_000_000)).decode()
    parts = [{"type": "image_url", "image_url": {"url": image}}]

    assert len(sent([{"role": "user", "content": parts}])["messages"][0]["content"]) == 1
