"""Bodies in Anthropic's format: written from calls, and read into chat completions."""

from typing import Any

import msgspec
import pytest
from providers.asking import a_call
from providers.stubs.anthropic import TEXT_BLOCK, THINKING_BLOCK, USAGE, message

from headgate.core.answer import Answer, Usage
from headgate.core.call import Call
from headgate.formats import chat
from headgate.formats.messages.answers import WholeMessage, to_answer
from headgate.formats.messages.requests import to_body

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def body_of(call: Call) -> Any:
    return to_body(chat.read_request(call), model="claude-test", max_tokens=9, stream=False)


def answer_of(*content: Any, **fields: Any) -> Answer:
    body = msgspec.json.encode(message(*content, **fields))
    return to_answer(a_call(), msgspec.json.decode(body, type=WholeMessage))


def test_a_body_changes_nothing_of_the_call_it_was_made_of() -> None:
    """What was read of a call is kept for its next attempt."""
    call = a_call(
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!", "thinking_blocks": [THINKING_BLOCK]},
            {"role": "user", "content": "And?"},
            {"role": "user", "content": [{"type": "text", "text": "Well?"}]},
        ],
        tools=[TOOL],
        tool_choice="required",
        stop="END",
        user="u-1",
    )

    first = msgspec.json.encode(body_of(call))
    assert msgspec.json.encode(body_of(call)) == first


def test_fields_may_be_json_as_they_came() -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Grüße"}],
        "max_tokens": 7,
        "temperature": 0.5,
    }
    raw: dict[str, Any] = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}

    assert body_of(a_call(**raw)) == body_of(a_call(**fields))


def test_an_answer_is_a_chat_completion() -> None:
    answer = answer_of(THINKING_BLOCK, TEXT_BLOCK)

    assert answer.json() == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 0,
        "model": "public",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello!",
                    "reasoning_content": "Let me see…",
                    "thinking_blocks": [THINKING_BLOCK],
                },
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 1125,
            "completion_tokens": 15,
            "total_tokens": 1140,
            "prompt_tokens_details": {"cached_tokens": 1000},
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 100,
        },
    }


def test_an_answer_reads_as_what_was_written() -> None:
    answer = answer_of(THINKING_BLOCK, TEXT_BLOCK)

    assert (answer.content, answer.reasoning, answer.blank) == ("Hello!", "Let me see…", False)
    assert chat.read_answer(answer.body) == answer


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"input_tokens": 25, "output_tokens": 15}, Usage(25, 15)),
        ({**USAGE, "cache_read_input_tokens": 10**9}, None),
        ({"cache_read_input_tokens": 7}, None),
        ({}, None),
        (None, None),
        ("many", None),
    ],
)
def test_usage_without_counts_of_the_cache_has_no_details(usage: object, counted: Usage | None) -> None:
    """Numbers that are missing or impossible are estimated; an estimate says so, and has no details."""
    answer = answer_of(TEXT_BLOCK, usage=usage)

    told = {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert set(answer.json()["usage"]) == (told if counted else told | {"estimated"})
    assert answer.usage == (counted or Usage(1, 2, estimated=True))
